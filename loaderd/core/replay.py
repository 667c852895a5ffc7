"""Batches that stay in their slots and are handed out again: how fast a trainer is by itself."""

from __future__ import annotations

from dataclasses import dataclass

from loaderd.core.batches import BatchBuild
from loaderd_wire.slots import Chunk

FIRST_USES = 2  # of each slot whose batches are made as ever: what a batch costs is measured


@dataclass(frozen=True, slots=True)
class KeptBatch:
    """What lies in a slot.

    Attributes:
        rows: Rows that were asked for.
        absent: Rows at its end that have no sample.
        chunks: Parts of the slot's tail.
    """

    rows: int
    absent: int
    chunks: tuple[Chunk, ...]


class Replay:
    """The batches in the slots of one session.

    A batch takes what lies in its slot, if that has as many rows. Whatever the trainer has written
    into it is still there.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], KeptBatch] = {}

    def begin(self, build: BatchBuild) -> None:
        """A batch has got a slot: if a good one lies there, nothing is left to be made of it."""
        assert build.place is not None, "a batch without a slot has none to take"
        kept = self._kept.pop((build.place.segment, build.place.slot), None)
        if (
            kept is not None
            and kept.rows == build.slice.rows
            and build.place.generation > FIRST_USES
            and not build.ledger.has_bad
        ):
            build.todo.clear()
            build.chunks.extend(kept.chunks)
            build.absent = kept.absent

    def finish(self, build: BatchBuild) -> None:
        """A batch is made: it is kept, unless it has bad samples."""
        if build.place is not None and not build.found and not build.ledger.has_bad:
            self._kept[build.place.segment, build.place.slot] = KeptBatch(
                build.slice.rows, build.absent, tuple(build.chunks)
            )
