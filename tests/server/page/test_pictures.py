"""Rows of a slot made small: the pixels that are shown are those that lie there."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from loaderd.server.page.pictures import SIDE, Placed, described, number, picture, texts, thinned
from loaderd_wire.slots import FieldSpec


def read_of(data: bytes) -> Any:
    def read(offset: int, size: int) -> bytes:
        assert offset >= 0
        assert offset + size <= len(data)
        return data[offset : offset + size]

    return read


def shown_of(placed: Placed, row: int, data: bytes) -> dict[str, Any]:
    """Its picture, with time enough."""
    found = thinned(placed, 1 << 40)
    assert found is not None
    return picture(found, row, read_of(data))


def spread(values: np.ndarray) -> np.ndarray:
    """As floats are shown."""
    whole = values.astype(np.float64)
    low, high = whole.min(), whole.max()
    return ((whole - low) * (255 / (high - low))).astype(np.uint8)


def pixels(shown: dict[str, Any]) -> np.ndarray:
    """height x width x channels."""
    flat = np.frombuffer(base64.b64decode(shown["pixels"]), "|u1")
    return flat.reshape(shown["height"], shown["channels"], shown["width"]).transpose(0, 2, 1)


@pytest.mark.parametrize("dtype", ["|u1", "<f4"])
@pytest.mark.parametrize("shape", [(20, 30, 3), (300, 200, 1), (5, 500, 4)])
def test_an_image_is_shown_by_every_nth_pixel(dtype: str, shape: tuple[int, int, int]) -> None:
    rows = np.random.default_rng(0).integers(0, 255, (3, *shape)).astype(dtype)
    placed = Placed(FieldSpec("image", dtype, shape, image=True), 64)
    shown = shown_of(placed, 2, bytes(64) + rows.tobytes())
    step = -(-max(shape[:2]) // SIDE)
    assert max(shown["height"], shown["width"]) <= SIDE
    expected = rows[2, ::step, ::step]
    np.testing.assert_array_equal(pixels(shown), expected if dtype == "|u1" else spread(expected))


def test_an_image_whose_channels_come_first_is_shown_alike() -> None:
    rows = np.random.default_rng(0).random((2, 3, 40, 60), np.float32)
    placed = Placed(FieldSpec("image", "<f4", (3, 40, 60)), 0)
    shown = shown_of(placed, 1, rows.tobytes())
    np.testing.assert_array_equal(pixels(shown), spread(rows[1].transpose(1, 2, 0)))


def test_numbers_that_are_not_finite_are_the_darkest_and_equal_ones_are_black() -> None:
    row = np.full((1, 8, 8), 2, np.float32)
    placed = Placed(FieldSpec("x", "<f4", row.shape), 0)
    assert not pixels(shown_of(placed, 0, row.tobytes())).any()
    row[0, 0] = [np.nan, np.inf, -np.inf, 3, 4, 2, 2, 2]
    shown = pixels(shown_of(placed, 0, row.tobytes()))
    assert shown[0, :, 0].tolist() == [0, 0, 0, 127, 255, 0, 0, 0]
    row[:] = np.nan
    assert not pixels(shown_of(placed, 0, row.tobytes())).any()


@pytest.mark.parametrize(
    "spec",
    [
        FieldSpec("x", "|u1", (224, 224, 3), image=True),
        FieldSpec("x", "<f4", (224, 224, 3), image=True),
        FieldSpec("x", "<f4", (3, 224, 224)),
        FieldSpec("x", "|u1", (8000, 8000, 3), image=True),
    ],
)
def test_with_less_time_a_picture_is_smaller_until_there_is_none(spec: FieldSpec) -> None:
    placed = Placed(spec, 0)
    sizes: list[int] = []
    for most_ns in (1 << 40, 300_000, 100_000, 30_000):
        shown = thinned(placed, most_ns)
        if shown is not None:
            assert shown.cost_ns <= most_ns
            sizes.append(-(-shown.width // shown.step))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1] >= 8
    assert thinned(placed, 1_000) is None


@pytest.mark.parametrize(
    "spec",
    [
        FieldSpec("x", "<f4", (128,)),
        FieldSpec("x", "<i8", (3, 40, 40)),
        FieldSpec("x", "|u1", (7, 40, 40)),
        FieldSpec("x", "|u1", (3, 40, 0)),
        FieldSpec("x", "|u1", (2, 1 << 20, 3), image=True),
    ],
)
def test_what_is_no_image_or_too_wide_is_no_picture(spec: FieldSpec) -> None:
    assert thinned(Placed(spec, 0), 1 << 40) is None


@pytest.mark.parametrize("dtype", ["|b1", "|i1", "<u2", "<i8", "<f2", "<f8"])
def test_a_number_is_the_one_of_its_row(dtype: str) -> None:
    rows = np.array([0, 1, 1], dtype)
    read = read_of(bytes(8) + rows.tobytes())
    placed = Placed(FieldSpec("label", dtype, ()), 8)
    assert [number(placed, row, read) for row in range(3)] == rows.tolist()
    assert number(Placed(FieldSpec("label", dtype, (1,)), 8), 0, read) is None


def test_complex_numbers_are_not_shown() -> None:
    assert number(Placed(FieldSpec("x", "<c8", ()), 0), 0, read_of(bytes(8))) is None


def test_arrays_of_a_collated_batch_are_found_by_their_description() -> None:
    chunks = [{"arrays": {"x": ["<f4", [5, 3], 640], "parts": [["<f4", [2], 0]]}}]
    spec = FieldSpec("x", "<f8", (9,))
    assert described(spec, chunks) == Placed(FieldSpec("x", "<f4", (3,)), 640)
    assert described(FieldSpec("parts", "<f4", ()), chunks) is None
    assert described(FieldSpec("other", "<f4", ()), chunks) is None


def test_texts_of_all_chunks_follow_each_other_and_bytes_are_counted() -> None:
    chunks = [{"keys": ["a", "b"], "text": {"t": ["x" * 500, b"1234"]}}, {"keys": ["c"]}]
    assert texts(chunks, "keys") == ["a", "b", "c"]
    assert texts(chunks, "text", "t") == ["x" * 200, "4 bytes"]
