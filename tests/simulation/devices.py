"""A device in fake time: each copy is made later, at a drawn time, from the slot as it is then."""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loaderd_client.devices.page_locks import sweep
from loaderd_wire.messages import Descriptor, Segment
from simulation.clockwork import Broken
from simulation.memory import Row, Slot

if TYPE_CHECKING:
    from simulation.world import World


class Mapping:
    """The memory of a segment in a trainer's address space: mapped for as long as this lives."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment.segment
        self.bytes = segment.slots * segment.slot_bytes


class View:
    """A segment as `SessionMemory` sees it."""

    def __init__(self, segment: Segment, *, shared: bool = False) -> None:
        self.segment = segment
        self.shared = shared
        self.mapping = Mapping(segment)


@dataclass(eq=False)
class Handle:
    """What a lease hangs on, and every view of a slot."""

    slot: Slot
    mapping: Mapping


@dataclass
class Copy:
    """A copy that is queued, and the rows that it must find in the slot."""

    batch: Descriptor
    slot: Slot
    mapping: weakref.ref[Mapping]
    rows: list[Row]


@dataclass
class Stream:
    """Copies in the order of asking, and how many of them were queued and made so far."""

    queued: int = 0
    copies: list[Copy] = field(default_factory=list)
    free_at: float = 0.0

    @property
    def made(self) -> int:
        return self.queued - len(self.copies)


@dataclass
class Mark:
    """All copies of a stream that were queued when it was made."""

    device: Device
    stream: Stream
    behind: int

    def done(self) -> bool:
        return self.device.lost or self.stream.made >= self.behind


class Device:
    """See `loaderd_client.devices.interface.Device`: as much of it as `PageLocks` asks for.

    lost: with its process, and all copies with it. late_s: what a copy takes at most.
    """

    asynchronous = True

    def __init__(self, world: World, trainer: int, late_s: float) -> None:
        self.name = f"device of trainer {trainer}"
        self.lost = False
        self._world = world
        self._late_s = late_s
        self._own, self._current = Stream(), Stream()
        self._locked: list[Mapping] = []

    def copy(self, batch: Descriptor, handle: Handle, *, own: bool) -> None:
        """A copy of a batch is queued, on the Loader's stream or on the trainer's own."""
        world, stream = self._world, self._own if own else self._current
        rows = handle.slot.data[: batch.filled]
        stream.copies.append(Copy(batch, handle.slot, weakref.ref(handle.mapping), rows))
        stream.queued += 1
        begin = max(stream.free_at, world.now)
        stream.free_at = begin + world.seeder.random() * self._late_s
        world.after(stream.free_at - world.now, self._make, stream)

    def fail(self) -> None:
        """kill -9 of its process: nothing is copied any more, and nothing stays locked."""
        self.lost = True
        sweep()

    def _make(self, stream: Stream) -> None:
        if self.lost:
            return
        copy = stream.copies.pop(0)
        if copy.mapping() is None:
            raise Broken(f"{self.name} copies {copy.batch} from memory that is not mapped")
        found = copy.slot.data[: copy.batch.filled]
        if found != copy.rows:
            raise Broken(
                f"{self.name} gets torn bytes: {copy.batch} was {copy.rows}, the copy is {found}"
            )

    # what `PageLocks` asks for

    def lock(self, memory: Mapping) -> None:
        if memory in self._locked:
            raise Broken(f"{self.name} is to lock segment {memory.segment} twice")
        self._locked.append(memory)

    def unlock(self, memory: Mapping) -> None:
        copies = [*self._own.copies, *self._current.copies]
        if not self.lost and any(copy.mapping() is memory for copy in copies):
            raise Broken(f"{self.name} unlocks segment {memory.segment} under a copy")
        self._locked.remove(memory)

    def copying(self) -> AbstractContextManager[object]:
        return nullcontext()

    def mark(self) -> Mark:
        return self.mark_stream(self._own)

    def mark_stream(self, stream: Any = None) -> Mark:
        stream = stream or self._current
        return Mark(self, stream, stream.queued)

    def capturing(self) -> bool:
        return False

    @property
    def locked(self) -> list[int]:
        return [memory.segment for memory in self._locked]
