"""Where things lie in a segment. Both sides take every offset from here.

segment: slot 0 | slot 1 | ...      each `slot_bytes` long, a multiple of PAGE
slot:    indices int64[rows] | field 0 [rows, *shape] | field 1 ... | tail      each aligned to
ALIGN
tail:    `tail_row_bytes` for each row; the `Chunk`s of the batch say what lies there

A chunk covers rows [first, last) of the batch. It is one msgpack map, written by one job:
    {"keys": [str, ...]}                               only if keys are stored (Welcome.keys)
    {"text": {field: [str | bytes, ...]}}              only for text and bytes fields
    {"arrays": {field: [dtype, [shape...], offset]}}   only in a collated stream; the offset is in
                                                       bytes from the begin of the slot. A field of
                                                       kind "list" has a list of such triples
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from loaderd_wire.limits import MAX_ROWS

ALIGN = 64
PAGE = 4096
TAIL_ROW_BYTES = 64


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of a sample.

    Attributes:
        name: Name of the field.
        dtype: The dtype as numpy writes it, such as "|u1".
        shape: Shape of one row.
        kind: "array", "text" or "bytes"; in a collated stream also "list", of arrays.
        image: It is an image, height x width x channels, uint8 or float32. As a torch tensor it is
            shown as batch x channels x height x width ("channels_last").
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: str = "array"
    image: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of one row; 0 unless it is an array."""
        return math.prod(self.shape) * itemsize(self.dtype) if self.kind == "array" else 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """The variable parts of some rows of a batch.

    Attributes:
        first: First row.
        last: The row behind the last one.
        offset: Byte of the slot at which they begin.
        size: Their bytes.
    """

    first: int
    last: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """The layout of a slot. Offsets are in bytes from the begin of the slot.

    Attributes:
        rows: Rows that fit into it.
        fields: The fields; none in a collated stream.
        offsets: Where each field begins. A field that is no array takes no bytes.
        body_offset: Where the first field, or the body of a collated batch, begins.
        body_bytes: In a collated stream the bytes that the arrays of a batch may take together.
        tail_offset: Where the tail begins.
        tail_bytes: Bytes of the tail.
        slot_bytes: Bytes of the slot.
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
        """(offset, bytes) of the part of the tail that belongs to rows [first, last)."""
        each = self.tail_bytes // self.rows
        return self.tail_offset + first * each, (last - first) * each


def itemsize(dtype: str) -> int:
    """Bytes of one element of a dtype such as "<f4" or "|u1".

    Raises:
        ValueError: It is anything but plain little-endian numbers.
    """
    if (
        len(dtype) < 3
        or dtype[0] not in "<|"
        or dtype[1] not in "biufc"
        or not (dtype.isascii() and dtype[2:].isdigit())
    ):
        raise ValueError(f"dtype {dtype!r} is not a plain little-endian number")
    size = int(dtype[2:])
    if size not in (1, 2, 4, 8, 16):
        raise ValueError(f"dtype {dtype!r} has an impossible size")
    return size


def align(n: int, to: int = ALIGN) -> int:
    """The least multiple of `to` that is not below n."""
    return -(-n // to) * to


def slot_layout(
    fields: Iterable[FieldSpec],
    rows: int,
    *,
    tail_row_bytes: int = TAIL_ROW_BYTES,
    body_bytes: int = 0,
) -> SlotLayout:
    """Lay out a slot.

    Args:
        fields: The fields; none for a collated stream.
        rows: Rows that must fit into it, in [1, MAX_ROWS].
        tail_row_bytes: Bytes of tail for each row, rounded up to a multiple of 8.
        body_bytes: Only for a collated stream: what the arrays of a batch may take together.

    Raises:
        ValueError: `rows` is out of range.
    """
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
    return SlotLayout(
        rows, chosen, tuple(offsets), body, body_bytes, at, tail, align(at + tail, PAGE)
    )
