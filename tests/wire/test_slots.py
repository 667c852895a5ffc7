"""Where things lie in a slot: nothing overlaps, all is aligned, the layout is frozen."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderd_wire.slots import (
    ALIGN,
    MAX_ROWS,
    PAGE,
    FieldSpec,
    SlotLayout,
    align,
    itemsize,
    slot_layout,
)

specs = st.builds(
    FieldSpec,
    name=st.text(max_size=5),
    dtype=st.sampled_from(["|u1", "<i8", "<f4", "|b1", "<c16", "<f2"]),
    shape=st.lists(st.integers(0, 7), max_size=3).map(tuple),
    kind=st.sampled_from(["array", "array", "text", "bytes"]),
)


@given(st.lists(specs, max_size=6), st.integers(1, 40), st.integers(0, 200))
def test_nothing_in_a_slot_overlaps_and_every_part_is_aligned(
    fields: list[FieldSpec], rows: int, tail_row_bytes: int
) -> None:
    layout = slot_layout(fields, rows, tail_row_bytes=tail_row_bytes)
    parts = [(0, rows * 8)]
    parts += [
        (offset, spec.row_bytes * rows)
        for offset, spec in zip(layout.offsets, layout.fields, strict=True)
    ]
    parts += [(layout.tail_offset, layout.tail_bytes)]
    for (begin, size), (following, _) in zip(
        parts, [*parts[1:], (layout.slot_bytes, 0)], strict=True
    ):
        assert begin + size <= following
    assert all(begin % ALIGN == 0 for begin, _ in parts)
    assert layout.slot_bytes % PAGE == 0
    assert layout.tail_bytes >= rows * tail_row_bytes


@given(st.integers(1, 40), st.integers(0, 200), st.data())
def test_the_tails_of_two_jobs_share_no_byte(
    rows: int, tail_row_bytes: int, data: st.DataObject
) -> None:
    layout = slot_layout([], rows, tail_row_bytes=tail_row_bytes)
    cuts = [0, *sorted(data.draw(st.sets(st.integers(1, rows)))), rows]
    at = layout.tail_offset
    for first, last in itertools.pairwise(cuts):
        offset, capacity = layout.tail_of(first, last)
        assert offset == at
        assert capacity >= (last - first) * tail_row_bytes
        at = offset + capacity
    assert at <= layout.tail_offset + layout.tail_bytes <= layout.slot_bytes


def test_the_layout_has_not_changed_since_it_was_frozen() -> None:
    image = FieldSpec("image", "|u1", (224, 224, 3), image=True)
    label = FieldSpec("label", "<i8", ())
    caption = FieldSpec("caption", "", (), kind="text")
    assert (image.row_bytes, label.row_bytes, caption.row_bytes) == (150528, 8, 0)
    assert slot_layout((image, label, caption), 5) == SlotLayout(
        5, (image, label, caption), (64, 752704, 752768), 64, 0, 752768, 320, 753664
    )
    assert slot_layout((), 3, tail_row_bytes=100, body_bytes=1000) == SlotLayout(
        3, (), (), 64, 1000, 1088, 312, 4096
    )


def test_a_layout_has_room_for_what_numpy_puts_there() -> None:
    fields = [
        FieldSpec("a", "<f4", (3, 2)),
        FieldSpec("b", "|b1", ()),
        FieldSpec("c", "<c16", (5,)),
    ]
    layout = slot_layout(fields, 7)
    slot = bytearray(layout.slot_bytes)
    views = [
        np.frombuffer(slot, spec.dtype, 7 * int(np.prod(spec.shape)), offset).reshape(
            7, *spec.shape
        )
        for spec, offset in zip(fields, layout.offsets, strict=True)
    ]
    for number, view in enumerate(views, 1):
        view[...] = number % 2
    assert [
        view.flat[0] == view.flat[-1] == number % 2 for number, view in enumerate(views, 1)
    ] == [True] * 3
    assert not any(slot[layout.tail_offset :])


@pytest.mark.parametrize("dtype", ["|u1", "|b1", "<i2", "<f2", "<u4", "<f8", "<c8", "<c16", "<f16"])
def test_plain_numbers_have_a_size(dtype: str) -> None:
    assert itemsize(dtype) == np.dtype(dtype).itemsize


@pytest.mark.parametrize(
    "dtype",
    [
        "",
        "u1",
        ">f4",
        "=f4",
        "|O8",
        "<U4",
        "|S3",
        "<M8[ns]",
        "<f3",
        "<f32",
        "<f",
        "|V8",
        "<i-8",
        "<i\uff18",
    ],
)
def test_anything_but_a_plain_little_endian_number_is_refused(dtype: str) -> None:
    with pytest.raises(
        ValueError, match=r"^dtype .* (is not a plain little-endian number|has an impossible size)$"
    ):
        itemsize(dtype)


@pytest.mark.parametrize("rows", [0, -1, MAX_ROWS + 1])
def test_an_impossible_number_of_rows_is_refused(rows: int) -> None:
    with pytest.raises(ValueError, match=rf"^rows must be in \[1, {MAX_ROWS}\], not {rows}$"):
        slot_layout([], rows)


def test_align_rounds_up_to_the_next_multiple() -> None:
    assert [align(n) for n in (0, 1, 63, 64, 65)] == [0, 64, 64, 64, 128]
    assert align(9, 8) == 16
