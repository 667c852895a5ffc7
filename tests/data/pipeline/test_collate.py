from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

from loaderd.data.pipeline.collate import batch_of, fields_of, takes_rng
from loaderd.data.sample import MAX_DEPTH, MAX_FIELDS, BadValue
from loaderd_testing.sample_builders import Point


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


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
        "a": ("<f8", (2, 3)), "t": ("<f4", (2, 4)), "n": ("<i8", ()), "ls": ("<f8", (2,)), "b": ("|b1", (2,)),
    }  # fmt: skip
    assert batch["s"] == ["x", "y"]
    assert batch["y"] == [b"1", b"2"]


def test_an_array_without_rows_is_allowed() -> None:
    assert batch_of({"boxes": np.zeros((0, 4), np.float32)}, "rgb")[0]["boxes"].shape == (0, 4)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "collate returned NoneType"),
        (iter([np.ones(2)]), "collate returned list_iterator"),
        ({}, "no fields"),
        ({"x": [[1], [1, 2]]}, "'x' is a list of list"),
        ({"x": [{"a": 1}, {"b": 1}]}, "'x' is a list of dict"),
        ({"x": [np.ones(2), np.array([None])]}, "dtype object"),
        ({"x": []}, "'x' is a list of nothing"),
        ({"x": "word"}, "single str"),
        ({"x": b"word"}, "single bytes"),
        ({"x": None}, "'x' is None"),
        ({"x": np.array([None])}, "dtype object"),
        ({"a.b": 1, "a": {"b": 2}}, "two fields are called 'a.b'"),
        ({"__index__": [1]}, "'__index__'"),
        (
            nested(MAX_DEPTH + 1),
            f"a.a' is nested more than {MAX_DEPTH} deep",
        ),
        ({str(n): n for n in range(MAX_FIELDS + 1)}, f"more than {MAX_FIELDS:,} fields"),
    ],
)
def test_what_a_batch_cannot_hold_names_the_field(value: Any, words: str) -> None:
    with pytest.raises(BadValue, match=words):
        batch_of(value, "rgb")


def test_a_list_of_arrays_stays_a_list() -> None:
    boxes = (np.ones((2, 4)), torch.ones(3, 4))
    batch, _ = batch_of({"boxes": boxes, "same": [np.ones(2)] * 2}, "rgb")
    assert [array.shape for array in batch["boxes"]] == [(2, 4), (3, 4)]
    assert [spec.kind for spec in fields_of(batch, set())] == ["list", "list"]


def test_rows_of_mappings_are_a_list_for_each_of_their_names() -> None:
    targets = [{"boxes": np.ones((n, 4)), "labels": torch.ones(n)} for n in (1, 2)]
    batch, form = batch_of((torch.ones(2, 3), targets), "rgb")
    assert form == "tuple"
    assert {name: [len(array) for array in value] for name, value in batch.items()} == {
        "0": [3, 3], "1.boxes": [1, 2], "1.labels": [1, 2],
    }  # fmt: skip


def default(*samples: Any) -> tuple[dict[str, Any], str]:
    return batch_of(torch.utils.data.default_collate(list(samples)), "rgb")


def test_what_torchs_default_collate_returns_is_a_batch() -> None:
    image = np.zeros((2, 2, 3), np.uint8)
    batch, form = default((image, 1, "a"), (image, 2, "b"))
    assert form == "tuple"
    assert (batch["0"].shape, batch["1"].tolist(), batch["2"]) == ((2, 2, 2, 3), [1, 2], ["a", "b"])
    batch, form = default({"x": 1.5, "pair": (image, image)}, {"x": 2.5, "pair": (image, image)})
    assert form == "dict"
    assert (batch["x"].tolist(), [len(each) for each in batch["pair"]]) == ([1.5, 2.5], [2, 2])
    assert default(torch.ones(3), torch.ones(3))[0]["0"].shape == (2, 3)
    assert default("a", "b") == ({"0": ["a", "b"]}, "tuple")
    assert default(Point(1, 2.5), Point(3, 4.5))[0]["1"].tolist() == [2.5, 4.5]
    nested = default({"x": ((image, image), 1)}, {"x": ((image, image), 2)})[0]
    assert (len(nested["x.0"]), nested["x.1"].tolist()) == (2, [1, 2])


def test_a_callable_gets_a_generator_only_where_it_takes_one() -> None:
    def with_default(features: Any, return_tensors: Any = None) -> None: ...
    def by_name(samples: Any, *, rng: Any) -> None: ...
    def optional(samples: Any, rng: Any = None) -> None: ...
    def both(samples: Any, generator: Any) -> None: ...
    def any_number(*args: Any) -> None: ...

    for function, how in (
        (torch.utils.data.default_collate, ""),
        (with_default, ""),
        (by_name, "rng"),
        (optional, "second"),
        (both, "second"),
        (any_number, "second"),
        (functools.partial(both, generator=1), ""),
        (dict, ""),
    ):
        assert takes_rng(function) == how, function


def test_as_deep_and_as_many_as_may_be_are_taken() -> None:
    assert list(batch_of(nested(MAX_DEPTH), "rgb")[0]) == [".".join("a" * MAX_DEPTH)]
    assert len(batch_of({str(n): n for n in range(MAX_FIELDS)}, "rgb")[0]) == MAX_FIELDS
