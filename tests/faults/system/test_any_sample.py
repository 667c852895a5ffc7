"""Samples of any shape and kind, through a daemon and through an embedded one."""

from __future__ import annotations

from typing import Any

import pytest

from loaderd_testing.daemon_harness import Site

MODULE = """
import collections, dataclasses
import numpy as np
from PIL import Image

@dataclasses.dataclass
class Note:
    number: int

class Tokens:
    '''Ragged lists of token ids, as a tokenizer returns them.'''
    def __len__(self):
        return 19
    def __getitem__(self, index):
        if index == 7:
            raise ValueError("no such text")
        return {"input_ids": list(range(index % 5 + 1)), "labels": index, "note": Note(index)}

class Padding:
    '''Called with one argument, as transformers' DataCollatorWithPadding is.'''
    def __call__(self, features):
        longest = max(len(each["input_ids"]) for each in features)
        padded = [each["input_ids"] + [0] * (longest - len(each["input_ids"])) for each in features]
        return collections.UserDict(
            input_ids=np.array(padded),
            labels=np.array([each["labels"] for each in features]),
            noted=np.array([each["note"].number for each in features]),
        )

class Pairs:
    def __len__(self):
        return 20
    def __getitem__(self, index):
        return np.full((2, 3), float(index)), index, str(index)

class Scenes:
    '''A picture, a ragged list of ids, and boxes, of which the first sample has none.'''
    def __len__(self):
        return 10
    def __getitem__(self, index):
        return {
            "image": Image.new("RGB", (6, 4), (index, 0, 0)),
            "ids": [index] * (index % 3 + 1),
            "boxes": [[0, 0, 1, index]] * index,
        }

class Odd:
    '''Arrays without elements and without axes, text of any code point, 4,096 fields.'''
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return {
            "none": np.zeros((0, 3), np.float32),
            "scalar": np.float16(index),
            "text": "\\udc80\\0\\U0001f600" * index,
            **{f"f{n}": n + index for n in range(4093)},
        }

def detection(samples):
    return [np.ones((index + 1, 4)) for _, index, _ in samples], [index for _, index, _ in samples]

padding = Padding()
"""

CONFIG = """
[daemon]
socket = "d.sock"
[workers]
num_workers = 1
sample_timeout_s = 120
[streams.tokens]
dataset = "mine:Tokens"
collate = "mine:padding"
on_error = "replace"
batch_size = 6
[streams.scenes]
dataset = "mine:Scenes"
pad = {ids = {value = -1, multiple = 4, mask = "mask"}}
ragged = ["boxes"]
batch_size = 4
[streams.odd]
dataset = "mine:Odd"
batch_size = 2
[streams.boxes]
dataset = "mine:Pairs"
collate = "mine:detection"
batch_size = 6
"""


@pytest.mark.parametrize("source", ["config.toml", "d.sock"])
def test_collate_functions_of_a_dataloader_work_as_they_are(site: Site, source: str) -> None:
    (site.folder / "mine.py").write_text(MODULE)
    site.config.write_text(CONFIG)
    if source == "d.sock":
        site.serve()

    def batches(stream: str) -> list[Any]:
        return list(site.loader(stream=stream, source=site.folder / source, output="torch"))

    tokens = batches("tokens")
    assert [batch["input_ids"].shape[1] for batch in tokens] == [5, 5, 5, 4]
    for batch in tokens:
        assert batch["labels"].tolist() == batch["noted"].tolist() == batch.indices.tolist()
        for row, label in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
            wanted = list(range(label % 5 + 1))
            assert row == wanted + [0] * (len(row) - len(wanted))
    assert [each.index for batch in tokens for each in batch.errors] == [7]

    boxes, numbers = batches("boxes")[-1]
    assert [tuple(each.shape) for each in boxes] == [(19, 4), (20, 4)]
    assert numbers.tolist() == [18, 19]

    scenes = batches("scenes")
    for batch in scenes:
        rows = batch.indices.tolist()
        assert batch["image"].shape == (len(rows), 3, 4, 6)
        assert batch["image"][:, 0, 0, 0].tolist() == rows
        assert batch["__length__"].tolist() == [row % 3 + 1 for row in rows]
        assert batch["mask"].sum(1).tolist() == [row % 3 + 1 for row in rows]
        assert batch["ids"].shape == (len(rows), 4)
        assert [tuple(boxes.shape) for boxes in batch["boxes"]] == [(row, 4) for row in rows]
    with site.loader(
        stream="scenes", source=site.folder / source, fields=["boxes", "__index__"]
    ) as chosen:
        assert [list(batch) for batch in chosen] == [["boxes", "__index__"]] * 3

    for batch in batches("odd"):
        rows = batch.indices.tolist()
        assert len(batch) == 4096
        assert batch["none"].shape == (2, 0, 3)
        assert batch["scalar"].tolist() == rows
        assert batch["text"] == ["\udc80\0\U0001f600" * row for row in rows]
        assert batch["f4092"].tolist() == [4092 + row for row in rows]


def test_torchs_default_collate_works_as_it_is(site: Site) -> None:
    (site.folder / "mine.py").write_text(MODULE)
    site.config.write_text(CONFIG.replace("mine:detection", "torch.utils.data:default_collate"))
    images, labels, names = list(site.loader(stream="boxes", source=site.config, output="numpy"))[1]
    assert images[:, 0, 0].tolist() == labels.tolist() == [6, 7, 8, 9, 10, 11]
    assert names == ["6", "7", "8", "9", "10", "11"]
