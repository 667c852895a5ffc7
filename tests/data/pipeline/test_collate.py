from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from loaderd.data.pipeline.collate import batch_of
from loaderd.data.sample import BadValue


def test_arrays_tensors_numbers_and_lists_become_fields() -> None:
    batch, form = batch_of(
        {
            "a": np.ones((2, 3)),
            "t": torch.ones(2, 4),
            "n": 5,
            "ls": [1.5, 2],
            "b": (True, False),
            "s": ("x", "y"),
            "y": [b"1", b"2"],
        },
        "rgb",
    )
    assert form == "dict"
    assert {name: (value.dtype.str, value.shape) for name, value in batch.items() if isinstance(value, np.ndarray)} == {
        "a": ("<f8", (2, 3)), "t": ("<f4", (2, 4)), "n": ("<i8", ()), "ls": ("<f8", (2,)), "b.0": ("|b1", ()), "b.1": ("|b1", ()),
    }  # fmt: skip
    assert batch["s"] == ["x", "y"]
    assert batch["y"] == [b"1", b"2"]


def test_an_array_without_rows_is_allowed() -> None:
    assert batch_of({"boxes": np.zeros((0, 4), np.float32)}, "rgb")[0]["boxes"].shape == (0, 4)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "collate returned NoneType"),
        ([np.ones(2)], "collate returned list"),
        ({}, "no fields"),
        ({"x": [np.ones(2), np.ones(3)]}, "'x' is a list of ndarray"),
        ({"x": []}, "'x' is a list of nothing"),
        ({"x": "word"}, "single str"),
        ({"x": b"word"}, "single bytes"),
        ({"x": None}, "'x' is None"),
        ({"x": np.array([None])}, "dtype object"),
        ({"a.b": 1, "a": {"b": 2}}, "two fields are called 'a.b'"),
        ({"__index__": [1]}, "'__index__'"),
    ],
)
def test_what_a_batch_cannot_hold_names_the_field(value: Any, words: str) -> None:
    with pytest.raises(BadValue, match=words):
        batch_of(value, "rgb")
