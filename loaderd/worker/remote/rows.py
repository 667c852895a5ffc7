"""Which bytes of a slot a job has written."""

from __future__ import annotations

from collections.abc import Sequence

from loaderd.core.jobs import Done, Job, JobKind
from loaderd_wire.slot_reader import INDEX_BYTES, array_description, field_names, unpack_chunks
from loaderd_wire.slots import SlotLayout, itemsize

Span = tuple[int, int]  # first byte in the slot, bytes


def spans(job: Job, done: Done, layout: SlotLayout, body: int) -> list[Span]:
    """Where the bytes lie that a job has written, or is to be answered with.

    Args:
        job: The job.
        done: The answer to it.
        layout: Of the slot.
        body: Bytes of the body that a collated batch takes; see `body_used`.
    """
    if done.changed or done.needs_tail or done.needs_body or job.kind == JobKind.TRIAL:
        return []
    if job.kind == JobKind.COMPACT:
        return [(0, (job.rows - len(job.lost)) * INDEX_BYTES)]
    if job.kind == JobKind.BATCH:
        found = [(0, job.rows * INDEX_BYTES), (layout.body_offset, body)]
    else:
        count = job.last - job.first
        found = [(job.first * INDEX_BYTES, count * INDEX_BYTES)]
        found += [
            (offset + job.first * field.row_bytes, count * field.row_bytes)
            for field, offset in zip(layout.fields, layout.offsets, strict=True)
        ]
    found.append((done.offset, done.size))
    return [(first, size) for first, size in found if size]


def body_used(chunks: Sequence[bytes], body_offset: int) -> int:
    """Bytes from the begin of the body on that the arrays of a collated batch take.

    Args:
        chunks: What describes them.
        body_offset: Where the body begins in the slot.
    """
    maps = unpack_chunks(chunks)
    end = body_offset
    for name in field_names(maps, "arrays"):
        described = array_description(maps, name)
        for each in described if isinstance(described, list) else [described]:
            if each is not None:
                dtype, shape, offset = each
                size = itemsize(dtype)
                for n in shape:
                    size *= n
                end = max(end, offset + size)
    return end - body_offset
