"""Which segments workers may map, and which workers still have them in their address space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from loaderd.engine.messages import Map, Unmap
from loaderd.engine.worker_process import Hand


@dataclass(slots=True)
class _Entry:
    order: Map
    fd: int
    holders: set[Hand] = field(default_factory=set[Hand])
    done: Callable[[], object] | None = None


class SegmentTable:
    """Uses each segment's descriptor, which is another's, from `add` until `drop` is done."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}

    def add(self, order: Map, fd: int) -> None:
        """fd stays open until `drop` is done. Raises ValueError for a number that is in use."""
        if order.segment.segment in self._entries:
            raise ValueError(f"segment {order.segment.segment} is there already")
        self._entries[order.segment.segment] = _Entry(order, fd)

    def give(self, segment: int, hand: Hand) -> None:
        """See to it that this worker has it mapped before whatever is sent next. Raises KeyError for one that is not there."""
        entry = self._entries[segment]
        if hand not in entry.holders:
            entry.holders.add(hand)
            hand.send(entry.order, (entry.fd,))

    def drop(self, segment: int, done: Callable[[], object]) -> None:
        """No job for it will come; done() when no worker has it mapped any longer, perhaps at once."""
        entry = self._entries[segment]
        entry.done = done
        for hand in tuple(entry.holders):
            hand.send(Unmap(segment))
        self._settle(segment, entry)

    def unmapped(self, segment: int, hand: Hand) -> bool:
        """The worker says that it has unmapped it. False: nobody had told it to."""
        entry = self._entries.get(segment)
        if entry is None or entry.done is None or hand not in entry.holders:
            return False
        entry.holders.discard(hand)
        self._settle(segment, entry)
        return True

    def died(self, hand: Hand) -> None:
        """A dead worker has nothing mapped."""
        for segment, entry in tuple(self._entries.items()):
            if hand in entry.holders:
                entry.holders.discard(hand)
                self._settle(segment, entry)

    def close(self) -> None:
        self._entries.clear()

    def _settle(self, segment: int, entry: _Entry) -> None:
        if entry.done is not None and not entry.holders:
            del self._entries[segment]
            entry.done()
