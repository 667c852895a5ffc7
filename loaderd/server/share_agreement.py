"""Whether trainers that want to share their batches can."""

from __future__ import annotations

from collections.abc import Sequence

from loaderd.server.admission import AdmittedStream
from loaderd.server.rank_agreement import in_common


def disagreement(stream: str, new: AdmittedStream, others: Sequence[AdmittedStream]) -> str:
    """A warning, if a new session wants to share batches and nobody asks for the same ones.

    Another rank of a training that is there is no reason for one.

    Args:
        stream: Name of the stream.
        new: The session that is being made.
        others: The sessions of the stream that there are.

    Returns:
        "" if nothing seems wrong.
    """
    sharing = [other for other in others if other.share_window]
    mine = _in_common(new)
    if not new.share_window or not sharing or any(_in_common(o) == mine for o in sharing):
        return ""
    theirs = _in_common(sharing[0])
    differing = [name for name in mine if mine[name] != theirs[name]]
    this, another = (
        ", ".join(f"{name} = {of[name]}" for name in differing) for of in (mine, theirs)
    )
    return (
        f"stream {stream!r}: this trainer has {this}, another one has {another}: it shares its "
        "batches with no other; give both the same values, or leave sharing off"
    )


def _in_common(admitted: AdmittedStream) -> dict[str, object]:
    """What sessions that share have in common, but for their ranks."""
    return {**in_common(admitted), "fields": [spec.name for spec in admitted.fields]}
