"""Which slots of a session's segments the client uses, and which it has given back. Pure."""

from __future__ import annotations

from collections.abc import Set

from loaderd_wire.errors import ProtocolError
from loaderd_wire.limits import MAX_SLOTS
from loaderd_wire.messages import Descriptor, Released, Segment
from loaderd_wire.records import quick

AHEAD = 8  # segments that may be named before they have come

_released = quick(Released)


class SegmentSlots:
    """What the client has done with the slots of one segment.

    Attributes:
        released: For each slot the last generation given back, 0 if none.
        taken: For each slot the last generation lent out, 0 if none.
        leased: Number of slots that are lent out and not given back.
        added: The segment's memory is here.
        retired: Nothing in the segment is wanted any more, now or later.
        mention: The daemon seems not to know what was given back.
    """

    __slots__ = ("added", "leased", "mention", "released", "retired", "taken")

    def __init__(self, slots: int) -> None:
        self.released = [0] * slots
        self.taken = [0] * slots
        self.leased = 0
        self.added = False
        self.retired = False
        self.mention = False

    def resize(self, slots: int) -> None:
        """There are so many slots, and no less than are known already."""
        more = [0] * (slots - len(self.taken))
        self.released += more
        self.taken += more

    def lend(self, slot: int, generation: int) -> None:
        """Lend out a slot whose earlier generations have all been given back."""
        self.taken[slot] = generation
        self.leased += 1

    def give_back(self, slot: int, generation: int) -> bool:
        """End a lease. False if that was known already."""
        if generation <= self.released[slot]:
            return False
        self.released[slot] = generation
        self.leased -= generation == self.taken[slot]
        return True

    def drop(self, slot: int, generation: int) -> None:
        """Give back a slot that was announced and never lent out."""
        self.released[slot] = max(self.released[slot], generation)
        self.taken[slot] = max(self.taken[slot], generation)
        self.mention = self.retired


class SlotLedger:
    """The slots of all segments of a session.

    The newest segment is the current one. An older one is retired once nothing of it is lent out
    or waits to be taken.

    Attributes:
        segments: The record of each segment that was added or named, by its number.
    """

    def __init__(self, segment: Segment, *, shared: bool = False) -> None:
        """Begin with the segment of the welcome.

        Args:
            segment: That segment.
            shared: It is the segment of a group. A later one may have another number of slots.
        """
        self._slots_each = segment.slots
        self._shared = shared
        self._current = segment.segment
        self.segments: dict[int, SegmentSlots] = {}
        self.add(segment)

    @property
    def current(self) -> int:
        """Number of the newest segment that is here."""
        return self._current

    @property
    def live(self) -> tuple[int, ...]:
        """Segments that must stay mapped: those that are here and not retired."""
        return tuple(number for number in self.segments if self.known(number))

    @property
    def leased(self) -> int:
        """Number of slots that the trainer holds, in all segments."""
        return sum(slots.leased for slots in self.segments.values())

    @property
    def free(self) -> int:
        """Number of slots of the current segment that the trainer does not hold."""
        slots = self.segments[self._current]
        return len(slots.taken) - slots.leased

    def known(self, segment: int) -> bool:
        """True if the segment's memory has come, and it has not been retired."""
        slots = self.segments.get(segment)
        return slots is not None and slots.added and not slots.retired

    def add(self, segment: Segment) -> None:
        """Take in a segment whose memory is here. It is the current one from now on.

        Raises:
            ProtocolError: It is older than the current one, or has an impossible number of slots.
        """
        slots = self.segments.get(segment.segment)
        if slots and slots.added:
            return
        each, named = self._slots_each, len(slots.taken) if slots else 0
        least, most = (named, MAX_SLOTS) if self._shared else (each, each)
        if segment.segment < self._current or not least <= segment.slots <= most:
            raise ProtocolError(f"{segment} came after segment {self._current} of {each} slots")
        if slots is None:
            slots = self.segments[segment.segment] = SegmentSlots(segment.slots)
        slots.resize(segment.slots)
        slots.added = True
        self._current = segment.segment

    def named_by(self, batch: Descriptor) -> SegmentSlots:
        """The record of the batch's segment, whose memory may not have come yet.

        Raises:
            ProtocolError: There can be no such segment, slot or generation.
        """
        slots = self.segments.get(batch.segment)
        if (
            slots is None
            and batch.segment > self._current
            and sum(not s.added for s in self.segments.values()) < AHEAD
        ):
            slots = SegmentSlots(0 if self._shared else self._slots_each)
            self.segments[batch.segment] = slots
        if slots and self._shared and not slots.added:
            slots.resize(min(batch.slot + 1, MAX_SLOTS))  # how many there are is not known yet
        if slots is None or batch.slot >= len(slots.taken) or batch.generation < 1:
            raise ProtocolError(
                f"segment {batch.segment} slot {batch.slot} generation {batch.generation} can't be"
            )
        return slots

    def release(self, segment: int, slot: int, generation: int) -> bool:
        """End a lease. False if that was known already.

        Raises:
            ValueError: This generation was never lent.
        """
        slots = self.segments.get(segment)
        if slots is None or not 0 <= slot < len(slots.taken) or generation > slots.taken[slot]:
            raise ValueError(
                f"generation {generation} of segment {segment} slot {slot} was never lent"
            )
        return slots.give_back(slot, generation)

    def retire(self, wanted: Set[int]) -> bool:
        """Retire each old segment that nothing is lent out of.

        What is announced in it later is given back unseen.

        Args:
            wanted: Numbers of segments in which a batch waits to be taken; they stay.

        Returns:
            Whether any was retired.
        """
        done = False
        for number, slots in self.segments.items():
            if (
                number < self._current
                and not slots.retired
                and number not in wanted
                and not slots.leased
            ):
                slots.retired = slots.mention = done = True
        return done

    def report(self) -> tuple[Released, ...]:
        """What the daemon must know of each segment that is in use, or that it asks about.

        In a group one whose memory has not come is left out: its number of slots is not known.
        """
        told: list[Released] = []
        for number, slots in self.segments.items():
            if self._shared and not slots.added:
                continue
            if not slots.retired or slots.mention:
                slots.mention = False
                told.append(_released(number, tuple(slots.released), tuple(slots.taken)))
        return tuple(told)
