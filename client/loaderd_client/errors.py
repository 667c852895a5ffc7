"""Texts of what next() raises about samples."""

from __future__ import annotations

from collections.abc import Sequence

from loaderd_wire.errors import BadSample, SampleError
from loaderd_wire.slices import Cursor

SHOWN = 8  # bad samples that the text names; `errors` has all of them


def sample_error(bad: Sequence[BadSample], cursor: Cursor, label: str) -> SampleError:
    """For a batch without data: its first bad samples, one a line, and the first traceback."""
    where = f"step {cursor.step} of epoch {cursor.epoch} of {label}"
    lines = [b.line() for b in bad[:SHOWN]]
    if len(bad) > SHOWN:
        lines.append(f"and {len(bad) - SHOWN} more")
    head = f"{where} has {len(bad)} bad sample{'' if len(bad) == 1 else 's'}"
    trace = next((b.traceback for b in bad if b.traceback), "")
    if trace:
        lines.append(trace.rstrip())
    return SampleError("\n".join([f"{head}:" if lines else head, *lines]), tuple(bad))
