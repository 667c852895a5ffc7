"""The shared memory of one session, or of a group of sessions that share their batches."""

from __future__ import annotations

from dataclasses import dataclass, field

from loaderd.core.shared_slots import more_slots
from loaderd.server.admission import AdmittedStream, OpenedStream, sized
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
        """Whether the batches here are those of a session of this stream, which wants to share."""
        return (
            self.group > 0
            and admitted.share_window > 0
            and (self.name, self.admitted.plan) == (name, admitted.plan)
        )

    def for_one_more(self) -> Segment | None:
        """What one more session makes necessary: a segment with more slots, or None.

        Each session keeps a slot, and there must be one to make batches in. The scheduler asks for
        more slots one session earlier (`SharedSlots.crowded`), but goes on if there is no memory.
        """
        sessions, has = len(self.sessions) + 1, self.segment
        if sessions < has.slots:
            return None
        slots = more_slots(sessions, has.slots, self.admitted.prefetch)
        tail, body = has.tail_row_bytes, has.body_bytes
        return self.larger(slots, has.segment, tail_row_bytes=tail, body_bytes=body)

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
