"""The memory of one session: its mapped segments, and the leases of their slots that have ended."""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from loaderd_client.batch_reader import Made
from loaderd_client.devices.page_locks import PageLocks, sweep
from loaderd_client.devices.placement import Placement
from loaderd_client.protocol import ClientProtocol
from loaderd_client.shared_memory import Lent, SegmentView, lend, settled
from loaderd_wire.errors import ProtocolError
from loaderd_wire.messages import Descriptor, Segment

T = TypeVar("T")


def unless_ended(read: Callable[[], T], ended: Callable[[], bool]) -> T | None:
    """Read a batch out of a slot of a group.

    When the daemon has ended the session, the slot is no longer kept for this client, and other
    members of the group may have got another batch in it.

    Args:
        read: Copies the batch.
        ended: Whether the daemon has ended the session by now.

    Returns:
        What was read; None if the session was ended meanwhile.
    """
    try:
        found = read()
    except Exception:
        if not ended():
            raise
        return None
    return None if ended() else found


class SessionMemory:
    """The segments that are mapped, as long as anything in them is wanted."""

    def __init__(self, protocol: ClientProtocol, first: SegmentView, placement: Placement) -> None:
        """Begin with the segment of the welcome.

        Args:
            protocol: Is told of each lease that has ended, and says which segments must stay.
            first: The segment, mapped.
            placement: Where the batches are put.
        """
        self._placement = placement
        self._locks: PageLocks | None = None  # where a device reads the slots
        self._protocol = protocol
        self._newest = first
        self._segments = {first.segment.segment: first}
        # leases that have ended, appended by whatever thread dropped the last view
        self._returned: deque[Lent] = deque()

    @property
    def mappings(self) -> list[mmap.mmap]:
        """The memory of each segment."""
        return [view.mapping for view in self._segments.values()]

    @property
    def held(self) -> tuple[int, int]:
        """(number of slots that the trainer holds, of all slots) of the newest segment."""
        slots = self._newest.segment.slots
        return slots - self._protocol.free_slots(), slots

    def view_of(self, batch: Descriptor) -> SegmentView:
        """The segment that a batch lies in; page-locked, where a device reads it.

        A device never reads a group's segment: its batches are copied on the host first.

        Raises:
            ProtocolError: It is not here.
        """
        view = self._segments.get(batch.segment)
        if view is None:
            raise ProtocolError(f"a batch in segment {batch.segment}, which is not there")
        if self._placement.device is not None and not view.shared:
            if self._locks is None:
                self._locks = PageLocks(self._placement.device)
            self._locks.lock(view)
        return view

    def add(self, segment: Segment, view: SegmentView) -> None:
        """Take in a further segment.

        Raises:
            ProtocolError: It is here already, or does not fit.
        """
        if segment.segment in self._segments:
            raise ProtocolError(f"segment {segment.segment} came twice")
        self._protocol.add_segment(segment)
        self._newest = view
        self._segments[segment.segment] = view

    @property
    def busy(self) -> bool:
        """A device still reads slots that nobody else uses: they come back in some milliseconds."""
        return self._locks is not None and self._locks.busy

    def lend(self, batch: Descriptor, made: Made | None) -> None:
        """A batch is handed out.

        Its lease ends with the last view of its slot, or with the copies to a device; now, if it
        has neither.

        Args:
            batch: Its descriptor.
            made: What was made of it; None: nothing.
        """
        lease = (batch.segment, batch.slot, batch.generation)
        if made is None or made.slot is None:
            self._protocol.release(*lease)
        elif made.arrival is not None and made.arrival.copied is not None:
            assert self._locks is not None
            self._locks.read_until(made.slot, lease, made.arrival.copied)
        else:
            lent = lend(made.slot, lease, self._returned)
            if made.uses is not None and self._locks is not None:
                self._locks.lent(lent, made.uses)

    def settle(self) -> None:
        """Take in which leases have ended, and unmap segments of which nothing is wanted."""
        returned, locks = self._returned, self._locks
        while returned:
            lease = settled(returned.popleft())
            if locks is None or not locks.dropped(lease):
                self._protocol.release(*lease)
        if len(self._segments) > 1:
            live = self._protocol.live
            self._segments = {n: view for n, view in self._segments.items() if n in live}
        if locks is not None:
            for lease in locks.over():
                self._protocol.release(*lease)
            locks.unlock(self._segments)
            sweep()

    def close(self) -> None:
        """Let go of all segments. One that has views stays until the last of them is gone.

        Touches no device: this may be a finalizer.
        """
        self._segments = {}
        if self._locks is not None:
            self._locks.depart()
