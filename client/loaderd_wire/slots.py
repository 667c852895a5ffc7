"""Where things lie in a segment. A byte layout is declared here once; both sides derive every offset from it.

segment:  slot 0 | slot 1 | ...            each slot_bytes long, a multiple of PAGE
slot:     indices int64[rows] | field 0 [rows, *shape] | field 1 ... | tail       each part aligned to ALIGN
tail:     `tail_row_bytes` for every row; what is written there is described by the batch's `Chunk`s.

A chunk covers rows [first, last) of the batch and is one msgpack map written by one job:
    {"keys": [str, ...]}                                     only where keys are stored names (Welcome.keys == "stored")
    {"text": {field: [str | bytes, ...]}}                    only where the stream has text or bytes fields
    {"arrays": {field: [dtype, [shape...], offset]}}         only in a collated stream; offset in bytes from the slot's begin
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

ALIGN = 64
PAGE = 4096
TAIL_ROW_BYTES = 64
MAX_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of a sample. `shape` is one row's. kind: "array" (dtype is numpy's str, as "|u1"), "text" or "bytes".

    `image`: an HWC picture (uint8 or float32), whose torch batch is shown as its NCHW view (channels_last).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: str = "array"
    image: bool = False

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * itemsize(self.dtype) if self.kind == "array" else 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows [first, last) of a batch have their variable parts at [offset, offset + size) of the slot."""

    first: int
    last: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """Offsets in bytes from the slot's begin. `offsets` has one entry a field, in the order of `fields`; text and bytes take no room there.

    In a collated stream `fields` is empty and `body_bytes` is what a batch's arrays may take together.
    """

    rows: int
    fields: tuple[FieldSpec, ...]
    offsets: tuple[int, ...]
    body_offset: int
    body_bytes: int
    tail_offset: int
    tail_bytes: int
    slot_bytes: int

    def tail_of(self, first: int, last: int) -> tuple[int, int]:
        """(offset, capacity in bytes) of the tail that belongs to rows [first, last)."""
        each = self.tail_bytes // self.rows
        return self.tail_offset + first * each, (last - first) * each


def itemsize(dtype: str) -> int:
    """Bytes of one element of a numpy dtype string such as "<f4" or "|u1". Raises ValueError for anything but plain numbers."""
    if len(dtype) < 3 or dtype[0] not in "<|" or dtype[1] not in "biufc" or not (dtype.isascii() and dtype[2:].isdigit()):
        raise ValueError(f"dtype {dtype!r} is not a plain little-endian number")
    size = int(dtype[2:])
    if size not in (1, 2, 4, 8, 16):
        raise ValueError(f"dtype {dtype!r} has an impossible size")
    return size


def align(n: int, to: int = ALIGN) -> int:
    return -(-n // to) * to


def slot_layout(fields: Iterable[FieldSpec], rows: int, *, tail_row_bytes: int = TAIL_ROW_BYTES, body_bytes: int = 0) -> SlotLayout:
    """The layout of one slot for `rows` rows; `body_bytes` only for a collated stream (then `fields` is empty)."""
    if not 1 <= rows <= MAX_ROWS:
        raise ValueError(f"rows must be in [1, {MAX_ROWS}], not {rows}")
    chosen = tuple(fields)
    at = align(rows * 8)
    body = at
    offsets: list[int] = []
    for field in chosen:
        offsets.append(at)
        at += align(field.row_bytes * rows)
    at += align(body_bytes)
    tail = align(tail_row_bytes, 8) * rows
    return SlotLayout(rows, chosen, tuple(offsets), body, body_bytes, at, tail, align(at + tail, PAGE))
