"""Weights from a file, and those with which classes come equally often."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from loaderd.data.errors import SourceError
from loaderd.data.sample import Sample
from loaderd.data.selection.weights import balanced, of_file
from loaderd_testing.named_samples import Named


def stored(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_weights_are_in_the_order_of_the_dataset_or_of_the_split() -> None:
    chosen = np.array([3, 0])
    assert of_file("w.npy", stored(np.arange(4)), 4, chosen).tolist() == [3.0, 0.0]
    assert of_file("w.npy", stored(np.array([5, 6], np.float32)), 4, chosen).tolist() == [5.0, 6.0]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (stored(np.ones(3)), "has 3 weights: write one for each of the 4 samples, or for each of"),
        (stored(np.ones((4, 1))), r"holds float64, shape \(4, 1\): weights are one row"),
        (stored(np.array(["a"] * 4)), "holds <U1, shape"),
        (b"no array", "is not an array of numbers"),
        (b"", "is not an array of numbers"),
        (stored(np.array([{}] * 4, object)), "is not an array of numbers"),
        (b"PK\x03\x04 no archive", "is not an array of numbers"),
        (stored(np.ones(4)).replace(b"(4,), }", b"(4,)   "), "is not an array of numbers"),
        (
            stored(np.ones(4)).replace(b"(4,), }           ", b"(999999999999,), }"),
            "is not an array of numbers",
        ),
    ],
)
def test_file_that_holds_no_weights_is_named(data: bytes, text: str) -> None:
    with pytest.raises(SourceError, match=f"^w.npy: {text}"):
        of_file("w.npy", data, 4, np.array([3, 0]))


def of_labels(labels: list[object], *, skipping: bool = False) -> tuple[list[float], list[str]]:
    source = Named([str(n) for n in range(len(labels))], labels)
    weights, notes = balanced(source, np.arange(len(labels)), lambda count: None, skipping=skipping)
    return weights.tolist(), list(notes)


def test_each_class_has_the_same_weight_altogether() -> None:
    assert of_labels([5, 5, 5, 5, 9, 0, 0]) == ([0.25] * 4 + [1.0, 0.5, 0.5], [])
    assert of_labels(["cat", "dog", "cat"]) == ([0.5, 1.0, 0.5], [])


def test_only_whole_number_of_a_sample_is_its_label() -> None:
    class Pairs(Named):
        def read(self, index: int) -> Sample:
            return Sample({"0": np.zeros(3), "1": np.int64(index % 2)})

    weights, _ = balanced(Pairs(["a", "b", "c"]), np.arange(3), lambda n: None, skipping=False)
    assert weights.tolist() == [0.5, 1.0, 0.5]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"0": np.zeros(3)}, "sample 'a': its class is not known: .* none is a whole number: '0'"),
        ({"0": np.int64(1), "1": np.int64(2)}, "several are whole numbers: '0' and '1'"),
    ],
)
def test_sample_whose_label_is_not_known_is_refused(fields: dict[str, object], text: str) -> None:
    class Others(Named):
        def read(self, index: int) -> Sample:
            return Sample(fields)

    with pytest.raises(SourceError, match=text):
        balanced(Others(["a"]), np.arange(1), lambda count: None, skipping=False)


def test_sample_without_a_label_ends_the_opening_or_is_never_drawn() -> None:
    labels: list[object] = [1, ValueError("torn"), 1, np.zeros(2)]
    with pytest.raises(SourceError, match="needs every label: sample '1': torn"):
        of_labels(labels)
    with pytest.raises(SourceError, match="no sample has one: sample '0': torn"):
        of_labels([ValueError("torn")], skipping=True)
    weights, notes = of_labels(labels, skipping=True)
    assert weights == [0.5, 0.0, 0.5, 0.0]
    assert "2 samples have no label" in notes[0]
    assert "the first is sample '1': torn" in notes[0]


def test_every_label_that_is_read_shows_that_the_opening_goes_on() -> None:
    ticks: list[int] = []
    balanced(Named(["a", "b", "c"]), np.arange(3), ticks.append, skipping=False)
    assert len(ticks) == 3


def test_labels_that_a_dataset_lists_are_not_read_from_its_samples() -> None:
    source = Named(["a", "b", "c"], [ValueError("read")] * 3)
    source.targets = [7, 9, 7]
    weights, notes = balanced(source, np.array([2, 1, 0]), lambda count: None, skipping=False)
    assert (weights.tolist(), notes) == ([0.5, 1.0, 0.5], ())
