"""Some rows of a batch, for the page: pictures, numbers and texts, as they lie in its slot."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgpack

from loaderd.server.page.pictures import (
    ROWS,
    Placed,
    Read,
    Thinned,
    described,
    number,
    picture,
    texts,
    thinned,
)
from loaderd.server.registered_session import RegisteredSession
from loaderd_wire.messages import Chunk, Descriptor, Segment
from loaderd_wire.slots import slot_layout

PICTURES = 4  # of a row
VALUES = 24  # of a row, that are no pictures
PICTURES_NS = 4_000_000  # what the pictures of a batch may take, about
TAIL_BYTES = 1 << 20  # of a slot's tail, that are looked at

_unpackb: Callable[..., Any] = msgpack.unpackb


def some_rows(
    session: RegisteredSession, told: Descriptor, segment: Segment, read: Read
) -> dict[str, Any]:
    """The first rows of a batch.

    Args:
        session: Whose batch it is.
        told: The batch.
        segment: In which it lies.
        read: Reads in the batch's slot. The trainer may have written there.

    Returns:
        Where it is from, how many rows it has, its first rows, and the number of fields that are
        left out of them.
    """
    fields, facts = session.admitted.fields, session.stream.facts
    chunks = list(_chunks(told.chunks, read))
    if facts.collated:
        found = [described(spec, chunks) for spec in fields]
        placed = [each for each in found if each is not None]
    else:
        layout = slot_layout(
            fields,
            session.admitted.shape.batch_size,
            tail_row_bytes=segment.tail_row_bytes,
            body_bytes=segment.body_bytes,
        )
        placed = [
            Placed(spec, offset)
            for spec, offset in zip(fields, layout.offsets, strict=True)
            if spec.kind == "array"
        ]
    rows = min(told.filled, ROWS)
    pictures = _pictures(placed, rows)
    seen = {each.placed.spec.name for each in pictures}
    values = [each for each in placed if each.spec.name not in seen][:VALUES]
    names = [spec.name for spec in fields if spec.kind != "array"][: VALUES - len(values)]
    words = {name: texts(chunks, "text", name) for name in names}
    indices = struct.unpack(f"<{rows}q", read(0, 8 * rows))
    keys = texts(chunks, "keys")
    return {
        "stream": session.hello.stream,
        "epoch": told.epoch,
        "position": told.start,
        "rows": told.filled,
        "left_out": len(fields) - len(pictures) - len(values) - len(words),
        "samples": [
            {
                "index": indices[row],
                "key": keys[row] if row < len(keys) else str(indices[row]),
                "pictures": {each.placed.spec.name: picture(each, row, read) for each in pictures},
                "values": {
                    each.spec.name: _value(each, row, read, facts.classes) for each in values
                }
                | {name: each_row[row] for name, each_row in words.items() if row < len(each_row)},
            }
            for row in range(rows)
        ],
    }


def _chunks(chunks: tuple[Chunk, ...], read: Read) -> Iterator[dict[str, Any]]:
    """What the slot's tail says of the first rows, as far as that is not too long."""
    left = TAIL_BYTES
    for chunk in chunks:
        if chunk.first < ROWS and chunk.size <= left:
            left -= chunk.size
            yield _unpackb(read(chunk.offset, chunk.size), unicode_errors="replace")


def _pictures(placed: list[Placed], rows: int) -> list[Thinned]:
    """The fields that are shown as pictures: the first ones that are images."""
    images = [each for each in placed if thinned(each, PICTURES_NS)][:PICTURES]
    most_ns = PICTURES_NS // max(1, rows * len(images))
    return [shown for each in images if (shown := thinned(each, most_ns))]


def _value(placed: Placed, row: int, read: Read, classes: tuple[str, ...]) -> str:
    """What there is to say of an array that is no picture."""
    value = number(placed, row, read)
    if value is None:
        return f"{placed.spec.dtype[1:]} {list(placed.spec.shape)}"
    if isinstance(value, float):
        return f"{value:.6g}"
    name = placed.spec.name == "label" and isinstance(value, int) and 0 <= value < len(classes)
    return f"{value} ({classes[value]})" if name else str(value)
