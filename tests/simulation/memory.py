"""Slot memory as a model: who writes which row when, who holds it, and whether anybody looks at
what is not whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loaderd.core.jobs import Job, JobKind
from loaderd_wire.messages import Descriptor, Released, Segment
from simulation.clockwork import Broken

if TYPE_CHECKING:
    from simulation.surroundings import Peer
    from simulation.workers import Process

TORN = -1  # a row in the middle of being written
MOVED = -3  # in place of the index of a row that was moved up
SCRIBBLE = -2  # a row that the trainer wrote into
Row = int | None


@dataclass
class Writer:
    """A job that may write a slot, from Send until it is answered or its process is dead."""

    process: Process
    job: Job


class Slot:
    """indices: the int64 column at the slot's begin.

    data: the sample in each row's fields. tail: key lists by offset.
    """

    def __init__(self, rows: int) -> None:
        self.indices: list[Row] = [0] * rows  # as a new memfd has it
        self.data: list[Row] = [None] * rows
        self.tail: dict[int, tuple[int, list[str]]] = {}
        self.writers: dict[int, Writer] = {}
        self.holder: tuple[int, int] | None = None  # (trainer, generation)
        # of a group: the generation that each session was told of, until it says that it is back,
        # and its connection: from the end of that on it does not count on the slot
        self.told: dict[int, tuple[int, Peer]] = {}
        self.back: dict[int, int] = {}  # and which it has said last that it is back


class SegmentMemory:
    """owner: the session, or the group of several (`shared`)."""

    def __init__(self, segment: Segment, owner: int, rows: int, *, shared: bool) -> None:
        self.segment = segment
        self.owner = owner
        self.shared = shared
        self.slots = [Slot(rows) for _ in range(segment.slots)]
        self.dropped = False

    def tail_of(self, first: int, last: int) -> tuple[int, int]:
        """(offset, bytes) of the tail of rows [first, last), as `SlotLayout.tail_of`."""
        each = self.segment.tail_row_bytes
        return first * each, (last - first) * each


class Memory:
    """Every segment of the world, by number."""

    def __init__(self) -> None:
        self.segments: dict[int, SegmentMemory] = {}

    def told(self, batch: Descriptor, peer: Peer) -> None:
        """A client is told of a batch. In a group it is one of several that may read its slot."""
        memory = self.segments[batch.segment]
        if memory.shared:
            slot = memory.slots[batch.slot]
            if batch.generation <= slot.back.get(batch.session, 0):
                raise Broken(f"{batch} is told again, and was given back")
            before, _ = slot.told.get(batch.session, (0, peer))
            slot.told[batch.session] = max(batch.generation, before), peer

    def given_back(self, session: int, released: Iterable[Released]) -> None:
        """The daemon hears what a client has given back."""
        for each in released:
            memory = self.segments.get(each.segment)
            if memory is not None and memory.shared:
                for slot, back in zip(memory.slots, each.generations, strict=True):
                    slot.back[session] = max(back, slot.back.get(session, 0))
                    if session in slot.told and back >= slot.told[session][0]:
                        del slot.told[session]

    def sent(self, process: Process, job: Job) -> Slot:
        """A job is handed out. Broken if its slot is in anybody else's hands."""
        where = f"segment {job.segment} slot {job.slot}"
        memory = self.segments[job.segment]
        slot = memory.slots[job.slot]
        if memory.dropped:
            raise Broken(f"job {job.job} is to write {where}, which was dropped")
        if slot.holder is not None:
            raise Broken(
                f"job {job.job} is to write {where}, which trainer {slot.holder[0]} holds "
                f"(generation {slot.holder[1]})"
            )
        for session, (generation, peer) in slot.told.items():
            if not peer.ended:
                raise Broken(
                    f"job {job.job} is to write {where}, which session {session} has yet to give "
                    f"back (generation {generation})"
                )
        if job.kind == JobKind.TRIAL:
            return slot
        for other in slot.writers.values():
            if not other.process.alive:
                continue
            apart = other.job.last <= job.first or job.last <= other.job.first
            same = (other.job.seed, other.job.epoch, other.job.start, other.job.rows) == (
                job.seed,
                job.epoch,
                job.start,
                job.rows,
            )
            if not (apart and same):
                raise Broken(
                    f"{where} has two writers: job {job.job}, and job {other.job.job} in living "
                    f"worker {other.process.worker}"
                )
        slot.writers[job.job] = Writer(process, job)
        return slot

    def ended(self, job: Job) -> None:
        """Its process has answered, or is dead."""
        self.segments[job.segment].slots[job.slot].writers.pop(job.job, None)

    def living_writers(self, segment: int) -> list[Writer]:
        return [
            w
            for slot in self.segments[segment].slots
            for w in slot.writers.values()
            if w.process.alive
        ]

    def read(self, batch: Descriptor) -> tuple[list[Row], list[Row], list[str]]:
        """(index column, data, keys) of a batch's rows as a client would see them.

        Broken if somebody may be writing.
        """
        slot = self.segments[batch.segment].slots[batch.slot]
        for writer in slot.writers.values():
            if writer.process.alive and writer.job.kind != JobKind.TRIAL:
                raise Broken(
                    f"{batch} is read while worker {writer.process.worker} writes {writer.job}"
                )
        keys: list[str] = []
        for chunk in batch.chunks:
            size, names = slot.tail.get(chunk.offset, (-1, []))
            if (
                size != chunk.size
                or len(names) != chunk.last - chunk.first
                or chunk.first != len(keys)
            ):
                raise Broken(f"{chunk} of {batch} is not what lies there: {size} bytes, {names}")
            keys += names
        return slot.indices[: batch.filled], slot.data[: batch.filled], keys
