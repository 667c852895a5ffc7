"""The client's half of the protocol: what it takes, and what the daemon must be told. Pure."""

from __future__ import annotations

from loaderd_client.plan import ClientPlan
from loaderd_client.slot_ledger import SlotLedger
from loaderd_wire.errors import ProtocolError
from loaderd_wire.messages import Descriptor, Progress, Segment
from loaderd_wire.records import quick
from loaderd_wire.slices import Cursor, EpochShape, normalize_cursor

LATE = 2  # taken batches that are told together, while there are others in hand
SHORT = 4  # a prefetch below which each one counts
# slots that a trainer holds which keeps nothing: the batch that it gets, and the last one, which
# its variable still names
IN_HAND = 2

_progress = quick(Progress)


class ClientProtocol:
    """One session from its Welcome to its end.

    Pure: the loader passes in what arrives and sends what `progress` returns.

    After a seek, descriptors of batches that are among the first `prefetch` of the new plan are
    kept, whenever they arrive. All others are released unseen. The daemon keeps by the same rule.
    Where the two differ, a batch is made twice, and nothing worse.

    Attributes:
        session: Number of the session.
        shape: How epochs are cut into steps.
        dirty: There is something that the daemon does not know.
    """

    def __init__(
        self,
        session: int,
        shape: EpochShape,
        prefetch: int,
        segment: Segment,
        cursor: Cursor,
        *,
        shared: bool = False,
    ) -> None:
        """Begin plan 1.

        Args:
            session: Number of the session.
            shape: How epochs are cut into steps.
            prefetch: Number of batches that are asked for ahead.
            segment: The first segment, whose memory is here.
            cursor: The first batch.
            shared: The session shares its batches. The segment is its group's, which has so many
                slots as the group needs. Each batch that was taken is told at once: few are
                announced ahead, and others wait for the slot.

        Raises:
            ProtocolError: The segment has too few slots.
        """
        if segment.slots < prefetch + 2 and not shared:
            raise ProtocolError(
                f"a segment of {segment.slots} slots is too small for prefetch = {prefetch}"
            )
        self.session = session
        self.shape = shape
        self.dirty = True
        self._pressing = True  # what is to be said must be said at once
        self._untold = 0  # batches taken since the daemon was last told
        self._late = LATE if prefetch >= SHORT and not shared else 1
        self._seq = 0
        self._plan = ClientPlan(shape, prefetch, cursor)
        self._ledger = SlotLedger(segment, shared=shared)

    @property
    def plan(self) -> int:
        """Number of the plan, from 1."""
        return self._plan.number

    @property
    def cursor(self) -> Cursor:
        """The next batch to take. Behind the last one of an epoch it stands at that epoch's end."""
        return self._plan.cursor

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
        if self._pressing or self._untold >= self._late or self._plan.awaited[0].batch is None:
            return True
        return self._ledger.leased > IN_HAND

    @property
    def live(self) -> tuple[int, ...]:
        """Segments that must stay mapped.

        They are the current one and those in which something is lent out or waits to be taken.
        """
        return self._ledger.live

    @property
    def here(self) -> tuple[Descriptor, ...]:
        """Batches that have come and wait to be taken."""
        return tuple(item.batch for item in self._plan.awaited if item.batch)

    def known(self, segment: int) -> bool:
        """True if the segment's memory has come, and it has not been retired."""
        return self._ledger.known(segment)

    def seek(self, cursor: Cursor) -> None:
        """Make the batch at `cursor` the next one.

        That begins a new plan, unless the present one goes on exactly there.
        """
        if normalize_cursor(self.shape, cursor) == normalize_cursor(self.shape, self.cursor):
            self._plan.stand_at(cursor)
            return
        here = self.here
        self._plan.begin(cursor)
        self.dirty = self._pressing = True
        for batch in here:
            self._place(batch)
        if self._plan.awaited[0].batch is None:
            self._make_room()
        self._retire()

    def take(self) -> Descriptor | None:
        """Take the next batch, if it and its segment are here.

        From then on its slot is leased, until `release`.
        """
        plan = self._plan
        batch = plan.awaited[0].batch
        if batch is None:
            return None
        slots = self._ledger.segments[batch.segment]
        if not slots.added:
            return None
        slots.lend(batch.slot, batch.generation)
        plan.take()
        self._untold += 1
        if plan.awaited[0].batch is None:
            self._make_room()
        self.dirty = True
        return batch

    def receive(self, batch: Descriptor) -> None:
        """Take in a descriptor: new, repeated, late, of an older plan, of another session.

        Raises:
            ProtocolError: No daemon sends such a one.
        """
        if batch.session != self.session:
            return
        slots = self._ledger.named_by(batch)
        plan = self._plan
        if not 1 <= batch.plan <= plan.number:
            raise ProtocolError(
                f"batch {batch.k} of plan {batch.plan}, while plans up to {plan.number} were asked "
                "for"
            )
        if batch.generation <= slots.taken[batch.slot]:
            if batch.generation <= slots.released[batch.slot]:
                slots.mention = self.dirty = self._pressing = True
            return
        if slots.taken[batch.slot] > slots.released[batch.slot] or plan.clashes(batch):
            raise ProtocolError(
                f"generation {batch.generation} of segment {batch.segment} slot {batch.slot} came "
                "before the one in use was given back"
            )
        self._place(batch)
        if plan.awaited[0].batch is None:
            self._make_room()
        if len(self._ledger.segments) > 1:
            self._retire()

    def add_segment(self, segment: Segment) -> None:
        """Take in a segment whose memory is here. It is the current one from now on.

        Raises:
            ProtocolError: It is older than the current one, or has an impossible number of slots.
        """
        self._ledger.add(segment)
        self.dirty = True
        self._retire()

    def release(self, segment: int, slot: int, generation: int) -> None:
        """End a lease. A second call does nothing.

        Raises:
            ValueError: This generation was never lent.
        """
        if self._ledger.release(segment, slot, generation):
            self.dirty = True
            if len(self._ledger.segments) > 1:
                self._retire()

    def free_slots(self) -> int:
        """Number of slots of the current segment that the trainer does not hold."""
        return self._ledger.free

    def progress(
        self,
        *,
        again: bool = False,
        ping: bool = False,
        waiting: bool = False,
        stacks: bool = False,
        waited_s: float = 0.0,
    ) -> Progress:
        """All that the daemon must know, now. It makes up for any that was lost before it.

        Args:
            again: Ask it to announce again what it has announced.
            ping: Ask it to answer.
            waiting: The trainer waits for the next batch.
            stacks: Ask it for the workers' stacks.
            waited_s: Seconds that the trainer has waited for batches so far.
        """
        self._seq += 1
        self.dirty = self._pressing = False
        self._untold = 0
        plan = self._plan
        start = plan.start
        return _progress(
            self.session,
            self._seq,
            plan.number,
            start.epoch,
            start.position,
            start.step,
            plan.awaited[0].k,
            plan.have,
            again,
            ping,
            waiting,
            self._ledger.report(),
            stacks,
            waited_s,
        )

    def _place(self, batch: Descriptor) -> None:
        """Keep a descriptor if it is wanted, else give its slot back."""
        item = self._plan.place(batch)
        if item is None or self._ledger.segments[batch.segment].retired:
            return self._drop(batch)
        displaced = self._plan.put(item, batch)
        if displaced is not None:
            self._drop(displaced)

    def _make_room(self) -> None:
        """The next batch is not here: make sure that there is a slot to make it in.

        A later batch, kept over a seek, may sit in the last one: then the last such batch goes
        back.
        """
        kept = self._plan.held(self._ledger.current)
        while kept and self._ledger.free <= len(kept):
            item = kept.pop()
            if item.batch is not None:
                self._drop(item.batch)
                item.batch = None

    def _drop(self, batch: Descriptor) -> None:
        self._ledger.segments[batch.segment].drop(batch.slot, batch.generation)
        self.dirty = self._pressing = True

    def _retire(self) -> None:
        if self._ledger.retire(self._plan.segments()):
            self._pressing = True
