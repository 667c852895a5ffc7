"""Whether the ranks of one training cut and order the epoch in the same way."""

from __future__ import annotations

from collections.abc import Sequence

from loaderd.server.admission import AdmittedStream


def disagreement(stream: str, new: AdmittedStream, others: Sequence[AdmittedStream]) -> str:
    """A warning, if a new rank seems to belong to the training of others and differs from them.

    Samples would then come twice or never. A rank that is there already, or that has others like
    it, is of another training.

    Args:
        stream: Name of the stream.
        new: The session that is being made.
        others: The sessions of the stream that there are.

    Returns:
        "" if nothing seems wrong.
    """
    several = [other for other in others if other.shape.world_size > 1]
    if new.shape.world_size == 1 or not several:
        return ""
    if any(
        other.shape.rank == new.shape.rank or in_common(other) == in_common(new)
        for other in several
    ):
        return ""
    mine, theirs = in_common(new), in_common(several[0])
    differing = [name for name in mine if mine[name] != theirs[name]]
    said = (", ".join(f"{name} = {of[name]}" for name in differing) for of in (mine, theirs))
    one, two = (
        f"rank {a.shape.rank} of {a.shape.world_size} has {text}"
        for a, text in zip((new, several[0]), said, strict=True)
    )
    return (
        f"stream {stream!r}: {one}, {two}: ranks of one training need equal values, or some "
        "samples come twice and others never"
    )


def in_common(admitted: AdmittedStream) -> dict[str, object]:
    """What all ranks of a training have in common.

    Args:
        admitted: Any of them.
    """
    shape = admitted.shape
    return {
        "seed": admitted.seed,
        "batch_size": shape.batch_size,
        "drop_last": shape.drop_last,
        "world_size": shape.world_size,
    }
