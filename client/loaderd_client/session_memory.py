"""The memory of one session: its mapped segments, and the leases of their slots that have ended."""

from __future__ import annotations

import mmap
from collections import deque

from loaderd_client.protocol import ClientProtocol
from loaderd_client.shared_memory import Lent, SegmentView, Slot, lend, settled
from loaderd_wire.errors import ProtocolError
from loaderd_wire.messages import Descriptor, Segment


class SessionMemory:
    """The segments that are mapped, as long as anything in them is wanted."""

    def __init__(self, protocol: ClientProtocol, first: SegmentView) -> None:
        """Begin with the segment of the welcome.

        Args:
            protocol: Is told of each lease that has ended, and says which segments must stay.
            first: The segment, mapped.
        """
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
        """The segment that a batch lies in.

        Raises:
            ProtocolError: It is not here.
        """
        view = self._segments.get(batch.segment)
        if view is None:
            raise ProtocolError(f"a batch in segment {batch.segment}, which is not there")
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

    def lend(self, batch: Descriptor, slot: Slot | None) -> None:
        """A batch is handed out: its lease ends with the last view of `slot`.

        Args:
            batch: Its descriptor.
            slot: What the batch's arrays are views of. None: it has none, and the lease ends now.
        """
        if slot is None:
            self._protocol.release(batch.segment, batch.slot, batch.generation)
        else:
            lend(slot, (batch.segment, batch.slot, batch.generation), self._returned)

    def settle(self) -> None:
        """Take in which leases have ended, and unmap segments of which nothing is wanted."""
        returned = self._returned
        while returned:
            self._protocol.release(*settled(returned.popleft()))
        if len(self._segments) > 1:
            live = self._protocol.live
            self._segments = {n: view for n, view in self._segments.items() if n in live}

    def close(self) -> None:
        """Let go of all segments. One that has views stays until the last of them is gone."""
        self._segments = {}
