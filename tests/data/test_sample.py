"""The short way to a sample is the long way's equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from loaderd.data import sample as module
from loaderd.data.sample import BadValue, Sample, flatten

GOOD: list[Any] = [
    {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": 3},
    {"x": np.float16(1) * np.ones(2, np.float16), "t": "text", "b": b"bytes", "f": 1.5},
    {"v": memoryview(b"abc"), "small": -(1 << 63), "large": (1 << 63) - 1},
    (np.zeros(3, np.complex64), 5),
    {"x": np.arange(8)[::2], "e": np.zeros((0, 3))},
    {1: np.zeros(2, bool), "z": 0},
]
LONG: list[Any] = [
    {"x": np.arange(3, dtype=">i4"), "y": 1},
    {"x": True},
    {"x": np.float32(2)},
    {"x": {"y": 1}},
    {"ü": 1},
    ([1, 2], 3),
]
BAD: list[Any] = [
    {"x": 1 << 63},
    {"x": np.array(["a"])},
    {"__key__": 1},
    {"x": None},
    {},
    (),
    {1: 1, "1": 2},
    {"x": np.zeros(2, "M8[s]")},
]


def named(value: Any) -> str:
    return "-".join(map(str, value)) if isinstance(value, dict) else f"tuple of {len(value)}"


def long_way(value: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Sample, str]:
    with monkeypatch.context() as patch:
        patch.setattr(module, "_flat", lambda value: None)
        return flatten(value, "RGB")


@pytest.mark.parametrize("value", GOOD + LONG, ids=named)
def test_both_ways_make_the_same_sample(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (short, form), (long, other) = flatten(value, "RGB"), long_way(value, monkeypatch)
    assert form == other
    assert list(short) == list(long)
    for name, one in short.items():
        assert type(one) is type(long[name])
        if isinstance(one, np.ndarray):
            assert one.dtype.str == long[name].dtype.str
            assert one.shape == long[name].shape
            np.testing.assert_array_equal(one, long[name])
        else:
            assert one == long[name]


@pytest.mark.parametrize("value", GOOD, ids=named)
def test_what_is_plain_takes_the_short_way(value: Any) -> None:
    assert module._flat(value) is not None


@pytest.mark.parametrize("value", BAD, ids=named)
def test_both_ways_refuse_the_same(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadValue) as short:
        flatten(value, "RGB")
    with pytest.raises(BadValue) as long:
        long_way(value, monkeypatch)
    assert str(short.value) == str(long.value)


@pytest.mark.parametrize(
    ("dtype", "bits"), [("bfloat16", "int16"), ("float8_e4m3fn", "uint8"), ("float8_e5m2", "uint8")]
)
def test_a_tensor_of_a_dtype_that_numpy_lacks_is_told_two_ways_out(dtype: str, bits: str) -> None:
    with pytest.raises(BadValue) as caught:
        flatten({"x": torch.ones(2).to(getattr(torch, dtype))}, "rgb")
    assert f"field 'x' is a tensor of torch.{dtype}, which a batch cannot hold" in str(caught.value)
    assert f"return x.float(); or x.view(torch.{bits}), and view it as torch.{dtype}" in str(
        caught.value
    )
