"""Which segments workers may map, and which workers still have them in their address space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from loaderd.engine.messages import MapSegment, UnmapSegment
from loaderd.engine.worker_process import WorkerProcess


@dataclass(slots=True)
class _Entry:
    order: MapSegment
    fd: int
    holders: set[WorkerProcess] = field(default_factory=set[WorkerProcess])
    done: Callable[[], object] | None = None


class SegmentTable:
    """Uses each segment's descriptor, which is another's, from `add` until `drop` is done."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}

    def add(self, order: MapSegment, fd: int) -> None:
        """A segment may be given to workers from now on.

        Args:
            order: The message that has a worker map it.
            fd: Its memory; stays open until `drop` is done.

        Raises:
            ValueError: The number is in use.
        """
        if order.segment.segment in self._entries:
            raise ValueError(f"segment {order.segment.segment} is there already")
        self._entries[order.segment.segment] = _Entry(order, fd)

    def give(self, segment: int, child: WorkerProcess) -> None:
        """See to it that this worker has it mapped before whatever is sent next.

        Raises KeyError for one that is not there.
        """
        entry = self._entries[segment]
        if child not in entry.holders:
            entry.holders.add(child)
            child.send(entry.order, (entry.fd,))

    def drop(self, segment: int, done: Callable[[], object]) -> None:
        """No job for it will come; done() when no worker has it mapped, perhaps at once."""
        entry = self._entries[segment]
        entry.done = done
        for child in tuple(entry.holders):
            child.send(UnmapSegment(segment))
        self._settle(segment, entry)

    def unmapped(self, segment: int, child: WorkerProcess) -> bool:
        """The worker says that it has unmapped it. False: nobody had told it to."""
        entry = self._entries.get(segment)
        if entry is None or entry.done is None or child not in entry.holders:
            return False
        entry.holders.discard(child)
        self._settle(segment, entry)
        return True

    def died(self, child: WorkerProcess) -> None:
        """A dead worker has nothing mapped."""
        for segment, entry in tuple(self._entries.items()):
            if child in entry.holders:
                entry.holders.discard(child)
                self._settle(segment, entry)

    def close(self) -> None:
        """Forget all segments; nobody is told that they are free."""
        self._entries.clear()

    def _settle(self, segment: int, entry: _Entry) -> None:
        if entry.done is not None and not entry.holders:
            del self._entries[segment]
            entry.done()
