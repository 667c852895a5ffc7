"""The client's half of the protocol, pure: which batch comes next, what the daemon must be told,
which slots are free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from loaderd_wire.errors import ProtocolError
from loaderd_wire.messages import Descriptor, Progress, Released, Segment
from loaderd_wire.records import quick
from loaderd_wire.slices import Cursor, EpochShape, Slice, next_cursor, normalize_cursor, steps

AHEAD = 8  # segments that may be named before they have come
LATE = 2  # taken batches that are told together, while there are others in hand
SHORT = 4  # a prefetch below which each one counts
# slots that a trainer holds which keeps nothing: the batch that it gets, and the last one, which
# its variable still names
IN_HAND = 2

_progress, _released = quick(Progress), quick(Released)


class _Slots:
    """What the client has done with the slots of one segment: per slot the last generation given
    back, and the last one lent out.
    """

    __slots__ = ("added", "leased", "mention", "released", "retired", "taken")

    def __init__(self, slots: int) -> None:
        self.released = [0] * slots
        self.taken = [0] * slots
        self.leased = 0  # slots that are lent out and not given back
        self.added = False  # its memory is here
        self.retired = False  # nothing in it is wanted any more, now or later
        self.mention = False  # the daemon seems not to know what was given back

    def lend(self, slot: int, generation: int) -> None:
        """`generation` of a slot whose former ones have all been given back."""
        self.taken[slot] = generation
        self.leased += 1

    def give_back(self, slot: int, generation: int) -> bool:
        """True if that is news."""
        if generation <= self.released[slot]:
            return False
        self.released[slot] = generation
        self.leased -= generation == self.taken[slot]
        return True

    def drop(self, slot: int, generation: int) -> None:
        """Given back without having been read; the slot is not lent."""
        self.released[slot] = max(self.released[slot], generation)
        self.taken[slot] = max(self.taken[slot], generation)


@dataclass(slots=True)
class _Item:
    """Batch k of the plan."""

    k: int
    cursor: Cursor
    slice: Slice
    batch: Descriptor | None = None


class ClientProtocol:
    """One session from its Welcome to its end.

    Pure: the loader passes in what arrives and sends what `progress` returns.

    The plan is the endless row of batches from `cursor`. After a seek, descriptors of batches that
    are among the first `prefetch` of the new plan are kept, whenever they arrive; all others are
    released unseen. The daemon keeps by the same rule, and where the two differ nothing worse comes
    of it than a batch made twice.
    """

    def __init__(
        self, session: int, shape: EpochShape, prefetch: int, segment: Segment, cursor: Cursor
    ) -> None:
        if segment.slots < prefetch + 2:
            raise ProtocolError(
                f"a segment of {segment.slots} slots is too small for prefetch = {prefetch}"
            )
        self.session = session
        self.shape = shape
        self.prefetch = prefetch
        self.dirty = True
        self._pressing = True  # what is to be said must be said at once
        self._untold = 0  # batches taken since the daemon was last told
        self._late = LATE if prefetch >= SHORT else 1
        self.plan = 0
        self._slots_each = segment.slots
        self._segments: dict[int, _Slots] = {}
        self._current = segment.segment
        self._seq = 0
        self._items: deque[_Item] = deque()
        self._begin(cursor)
        self.add_segment(segment)

    @property
    def cursor(self) -> Cursor:
        """Of the next batch to take; behind the last batch of an epoch it stands at that epoch's
        end.
        """
        if self._passed is not None:
            self._cursor, self._passed = next_cursor(self.shape, self._passed), None
        return self._cursor

    @property
    def told(self) -> bool:
        """The daemon has been told something, and so makes batches."""
        return self._seq > 0

    @property
    def due(self) -> bool:
        """There is something to say that should not wait for the next batch.

        What does wait costs nobody anything: the next batch is in hand, all of `prefetch` but one
        are ready or being made, and the daemon has all the slots that it needs for them.
        """
        if not self.dirty:
            return False
        if self._pressing or self._untold >= self._late or self._items[0].batch is None:
            return True
        return sum(slots.leased for slots in self._segments.values()) > IN_HAND

    @property
    def live(self) -> tuple[int, ...]:
        """Segments that must stay mapped: the current one and those in which something is lent out
        or waits to be taken.
        """
        return tuple(
            number for number, slots in self._segments.items() if slots.added and not slots.retired
        )

    def known(self, segment: int) -> bool:
        """Its memory has come, and has not been retired."""
        slots = self._segments.get(segment)
        return slots is not None and slots.added and not slots.retired

    def seek(self, cursor: Cursor) -> None:
        """The next batch is the one at `cursor`: a new plan, unless the present one goes on exactly
        there.
        """
        if normalize_cursor(self.shape, cursor) == normalize_cursor(self.shape, self.cursor):
            self._cursor = cursor
            return
        here = [item.batch for item in self._items if item.batch]
        self._begin(cursor)
        for batch in here:
            self._adopt(batch)
        if self._items[0].batch is None:
            self._make_room()
        self._tidy()

    def take(self) -> Descriptor | None:
        """The next batch, if it and its segment are here.

        From then on its slot is leased, until `release`.
        """
        item = self._items[0]
        batch = item.batch
        if batch is None:
            return None
        slots = self._segments[batch.segment]
        if not slots.added:
            return None
        slots.lend(batch.slot, batch.generation)
        self._items.popleft()
        self._untold += 1
        self._passed = item.cursor
        self._extend()
        if self._items[0].batch is None:
            self._make_room()
        self.dirty = True
        return batch

    def receive(self, batch: Descriptor) -> None:
        """A descriptor: new, repeated, late, of an older plan, of another session.

        Raises ProtocolError for one that no daemon sends.
        """
        if batch.session != self.session:
            return
        slots = self._slots_of(batch)
        if not 1 <= batch.plan <= self.plan:
            raise ProtocolError(
                f"batch {batch.k} of plan {batch.plan}, while plans up to {self.plan} were asked "
                "for"
            )
        if batch.generation <= slots.taken[batch.slot]:
            if batch.generation <= slots.released[batch.slot]:
                slots.mention = self.dirty = self._pressing = True
            return
        if slots.taken[batch.slot] > slots.released[batch.slot] or self._clashes(batch):
            raise ProtocolError(
                f"generation {batch.generation} of segment {batch.segment} slot {batch.slot} came "
                "before the one in use was given back"
            )
        if batch.plan == self.plan:
            self._accept(batch)
        else:
            self._adopt(batch)
        if self._items[0].batch is None:
            self._make_room()
        self._tidy()

    def add_segment(self, segment: Segment) -> None:
        """Its memory is here. The newest one is the current one."""
        slots = self._segments.get(segment.segment)
        if slots and slots.added:
            return
        if segment.segment < self._current or segment.slots != self._slots_each:
            raise ProtocolError(
                f"{segment} came after segment {self._current} of {self._slots_each} slots"
            )
        if slots is None:
            slots = self._segments[segment.segment] = _Slots(segment.slots)
        slots.added = True
        self._current = segment.segment
        self._tidy()

    def release(self, segment: int, slot: int, generation: int) -> None:
        """The lease is over.

        Saying so again does nothing. Raises ValueError for what was never lent.
        """
        slots = self._segments.get(segment)
        if slots is None or not 0 <= slot < len(slots.taken) or generation > slots.taken[slot]:
            raise ValueError(
                f"generation {generation} of segment {segment} slot {slot} was never lent"
            )
        if slots.give_back(slot, generation):
            self.dirty = True
            if len(self._segments) > 1:
                self._tidy()

    def free_slots(self) -> int:
        """Slots of the current segment that the trainer does not hold."""
        slots = self._segments[self._current]
        return len(slots.taken) - slots.leased

    def progress(
        self,
        *,
        again: bool = False,
        ping: bool = False,
        waiting: bool = False,
        stacks: bool = False,
    ) -> Progress:
        """All that the daemon must know, now; it makes up for any that was lost before it."""
        self._seq += 1
        self.dirty = self._pressing = False
        self._untold = 0
        have = taken = self._items[0].k
        for item in self._items:
            if item.batch is None:
                break
            have += 1
        released: list[Released] = []
        for number, slots in self._segments.items():
            if not slots.retired or slots.mention:
                slots.mention = False
                released.append(_released(number, tuple(slots.released), tuple(slots.taken)))
        start = self._start
        return _progress(
            self.session,
            self._seq,
            self.plan,
            start.epoch,
            start.position,
            start.step,
            taken,
            have,
            again,
            ping,
            waiting,
            tuple(released),
            stacks,
        )

    # how

    def _begin(self, cursor: Cursor) -> None:
        self.plan += 1
        self._start = self._cursor = cursor
        # of the last batch taken, whose end is worked out when somebody asks
        self._passed: Cursor | None = None
        self._steps: Iterator[tuple[Cursor, Slice]] = steps(self.shape, cursor)
        self._count = 0
        self._items.clear()
        self._extend()
        self.dirty = self._pressing = True

    def _extend(self) -> None:
        while len(self._items) < self.prefetch:
            cursor, cut = next(self._steps)
            self._items.append(_Item(self._count, cursor, cut))
            self._count += 1

    def _slots_of(self, batch: Descriptor) -> _Slots:
        """The record of the batch's segment, which may not have come yet.

        Raises ProtocolError for one that can't be.
        """
        slots = self._segments.get(batch.segment)
        if (
            slots is None
            and batch.segment > self._current
            and sum(not s.added for s in self._segments.values()) < AHEAD
        ):
            slots = self._segments[batch.segment] = _Slots(self._slots_each)
        if slots is None or batch.slot >= len(slots.taken) or batch.generation < 1:
            raise ProtocolError(
                f"segment {batch.segment} slot {batch.slot} generation {batch.generation} can't be"
            )
        return slots

    def _clashes(self, batch: Descriptor) -> bool:
        """Another generation of its slot waits to be taken."""
        for item in self._items:
            other = item.batch
            if other and (other.segment, other.slot) == (batch.segment, batch.slot):
                return other.generation != batch.generation
        return False

    def _accept(self, batch: Descriptor) -> None:
        """A descriptor of the present plan."""
        taken = self._items[0].k
        if batch.k >= taken + self.prefetch:
            raise ProtocolError(
                f"batch {batch.k} was announced with {taken} taken and prefetch = {self.prefetch}"
            )
        if batch.k < taken:
            return self._drop(batch)
        item = self._items[batch.k - taken]
        if (batch.epoch, batch.start, batch.rows) != (
            item.slice.epoch,
            item.slice.start,
            item.slice.rows,
        ):
            raise ProtocolError(
                f"batch {batch.k} of plan {batch.plan} should be {item.slice}, not {batch}"
            )
        self._put(item, batch)

    def _adopt(self, batch: Descriptor) -> None:
        """A descriptor of an older plan: kept if its slice is one of the first of this one and
        nothing is there yet.
        """
        if any(item.batch and _same(item.batch, batch) for item in self._items):
            return
        cut = Slice(batch.epoch, batch.start, batch.rows)
        for item in self._items:
            if item.k < self.prefetch and item.slice == cut and item.batch is None:
                return self._put(item, batch)
        self._drop(batch)

    def _put(self, item: _Item, batch: Descriptor) -> None:
        if self._segments[batch.segment].retired:
            return self._drop(batch)
        if item.batch and not _same(item.batch, batch):
            self._drop(item.batch)
        for other in self._items:  # kept under another number until now
            if other is not item and other.batch and _same(other.batch, batch):
                other.batch = None
        item.batch = batch

    def _make_room(self) -> None:
        """The next batch is not here: a later one, kept over a seek, must not sit in the last slot
        that it could be made in: the last one goes back.
        """
        slots = self._segments[self._current]
        kept = [item for item in self._items if item.batch and item.batch.segment == self._current]
        while kept and len(slots.taken) - slots.leased <= len(kept):
            item = kept.pop()
            if item.batch is not None:
                self._drop(item.batch)
                item.batch = None

    def _drop(self, batch: Descriptor) -> None:
        slots = self._segments[batch.segment]
        slots.drop(batch.slot, batch.generation)
        slots.mention = slots.retired
        self.dirty = self._pressing = True

    def _tidy(self) -> None:
        """An old segment in which nothing is outstanding is done with: whatever is announced in it
        later is given back unseen.
        """
        if len(self._segments) == 1:
            return
        wanted = {item.batch.segment for item in self._items if item.batch}
        for number, slots in self._segments.items():
            if (
                number < self._current
                and not slots.retired
                and number not in wanted
                and not slots.leased
            ):
                slots.retired = slots.mention = self._pressing = True


def _same(a: Descriptor, b: Descriptor) -> bool:
    return (a.segment, a.slot, a.generation) == (b.segment, b.slot, b.generation)
