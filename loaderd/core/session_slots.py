"""The slots of one session, over all its segments, and what its client knows of them."""

from __future__ import annotations

from dataclasses import dataclass

from loaderd.core.batches import BatchBuild, SlotRef
from loaderd.core.slots import (
    ANNOUNCE,
    ANNOUNCED,
    ENDING,
    FILLING,
    LEASE,
    READY,
    RELEASE,
    SlotState,
    SlotTable,
)
from loaderd_wire.messages import Descriptor, Released, Segment
from loaderd_wire.records import quick

NOT_OUT = (FILLING, READY, ENDING)  # the client cannot know the generation of such a slot

_slot_ref = quick(SlotRef)


@dataclass(slots=True)
class Announced:
    """A slot that the client was told of and has not given back.

    Attributes:
        build: The batch in it.
        message: The latest descriptor of it.
        told_s: When that was sent.
    """

    build: BatchBuild
    message: Descriptor
    told_s: float


class SessionSlots:
    """Who uses each slot of a session.

    Attributes:
        tables: The segments that are in use, by number, the newest one last.
        announced: Announced and leased slots, by (segment, slot).
        growing: A larger segment has been asked for.
        outgrown: A batch may not fit into the current segment.
    """

    def __init__(self, segment: Segment) -> None:
        self.tables = {segment.segment: SlotTable(segment)}
        self.announced: dict[tuple[int, int], Announced] = {}
        self.growing = self.outgrown = False
        self._heard: dict[int, Released] = {}  # the client's latest statement on each segment

    @property
    def current(self) -> int:
        """Number of the segment in which slots are claimed. It is the newest one."""
        return next(reversed(self.tables))

    @property
    def table(self) -> SlotTable:
        """The slots of the current segment."""
        return next(reversed(self.tables.values()))

    def state_of(self, place: SlotRef) -> SlotState | None:
        """State of a slot.

        Returns:
            None once the slot serves another batch, or its segment has been freed.
        """
        table = self.tables.get(place.segment)
        return (
            table.state[place.slot]
            if table and table.generation[place.slot] == place.generation
            else None
        )

    def claim(self) -> SlotRef | None:
        """Take a free slot of the current segment; None if it has none."""
        table = self.table
        claimed = table.claim()
        return None if claimed is None else _slot_ref(table.segment.segment, *claimed)

    def fits(self, build: BatchBuild) -> bool:
        """Whether the current segment is large enough for a batch, as far as is known."""
        segment = self.table.segment
        return build.needs_tail <= segment.tail_row_bytes and build.needs_body <= segment.body_bytes

    def is_known(self, build: BatchBuild) -> bool:
        """Whether the client knows the slot that a batch is in, and has not given it back."""
        place = build.place
        known = self.announced.get((place.segment, place.slot)) if place else None
        return known is not None and known.build is build

    def announce(
        self, build: BatchBuild, place: SlotRef, message: Descriptor, now_s: float
    ) -> None:
        """A READY slot is announced.

        Args:
            build: The batch in it.
            place: The slot.
            message: The descriptor.
            now_s: Time of the event.
        """
        self.tables[place.segment].move(place.slot, ANNOUNCE)
        self.announced[place.segment, place.slot] = Announced(build, message, now_s)

    def give_back(self, told: Released) -> tuple[str, list[Announced]]:
        """Take in which slots of a segment the client has given back or handed to its trainer.

        Args:
            told: What the client says of one segment.

        Returns:
            (what is wrong with it, what has changed). If something is wrong, nothing has changed.
        """
        table = self.tables.get(told.segment)
        if table is None:
            return (
                ""
                if told.segment <= self.current
                else f"segment {told.segment}, which is not one of its segments",
                [],
            )
        if not len(told.generations) == len(told.taken) == len(table.state):
            return (
                f"{len(told.generations)} slots of segment {told.segment}, which has "
                f"{len(table.state)}",
                [],
            )
        heard = self._heard.get(told.segment)
        news = [  # generations never fall, so what was accepted once changes nothing
            (slot, back, out)
            for slot, (back, out) in enumerate(zip(told.generations, told.taken, strict=True))
            if heard is None or back != heard.generations[slot] or out != heard.taken[slot]
        ]
        for slot, back, out in news:
            most = table.generation[slot] - (table.state[slot] in NOT_OUT)
            if back > most or out > most:
                return (
                    f"generation {max(back, out)} of segment {told.segment} slot {slot}, of which "
                    f"{most} were given out",
                    [],
                )
        self._heard[told.segment] = told
        changed: list[Announced] = []
        for slot, back, out in news:
            known = self.announced.get((told.segment, slot))
            if known is None or max(back, out) < table.generation[slot]:
                continue
            changed.append(known)
            if table.state[slot] is ANNOUNCED:
                table.move(slot, LEASE)
            if back >= table.generation[slot]:
                table.move(slot, RELEASE)
                del self.announced[told.segment, slot]
        return "", changed

    def add(self, segment: Segment) -> None:
        """A larger segment has been reserved; slots are claimed in it from now on."""
        self.tables[segment.segment] = SlotTable(segment)
        self.growing = False

    def release_all(self) -> None:
        """The client is gone: all slots that it knew are free."""
        for segment, slot in self.announced:
            self.tables[segment].move(slot, RELEASE)
        self.announced.clear()

    def spent(self, *, gone: bool) -> list[int]:
        """Segments that nothing uses any longer. They are forgotten here.

        Args:
            gone: The client has left, so that the current segment is not needed either.
        """
        done = [
            number
            for number, table in self.tables.items()
            if table.idle and (gone or number != self.current)
        ]
        for number in done:
            del self.tables[number]
            self._heard.pop(number, None)
        return done
