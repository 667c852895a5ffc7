"""The slots of a group of sessions, and what each of its clients was told of them."""

from __future__ import annotations

from loaderd.core.batches import BatchBuild, SlotRef
from loaderd.core.session_slots import Announced, SessionSlots
from loaderd.core.slots import ANNOUNCE, ANNOUNCED, KEEP, READY, SlotState
from loaderd_wire.messages import Descriptor, Released, Segment

MOST_TOLD = 2  # batches that a client is told of and has not given back: it keeps no more slots


def more_slots(clients: int, slots: int, prefetch: int) -> int:
    """How many slots a larger segment has: room for one more client that is far from others.

    Args:
        clients: How many there are.
        slots: What the segment has.
        prefetch: Batches that a client wants at a time.
    """
    return max(clients, slots) + prefetch + 2


class SharedSlots(SessionSlots):
    """Who uses each slot of a group.

    A slot is ANNOUNCED while any client may read it, and READY again when all of them have given it
    back: its batch stays for clients that want it later, until the slot is needed.

    Attributes:
        pins: How many clients may read a slot, by (segment, slot); at least 1.
        clients: What each client was told.
    """

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment)
        self.clients: list[MemberSlots] = []
        self.pins: dict[tuple[int, int], int] = {}

    def pin(self, place: SlotRef) -> None:
        """One more client may read a slot."""
        key = place.segment, place.slot
        count = self.pins.get(key, 0)
        if not count:
            self.tables[place.segment].move(place.slot, ANNOUNCE)
        self.pins[key] = count + 1

    def unpin(self, segment: int, slot: int) -> None:
        """A client has given a slot back, or has gone."""
        key = segment, slot
        if self.pins[key] > 1:
            self.pins[key] -= 1
        else:
            del self.pins[key]
            self.tables[segment].move(slot, KEEP)

    def renew(self, build: BatchBuild) -> SlotRef:
        """Give the slot of a batch a new generation.

        It is for a client that has given the slot back and is to be told of it again. Others may be
        reading it: they give back the generation that they were told of.
        """
        place = build.place
        assert place is not None, "a batch without a slot has no generation"
        generations = self.tables[place.segment].generation
        generations[place.slot] += 1
        build.place = SlotRef(place.segment, place.slot, generations[place.slot])
        return build.place

    @property
    def all_announced(self) -> bool:
        """Whether only clients can free a slot of the current segment."""
        return self.table.count(ANNOUNCED) == len(self.table.state)

    @property
    def crowded(self) -> bool:
        """Whether clients that keep one slot each could keep all but the last one."""
        return len(self.clients) >= len(self.table.state) - 1

    @property
    def to_spare(self) -> bool:
        """Whether there is a slot for a second batch of a client.

        Each client that keeps none can be told of one, and another slot is left to make batches in:
        so clients that have stopped do not hold up the others.
        """
        without = sum(not client.announced for client in self.clients)
        return len(self.table.state) - self.table.count(ANNOUNCED) > without + 1


class MemberSlots(SessionSlots):
    """What one client was told of the slots of its group.

    The client copies a batch out of its slot and gives the slot back. It never writes into it.

    Attributes:
        tables: Those of the group.
    """

    def __init__(self, shared: SharedSlots) -> None:
        """Begin with nothing told.

        Args:
            shared: The slots of the group.
        """
        super().__init__(shared.table.segment)
        self.tables = shared.tables
        self._shared = shared
        self._told: dict[tuple[int, int], int] = {}  # the latest generation, by (segment, slot)
        shared.clients.append(self)

    def state_of(self, place: SlotRef) -> SlotState | None:
        """State of a slot: ANNOUNCED only if this client was told of it."""
        known = self.announced.get((place.segment, place.slot))
        if known is not None and known.build.place == place:
            return ANNOUNCED
        state = self._shared.state_of(place)
        return READY if state is ANNOUNCED else state

    def announce(
        self, build: BatchBuild, place: SlotRef, message: Descriptor, now_s: float
    ) -> None:
        """The client is told of a slot, which keeps its batch until the client gives it back."""
        key = place.segment, place.slot
        self._shared.pin(place)
        if key not in self._told:  # a segment may have gone since
            live = self.tables
            self._told = {known: last for known, last in self._told.items() if known[0] in live}
        self.announced[key] = Announced(build, message, now_s)
        self._told[key] = message.generation

    def may_tell(self, prefetch: int, *, needed: bool) -> bool:
        """Whether the client may be told of one more batch.

        Args:
            prefetch: So many batches it may have kept at a seek.
            needed: Its trainer needs that batch next.
        """
        if needed:
            return not self.keeps_too_many(prefetch)
        return len(self.announced) < (MOST_TOLD if self._shared.to_spare else 1)

    def keeps_too_many(self, prefetch: int) -> bool:
        """Whether the client has to give something back before it is told of anything."""
        return len(self.announced) >= prefetch + MOST_TOLD

    def was_told(self, place: SlotRef) -> bool:
        """Whether the client was told of this generation of a slot, and may have given it back."""
        return self._told.get((place.segment, place.slot), 0) >= place.generation

    def give_back(self, told: Released) -> tuple[str, list[Announced]]:
        """Take in which slots of a segment the client has given back.

        Args:
            told: What the client says of one segment.

        Returns:
            (what is wrong with it, what was given back). If something is wrong, nothing has
            changed.
        """
        table = self.tables.get(told.segment)
        if table is None or len(told.generations) != len(table.state):
            return super().give_back(told)  # it says what is wrong
        if len(told.taken) != len(told.generations):
            return super().give_back(told)
        for slot, (back, out) in enumerate(zip(told.generations, told.taken, strict=True)):
            most = self._told.get((told.segment, slot), 0)
            if back > most or out > most:
                return (
                    f"generation {max(back, out)} of segment {told.segment} slot {slot}, of which "
                    f"{most} were given out",
                    [],
                )
        changed: list[Announced] = []
        for slot, back in enumerate(told.generations):
            known = self.announced.get((told.segment, slot))
            if known is not None and back >= known.message.generation:
                changed.append(known)
                self._drop(told.segment, slot)
        return "", changed

    def release_all(self) -> None:
        """The client is gone: it needs no slot any longer."""
        self._shared.clients.remove(self)
        for segment, slot in tuple(self.announced):
            self._drop(segment, slot)

    def _drop(self, segment: int, slot: int) -> None:
        del self.announced[segment, slot]
        self._shared.unpin(segment, slot)
