"""The shared memory of one session, or of a group of sessions that share their batches."""

from __future__ import annotations

from dataclasses import dataclass, field

from loaderd.server.admission import SPARE_SLOTS, AdmittedStream, OpenedStream, sized
from loaderd_wire.messages import Segment


@dataclass(slots=True)
class ReservedMemory:
    """Segments, and the sessions that get their batches in them.

    Attributes:
        owner: Number of the session, or of the group. It is no session's number then.
        name: Name of the stream.
        stream: The stream.
        admitted: What the first of the sessions gets. The others' plans are the same.
        segment: The newest one that there is, or the first while that is being reserved.
        sessions: Numbers of the sessions.
        attached: Whether it is there, and the scheduler knows of it: then that says when a segment
            is to be freed.
        growing: Number of the larger segment that is being reserved; 0: none.
    """

    owner: int
    name: str
    stream: OpenedStream
    admitted: AdmittedStream
    segment: Segment
    sessions: list[int] = field(default_factory=list[int])
    attached: bool = False
    growing: int = 0

    @property
    def group(self) -> int:
        """Number of the group; 0 if it is the memory of one session."""
        return self.owner if self.admitted.share_window else 0

    @property
    def bytes(self) -> int:
        """Of all slots of the newest segment."""
        return self.segment.slots * self.segment.slot_bytes

    def suits(self, name: str, admitted: AdmittedStream) -> bool:
        """Whether a session of this stream gets its batches here, with others."""
        return self.has_same(name, admitted) and not self.too_small(admitted)

    def has_same(self, name: str, admitted: AdmittedStream) -> bool:
        """Whether the batches here are those of a session of this stream, which wants to share."""
        return (
            self.group > 0
            and admitted.share_window > 0
            and (self.name, self.admitted.plan) == (name, admitted.plan)
        )

    def too_small(self, admitted: AdmittedStream) -> str:
        """Why there are too few slots for one more session, and what to change; "" if not.

        There must be one for what each of them keeps, and one to make batches in. The scheduler
        asks for more slots before that ends (`SharedSlots.crowded`).
        """
        slots, trainers = self.segment.slots, len(self.sessions)
        if admitted.prefetch + SPARE_SLOTS > slots:
            most = admitted.prefetch
            return (
                f"{slots} slots, too few for prefetch = {most}; give them the same prefetch, or "
                f"the stream share_window = {most}"
            )
        if trainers + 2 > slots + (self.admitted.prefetch if self.growing else 0):
            return (
                f"{slots} slots for {trainers} trainers, and there is no memory for more; raise "
                "[daemon] memory"
            )
        return ""

    def larger(self, slots: int, segment: int, *, tail_row_bytes: int, body_bytes: int) -> Segment:
        """A segment that is at least so large.

        Args:
            slots: How many slots.
            segment: Its number.
            tail_row_bytes: Bytes of tail a row.
            body_bytes: Bytes of body.
        """
        return sized(
            self.stream,
            self.admitted.fields,
            self.admitted.shape.batch_size,
            slots,
            segment,
            tail_row_bytes=tail_row_bytes,
            body_bytes=body_bytes,
        )
