"""What is shown of a batch is bounded, whatever its fields are."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any

import pytest

from loaderd.server.page.batch_rows import PICTURES, VALUES, some_rows
from loaderd_wire.messages import Chunk, Descriptor, Segment
from loaderd_wire.packing import packed
from loaderd_wire.slots import FieldSpec, slot_layout

ROWS = 16


def shown_of(fields: tuple[FieldSpec, ...], tail: bytes = b"", chunks: int = 0) -> dict[str, Any]:
    """Rows of a batch full of zeros, each of whose chunks has this tail."""
    layout = slot_layout(fields, ROWS, tail_row_bytes=1 + len(tail))
    segment = Segment(3, 1, layout.slot_bytes, 1 + len(tail), 0)
    session: Any = SimpleNamespace(
        hello=SimpleNamespace(stream="train"),
        admitted=SimpleNamespace(fields=fields, shape=SimpleNamespace(batch_size=ROWS)),
        stream=SimpleNamespace(facts=SimpleNamespace(collated=False, classes=())),
    )
    far = layout.slot_bytes
    parts = tuple(Chunk(row, row + 1, far + row, len(tail)) for row in range(chunks))
    told = Descriptor(7, 1, 0, 2, 40, ROWS, 3, 0, 1, ROWS, False, parts, ())
    return some_rows(session, told, segment, lambda at, size: tail if at >= far else bytes(size))


@pytest.mark.parametrize("count", [1, 4, 16, 200])
@pytest.mark.parametrize(
    "spec",
    [
        FieldSpec("", "<f4", (3, 224, 224)),
        FieldSpec("", "|u1", (64, 64, 3), image=True),
        FieldSpec("", "|u1", (2000, 2000, 3), image=True),
    ],
)
def test_pictures_of_many_fields_are_few_and_small(spec: FieldSpec, count: int) -> None:
    fields = tuple(
        FieldSpec(f"x{n}", spec.dtype, spec.shape, image=spec.image) for n in range(count)
    )
    shown = shown_of(fields)
    pictures = [each["pictures"] for each in shown["samples"]]
    assert all(len(each) == min(count, PICTURES) for each in pictures)
    pixels = [len(base64.b64decode(one["pixels"])) for each in pictures for one in each.values()]
    assert sum(pixels) < 450_000
    assert min(one["width"] for one in pictures[0].values()) >= 12
    assert shown["left_out"] == max(0, count - PICTURES - VALUES)


def test_of_many_numbers_and_texts_the_first_are_shown_and_the_others_counted() -> None:
    numbers = tuple(FieldSpec(f"n{n}", "<i8", ()) for n in range(VALUES - 2))
    words = tuple(FieldSpec(f"t{n}", "", (), "text") for n in range(7))
    tail = packed({"text": {f"t{n}": ["hello"] for n in range(7)}})
    shown = shown_of(numbers + words, tail, chunks=8)
    assert shown["left_out"] == 5
    assert list(shown["samples"][7]["values"]) == [spec.name for spec in (*numbers, *words[:2])]


def test_of_long_tails_so_much_is_read_as_there_is_time_for() -> None:
    word = (FieldSpec("t", "", (), "text"),)
    tail = packed({"text": {"t": ["x" * 300_000]}})
    shown = shown_of(word, tail, chunks=8)
    assert ["t" in each["values"] for each in shown["samples"]] == [True] * 3 + [False] * 5
