"""The numbers of segments, and whether there is memory for one more."""

from __future__ import annotations

from collections.abc import Callable

from loaderd.system import resource_limits
from loaderd.system.memfd import SegmentStore
from loaderd_wire.messages import Segment


class SegmentBudget:
    """What segments may take together.

    Attributes:
        store: The segments that there are.
        memory: Ceiling of all segments, in bytes.
        last_segment: Number of the latest segment. No number is used twice.
    """

    def __init__(
        self,
        store: SegmentStore,
        *,
        memory: int,
        rooms: Callable[[], list[resource_limits.Room]] = resource_limits.rooms,
    ) -> None:
        """Begin without segments.

        Args:
            store: Where segments are made.
            memory: Ceiling of all segments, in bytes.
            rooms: Returns the system's limits.
        """
        self.store = store
        self.memory = memory
        self._rooms = rooms
        self.last_segment = 0

    def number(self) -> int:
        """The number of a new segment."""
        self.last_segment += 1
        return self.last_segment

    def free_bytes(self) -> int:
        """Memory that the system has free beyond what segments may still take."""
        free = min((room.free for room in self._rooms()), default=0)
        return free - max(0, self.memory - self.store.live_bytes) - self.store.unfilled_bytes

    def shortage(
        self, what: str, segment: Segment, held_bytes: int, *, shared: bool = False
    ) -> str | None:
        """Why there is no memory for a segment, with the numbers and the setting to change.

        Args:
            what: What needs it, for the text.
            segment: The segment, which is not reserved yet.
            held_bytes: What the client still holds of a former daemon's segments.
            shared: It is for sessions that share their batches.

        Returns:
            None if there is enough.
        """
        return resource_limits.shortage(
            f"{what} ({segment.slots} slots of {segment.slot_bytes} bytes)",
            segment.slots * segment.slot_bytes,
            memory=self.memory,
            live=self.store.live_bytes,
            held=held_bytes,
            unfilled=self.store.unfilled_bytes,
            rooms=self._rooms(),
            how=f"lower {'share_window, ' * shared}prefetch or batch_size",
        )
