"""Texts of what next() raises about samples."""

from __future__ import annotations

from loaderd_wire.errors import SampleError
from loaderd_wire.messages import Descriptor
from loaderd_wire.slices import Cursor

SHOWN = 8  # bad samples that the text names; `errors` has all of them


def sample_error(batch: Descriptor, cursor: Cursor, stream: str) -> SampleError:
    """For a batch without data: its first bad samples, one a line, and the first one's traceback."""
    where = f"step {cursor.step} of epoch {cursor.epoch} of stream {stream!r}"
    lines = [b.line() for b in batch.bad[:SHOWN]]
    if len(batch.bad) > SHOWN:
        lines.append(f"and {len(batch.bad) - SHOWN} more")
    head = f"{where} has {len(batch.bad)} bad sample{'' if len(batch.bad) == 1 else 's'}"
    trace = next((b.traceback for b in batch.bad if b.traceback), "")
    if trace:
        lines.append(trace.rstrip())
    return SampleError("\n".join([f"{head}:" if lines else head, *lines]), batch.bad)
