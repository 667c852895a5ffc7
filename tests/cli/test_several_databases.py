"""Several databases as one stream, from the config to the trainer."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderd.data.lmdb.file_facts import read_facts
from loaderd.data.sample import Sample
from loaderd_client import Loader, SampleError, StreamChangedError
from loaderd_testing.cli_harness import Place
from loaderd_testing.sample_builders import write_own

CODE = """
def no_five(sample, rng):
    if sample["label"] == 5:
        raise ValueError("no five")
    return sample
"""


def database(folder: Path, name: str, numbers: range) -> Path:
    write_own(folder / name, [Sample({"label": np.array(n, np.int64)}) for n in numbers])
    return folder / name


@pytest.fixture
def parts(place: Place) -> list[Path]:
    """b.lmdb with 0 to 7, and a0.lmdb and a1.lmdb with 8 to 15 and 16 to 23, in a config."""
    made = [
        database(place.folder, name, range(first, first + 8))
        for name, first in (("b.lmdb", 0), ("a0.lmdb", 8), ("a1.lmdb", 16))
    ]
    (place.folder / "config.toml").write_text(
        '[workers]\nnum_workers = 2\n[streams.train]\nlmdb = ["b.lmdb", "a*.lmdb"]\nbatch_size = 4\n'
        "shuffle = true\n"
    )
    return made


def loader(place: Place) -> Loader[Any]:
    return Loader(
        str(place.folder / "config.toml"),
        stream="train",
        output="numpy",
        fields=["label", "__part__"],
    )


def test_a_batch_says_where_each_sample_comes_from(place: Place, parts: list[Path]) -> None:
    with loader(place) as batches:
        rows = [
            (label, part)
            for batch in batches
            for label, part in zip(batch["label"].tolist(), batch["__part__"], strict=True)
        ]
    assert sorted(rows) == [(n, str(parts[n // 8])) for n in range(24)]


def test_a_state_goes_on_only_with_the_same_databases(place: Place, parts: list[Path]) -> None:
    with loader(place) as batches:
        next(iter(batches))
        state = batches.state_dict()
    os.replace(database(place.folder, "new", range(9)), parts[0])
    os.replace(database(place.folder, "new", range(9, 16)), parts[1])  # 24 samples, as before
    with loader(place) as batches:
        batches.load_state_dict(state)
        with pytest.raises(ValueError, match="belongs to another order of samples: data was"):
            next(iter(batches))


def test_a_database_that_is_replaced_ends_the_stream_by_its_name(
    place: Place, parts: list[Path]
) -> None:
    with loader(place) as batches:
        passing = iter(batches)
        next(passing)
        for number in range(3):
            os.replace(database(place.folder, "new", range(40, 48)), parts[number])
        with pytest.raises(StreamChangedError, match=r"[ab]\d?\.lmdb: was replaced"):
            sum(len(list(batches)) for _ in range(100))


def test_a_bad_sample_is_told_with_its_database(place: Place, parts: list[Path]) -> None:
    (place.folder / "mine.py").write_text(CODE)
    with open(place.folder / "config.toml", "a", encoding="utf-8") as file:
        file.write("[[streams.train.transforms]]\ncall = 'mine:no_five'\n")
    with loader(place) as batches, pytest.raises(SampleError, match=rf"{parts[0]}: no five"):
        list(batches)
    checked = place.cli("check", "config.toml", "--all", "--bad", "bad.jsonl", code=1)
    assert "every page is sound" in checked.stdout
    (line,) = (place.folder / "bad.jsonl").read_text().splitlines()
    assert json.loads(line)["message"] == f"{parts[0]}: no five"


def test_preview_says_where_each_sample_comes_from(place: Place, parts: list[Path]) -> None:
    shown = json.loads(place.cli("preview", "config.toml", "--json").stdout)
    assert {row["part"] for row in shown["rows"]} <= {str(path) for path in parts}
    assert all(row["part"] == str(parts[row["index"] // 8]) for row in shown["rows"])


def test_a_damaged_part_is_named_before_anything_is_opened(place: Place, parts: list[Path]) -> None:
    with open(parts[1], "r+b") as file:
        facts = read_facts(file.fileno(), "")
        file.seek(facts.root * facts.page)
        file.write(bytes(facts.page))
    checked = place.cli("check", "config.toml", "--all", code=1)
    assert f"DAMAGED   {parts[1]}: " in checked.stdout


def test_a_pattern_that_finds_nothing_is_one_clear_line(place: Place, parts: list[Path]) -> None:
    (place.folder / "config.toml").write_text('[streams.train]\nlmdb = ["b.lmdb", "c*.lmdb"]\n')
    done = place.cli("check", "config.toml", code=3)
    assert "c*.lmdb: there is no file or folder of this pattern" in done.stderr
    assert "Traceback" not in done.stderr
