"""The lengths of samples: read once, kept until the database changes, sorted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderd.core.bucket_plan import LengthClass
from loaderd.data.errors import SourceError
from loaderd.data.selection.lengths import ranked


class Samples:
    """A dataset of these values in field "x", which counts how often it is read."""

    identity = "some"

    def __init__(self, values: list[Any], state: str = "file") -> None:
        self.values, self.state, self.reads = values, state, 0

    def read(self, index: int) -> dict[str, Any]:
        self.reads += 1
        if isinstance(self.values[index], Exception):
            raise self.values[index]
        return {"x": self.values[index], "y": 1}

    def key(self, index: int) -> str:
        return f"key-{index}"


def of(samples: Samples, field: str = "x", *, lenient: bool = False, recipe: str = "stored") -> Any:
    indices = np.arange(len(samples.values), dtype=np.int64)
    return ranked(samples, indices, field, lambda count: None, lenient=lenient, recipe=recipe)


def test_samples_are_sorted_by_the_length_of_a_field_or_by_the_number_that_it_is() -> None:
    arrays = Samples([np.zeros(5), np.zeros((2, 9)), "abc", b"", [1, 2, 3, 4]])
    order, classes = of(arrays)
    assert order.tolist() == [3, 1, 2, 4, 0]
    assert classes == tuple(LengthClass(1, length) for length in (0, 2, 3, 4, 5))
    assert of(Samples([np.array(7), np.array(3)], "other"))[0].tolist() == [1, 0]


def test_lengths_are_read_once_and_anew_for_another_file_field_or_choice() -> None:
    samples = Samples([np.zeros(n) for n in (4, 1, 2)])
    first = of(samples)[0].tolist()
    assert of(samples)[0].tolist() == first == [1, 2, 0]
    assert samples.reads == 3
    samples.state = "touched"
    of(samples)
    assert samples.reads == 6
    ranked(samples, np.array([2, 0]), "x", lambda count: None, lenient=False, recipe="stored")
    assert samples.reads == 8


def test_lengths_are_read_anew_for_other_settings_of_the_layout_and_for_code_each_time() -> None:
    samples = Samples([np.zeros(n) for n in (4, 1)])
    for reads, recipe in enumerate(("float32", "float64", "", ""), 1):
        of(samples, recipe=recipe)
        assert samples.reads == 2 * reads
    of(samples, recipe="float32")
    assert samples.reads == 8


def test_lengths_are_kept_only_where_all_samples_were_read() -> None:
    samples = Samples([np.zeros(4), OSError("the disk is away"), np.zeros(2)])
    assert of(samples, lenient=True)[0].tolist() == [1, 2, 0]
    samples.values[1] = np.zeros(9)
    assert of(samples, lenient=True)[0].tolist() == [2, 0, 1]


def test_a_sample_that_was_passed_over_is_an_error_where_none_may_be() -> None:
    samples = Samples([np.zeros(4), OSError("torn page")])
    of(samples, lenient=True)
    with pytest.raises(SourceError, match="torn page"):
        of(samples)


def test_a_dataset_that_may_change_unseen_is_read_each_time() -> None:
    samples = Samples([np.zeros(2)], state="")
    of(samples)
    of(samples)
    assert samples.reads == 2


def test_a_damaged_table_is_read_anew(cache: Path) -> None:
    samples = Samples([np.zeros(2), np.zeros(1)])
    of(samples)
    (note,) = cache.rglob("*.lengths")
    note.write_text("no such table")
    assert of(samples)[0].tolist() == [1, 0]
    assert samples.reads == 4


@pytest.mark.parametrize(
    ("value", "field", "words"),
    [
        (np.zeros(3), "z", "samples have no such field; they have 'x', 'y'"),
        (np.array(1.5), "x", "sample 'key-0': "),
        (np.array(-2), "x", "sample 'key-0': -2 is no length"),
        (ValueError("torn"), "x", "sample 'key-0': torn"),
    ],
)
def test_a_sample_without_a_length_is_named(value: Any, field: str, words: str) -> None:
    with pytest.raises(SourceError, match=words):
        of(Samples([value]), field)


def test_a_sample_that_cannot_be_read_is_among_the_shortest_where_bad_ones_are_allowed() -> None:
    order, classes = of(Samples([np.zeros(2), ValueError("torn")]), lenient=True)
    assert order.tolist() == [1, 0]
    assert classes[0] == LengthClass(1, 0)
