"""What a stream's settings select, and the order that follows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderd.config.stream import StreamConfig
from loaderd.core.order import Order, StreamOrder
from loaderd.data.errors import SourceError
from loaderd.data.sample import Sample
from loaderd.data.selection.select import select
from loaderd.data.selection.selection import ALL
from loaderd.data.stream_order import once, stream_order
from loaderd_testing.named_samples import Named

NAMES = [f"p{n % 10}_{n}" for n in range(50)]


class Facts:
    """What was found of a stream."""

    def __init__(self, plan: StreamConfig) -> None:
        source = Named(NAMES, [int(n < 5) for n in range(50)])
        self.total, self.selection, self.sources = source.total, select(plan, source), ()


def order(**words: Any) -> StreamOrder:
    plan = StreamConfig("train", lmdb="/x", **words)
    return stream_order(plan, Facts(plan))


def epoch(made: StreamOrder) -> list[int]:
    return made.indices(0, 0, np.arange(made.samples)).tolist()


@pytest.fixture
def keys(tmp_path: Path) -> str:
    """A file that names the samples 9, 8 ... 0."""
    path = tmp_path / "keys.txt"
    path.write_text("".join(f"{NAMES[n]}\n" for n in reversed(range(10))))
    return str(path)


def test_nothing_is_selected_where_nothing_is_said() -> None:
    assert select(StreamConfig("train", lmdb="/x", repeat=2), Named(NAMES)) == ALL
    assert order(repeat=2).samples == 100


def test_order_of_a_file_of_keys_is_the_stored_order(keys: str) -> None:
    assert epoch(order(keys=keys)) == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert epoch(order(keys=keys, split="20%:50%", split_by="stored")) == [7, 6, 5]
    assert sorted(epoch(order(keys=keys, shuffle=1, repeat=2))) == sorted([*range(10)] * 2)


def test_split_by_key_is_of_the_samples_that_a_file_names(keys: str) -> None:
    words = {"keys": keys, "split_by": "key", "group": "^(.*)_"}
    sides = [epoch(order(split=split, **words)) for split in (":50%", "50%:")]
    assert all(sides)
    assert sorted(sides[0] + sides[1]) == list(range(10))
    assert sides[0] == sorted(sides[0], reverse=True)


@pytest.mark.parametrize("split_by", ["random", "stored"])
def test_weight_of_a_sample_stays_its_own_in_a_split(tmp_path: Path, split_by: str) -> None:
    np.save(tmp_path / "w.npy", np.arange(50) % 7 == 0)
    made = order(
        weights=str(tmp_path / "w.npy"), split="0%:60%", split_by=split_by, repeat=10, shuffle=1
    )
    part = set(epoch(Order(50, "0%:60%", split_by)))
    assert set(epoch(made)) == {n for n in part if n % 7 == 0}
    assert made.samples == 300


def test_weights_of_listed_samples_are_in_the_order_of_the_list(tmp_path: Path, keys: str) -> None:
    np.save(tmp_path / "w.npy", [1, 0, 0, 0, 0, 0, 0, 0, 0, 1])
    assert set(epoch(order(keys=keys, weights=str(tmp_path / "w.npy"), repeat=4))) == {9, 0}


def test_balanced_classes_come_equally_often() -> None:
    drawn = epoch(order(weights="balanced", repeat=40))
    rare = sum(index < 5 for index in drawn)
    assert abs(rare - 1000) < 5 * 500**0.5


def test_once_is_every_sample_that_could_be_drawn(keys: str) -> None:
    plan = StreamConfig("train", lmdb="/x", keys=keys, weights="balanced", repeat=3, shuffle=1)
    assert epoch(stream_order(once(plan), Facts(plan))) == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]


def test_weights_that_draw_nothing_name_their_file(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.zeros(50))
    with pytest.raises(SourceError, match=r"w\.npy: all 50 weights are 0"):
        order(weights=str(tmp_path / "w.npy"))


@pytest.mark.parametrize("word", ["keys", "weights"])
def test_file_that_is_not_there_is_named(word: str) -> None:
    with pytest.raises(SourceError, match="/nowhere: No such file"):
        order(**{word: "/nowhere"})


def test_edited_replaced_and_lost_files_are_noticed(tmp_path: Path, keys: str) -> None:
    np.save(tmp_path / "w.npy", np.ones(10))
    (tmp_path / "classes.txt").write_text("a")
    words: dict[str, Any] = {
        "keys": keys,
        "weights": str(tmp_path / "w.npy"),
        "classes": str(tmp_path / "classes.txt"),
    }
    for path in words.values():
        found = Facts(StreamConfig("train", lmdb="/x", **words)).selection
        assert not found.files_changed()
        old = Path(path).read_bytes()
        Path(path).write_bytes(old + b" ")
        assert found.files_changed()
        Path(path).unlink()
        assert found.files_changed()
        Path(path).write_bytes(old)
    assert select(StreamConfig("train", lmdb="/x", weights="balanced"), Named(NAMES)).files == ()


class Lists(Named):
    """A database whose samples have a list, which counts how often one is read."""

    identity, state = "some", "file"

    def __init__(self) -> None:
        super().__init__(NAMES)
        self.reads = 0

    def read(self, index: int) -> Sample:
        self.reads += 1
        return Sample({"x": np.zeros(index), "label": np.int64(1)})


@pytest.mark.parametrize(
    "words",
    [
        {"pad": {"x": {"value": 0, "multiple": 1}}, "ragged": ("y",)},
        {"collate": "mine:batch"},
        {"mode": "gray"},
        {"classes": __file__},
    ],
)
def test_lengths_are_read_anew_where_a_setting_changes_what_a_sample_is(
    words: dict[str, Any],
) -> None:
    source = Lists()
    first = StreamConfig("train", lmdb="/x", bucket_by="x", pad={"x": {"value": 0, "multiple": 1}})
    for plan, reads in ((first, 50), (first, 50), (replace(first, **words), 100)):
        select(plan, source)
        assert source.reads == reads
