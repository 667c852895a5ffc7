from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loaderd.data.sample import BadValue
from loaderd.data.values.fields import fields_of, plain
from loaderd_testing.foreign_databases import JPEG


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((JPEG, 3), {"image", "label"}),
        ((np.frombuffer(JPEG, np.uint8), np.int64(3)), {"image", "label"}),
        ((JPEG, "cat"), {"0", "1"}),
        ((1.5, "a", None), {"0", "1", "2"}),
        ({"a": 1, b"b": 2, 7: 3}, {"a", "b", "7"}),
        (JPEG, {"image"}),
        (b"\x00", {"data"}),
        ("text", {"text"}),
        ([1, 2, 3], {"array"}),
        (np.zeros(3), {"array"}),
    ],
)
def test_fields_have_names_by_what_they_are(value: Any, expected: set[str]) -> None:
    assert set(fields_of(value, ())) == expected


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        ([1, 2], (2,)),
        ([1, 2.5], (2,)),
        ([True, False], (2,)),
        ([[1, 2], [3, 4], [5, 6]], (3, 2)),
        ([[[1], [2]], [[3], [4]]], (2, 2, 1)),
        ([], None),
        ([1, True], None),
        ([1, None], None),
        ([1 << 70], None),
        (["a"], None),
        ([[1, 2], [3]], None),
        ([[1, 2], [3, "a"]], None),
        ([[[1], [2]], [[3], [4, 5]]], None),
        ([[[1, 2]], [[3], [4]]], None),
        ([[1], [[2]]], None),
    ],
)
def test_lists_of_numbers_of_one_shape_are_arrays_and_others_stay_lists(
    value: Any, shape: Any
) -> None:
    found = plain(value)
    assert found.shape == shape if shape else isinstance(found, list)


def test_what_is_very_deep_is_a_bad_value() -> None:
    deep: Any = [1]
    for _ in range(100):
        deep = [deep, "a"]
    with pytest.raises(BadValue, match="more than 64 deep"):
        fields_of({"x": deep}, ())
    wide: Any = [1]
    for _ in range(20):
        wide = [wide]
    assert isinstance(plain(wide), list)
