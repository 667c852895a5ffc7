"""One client's plan, its window of batches, and its slots."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from loaderd.core.batches import BatchBuild, SlotRef
from loaderd.core.events import Attach
from loaderd.core.slots import ANNOUNCE, ANNOUNCED, ENDING, FILLING, FINISH, FREE, LEASE, LEASED, READY, RELEASE, SlotState, SlotTable
from loaderd_wire.messages import Descriptor, Failure, Progress, Released, Segment
from loaderd_wire.records import quick
from loaderd_wire.slices import LAST_EPOCH, Cursor, Slice, steps, steps_left

NOT_OUT = (FILLING, READY, ENDING)  # the client cannot know the generation of such a slot
REMIND_S = 1.0  # between two reminders of a slot that the client seems not to know of

_place = quick(SlotRef)


@dataclass(slots=True)
class PlannedBatch:
    """A batch of the window.

    Attributes:
        k: Its number in the plan.
        cursor: Where it begins.
        draft: The batch.
        announced: The client was told of it in this plan, even if it has to be made again since.
    """

    k: int
    cursor: Cursor
    build: BatchBuild
    announced: bool = False


@dataclass(slots=True)
class Announced:
    """A slot that the client was told of and has not given back.

    Attributes:
        draft: The batch in it.
        message: The latest descriptor of it.
        told_s: When that was sent.
    """

    build: BatchBuild
    message: Descriptor
    told_s: float


class SessionState:
    """What one client is to get next, what it holds, and what it has said. The scheduler drives it.

    The window are batches [taken, taken + prefetch) of the plan.

    Attributes:
        session: Number of the session.
        stream: Name of the stream.
        shape: How the client cuts an epoch into batches.
        seed: Seed of the order and of the samples' random values.
        prefetch: Length of the window.
        on_error: The stream's rule for bad samples.
        collated: A batch is made as a whole.
        rings: The segments that are in use, by number.
        current: Number of the segment in which slots are claimed.
        growing: A larger segment has been asked for.
        outgrown: A batch of the window may not fit into the current segment.
        ended: Why nothing more is made for it; "" while something is.
        failure: The fault it has ended on; it is sent again whenever the client asks.
        gone: The client has left.
        seq: Number of the client's latest message.
        plan: Number of the client's plan; 0 before its first message.
        taken: Batches of the plan that the trainer has got.
        made: Batches that were finished, over all plans.
        waiting: The trainer waits for a batch.
        items: The window, in order.
        given: Announced and leased slots, by (segment, slot).
        unplaced: A batch of the window may have no slot.
        unsaid: A batch may be ready to be announced.
        version: Number of its latest entry in the queue.
        note_s: When a false statement of the client was last logged; None: never.
        notes_left_out: How many were not logged since.
    """

    def __init__(self, event: Attach, on_error: str, collated: bool) -> None:
        """Begin without a plan.

        Args:
            event: The client and its segment.
            on_error: The stream's rule for bad samples.
            collated: A batch is made as a whole.

        Raises:
            ValueError: An epoch has no batch, or the segment has too few slots.
        """
        if steps_left(event.shape, 0) < 1 or event.prefetch < 1 or event.segment.slots < event.prefetch + 2:
            raise ValueError(f"session {event.session} can't be served: {event}")
        self.session = event.session
        self.stream = event.stream
        self.shape = event.shape
        self.seed = event.seed
        self.prefetch = event.prefetch
        self.on_error = on_error
        self.collated = collated
        self.rings = {event.segment.segment: SlotTable(event.segment)}
        self.current = event.segment.segment
        self.growing = self.outgrown = False
        self.ended = ""
        self.failure: Failure | None = None
        self.gone = False
        self.seq = self.plan = self.taken = self.made = 0
        self.waiting = False
        self.items: deque[PlannedBatch] = deque()
        self.given: dict[tuple[int, int], Announced] = {}
        self._steps: Iterator[tuple[Cursor, Slice]] | None = None
        # These say what has to be looked at: most events change little of a window.
        self._heard: dict[int, Released] = {}  # the client's latest statement on each segment
        self._unsettled = False  # a slot in the window may have been given back, or leased
        self.unplaced = False
        self.unsaid = False
        self.version = 0
        self.note_s: float | None = None
        self.notes_left_out = 0

    # what the client says

    def fault_in(self, p: Progress) -> str:
        """What a Progress asks for that cannot be; "" if all can. Our own client sends none."""
        if p.plan < 1:
            return f"plan {p.plan}, plans count from 1"
        if p.position > self.shape.samples:
            return f"position {p.position} of an epoch of {self.shape.samples} samples"
        if p.epoch > LAST_EPOCH:
            return f"epoch {p.epoch}, the last one is {LAST_EPOCH}"
        if p.plan > self.plan and p.taken > self.prefetch:
            return f"{p.taken} batches taken of plan {p.plan}, of which none was announced"
        return ""

    @property
    def announced(self) -> int:
        """Batches of the plan that were announced, without a gap."""
        count = self.taken
        for item in self.items:
            if not item.announced:
                break
            count += 1
        return count

    def give_back(self, told: Released) -> str:
        """Take in which slots of a segment the client has given back or handed to its trainer.

        Args:
            told: What the client says of one segment.

        Returns:
            What is wrong with it, or "". If something is, nothing was changed.
        """
        ring = self.rings.get(told.segment)
        if ring is None:
            return "" if told.segment <= self.current else f"segment {told.segment}, which it hasn't got"
        if not len(told.generations) == len(told.taken) == len(ring.state):
            return f"{len(told.generations)} slots of segment {told.segment}, which has {len(ring.state)}"
        heard = self._heard.get(told.segment)
        news = [  # generations never fall, so what was accepted once changes nothing
            (slot, back, out)
            for slot, (back, out) in enumerate(zip(told.generations, told.taken, strict=True))
            if heard is None or back != heard.generations[slot] or out != heard.taken[slot]
        ]
        for slot, back, out in news:
            out_there = ring.generation[slot] - (ring.state[slot] in NOT_OUT)
            if back > out_there or out > out_there:
                return f"generation {max(back, out)} of segment {told.segment} slot {slot}, of which {out_there} were given out"
        self._heard[told.segment] = told
        for slot, back, out in news:
            given = self.given.get((told.segment, slot))
            if given is None or max(back, out) < ring.generation[slot]:
                continue
            if given.message.plan != self.plan or given.message.k >= self.taken:
                self._unsettled = True
            if ring.state[slot] is ANNOUNCED:
                ring.move(slot, LEASE)
            if back >= ring.generation[slot]:
                ring.move(slot, RELEASE)
                del self.given[told.segment, slot]
        return ""

    def seek(self, p: Progress) -> None:
        """Begin a new plan.

        A batch that is made, announced or in the making is kept under its new number if its slice is one
        of the first `prefetch` of the new plan. The client keeps descriptors by the same rule. Of two
        batches with one slice, the one that the client may know is preferred.

        Args:
            p: The Progress that begins it.
        """
        stock = {given.build.slice: given.build for key, given in self.given.items() if self._state(key) is ANNOUNCED}
        for item in self.items:
            if item.build.place and not self._is_given(item.build):
                stock.setdefault(item.build.slice, item.build)
        old = [item.build for item in self.items]
        self._unsettled = self.unplaced = self.unsaid = True
        self.plan, self.taken = p.plan, p.taken
        self.items.clear()
        self._steps = steps(self.shape, Cursor(p.epoch, p.position, p.step))
        kept: set[int] = set()
        for _ in range(p.taken):
            _, cut = next(self._steps)
            build = stock.pop(cut, None)
            if build and self._is_given(build):
                self._lease(build)
        while len(self.items) < self.prefetch:
            cursor, cut = next(self._steps)
            k = self.taken + len(self.items)
            build = stock.get(cut) if k < self.prefetch else None
            if build:
                kept.add(id(build))
            self.items.append(PlannedBatch(k, cursor, build or self._build(cut)))
        for build in old:
            if id(build) not in kept:
                self._forsake(build)

    def advance(self, taken: int) -> str:
        """The trainer has got the batches before `taken`: move the window on.

        Returns:
            What is wrong with that, or "". If something is, nothing was changed.
        """
        ahead = taken - self.taken
        # Batches are announced in order: if the last of them was, all were.
        if ahead > 0 and (ahead > len(self.items) or not self.items[ahead - 1].announced):
            return f"{taken} batches taken of plan {self.plan}, of which {self.announced} were announced"
        if ahead < 0:
            return f"{taken} batches taken of plan {self.plan} after {self.taken}"
        while self.taken < taken:
            build = self.items.popleft().build
            if self._is_given(build):
                self._lease(build)
            else:
                self._forsake(build)  # it is being made again, but the client had it after all
            self.taken += 1
            self.unplaced = True
        return ""

    def settle(self) -> None:
        """Batches whose slot was given back, or leased under another number, are made again."""
        if not self._unsettled:
            return
        self._unsettled, self.unplaced = False, True
        for item in self.items:
            place = item.build.place
            state = self.slot_states(place) if place and item.build.whole else FILLING
            if state is LEASED:
                item.build = self._build(item.build.slice)
            elif state in (FREE, None):
                self.wait(item.build)

    # what the scheduler does

    def fill(self) -> None:
        """Claim slots for the batches of the window that have none, in order."""
        if self.gone or self.ended or not self.plan:
            return
        assert self._steps is not None
        while len(self.items) < self.prefetch:
            cursor, cut = next(self._steps)
            self.items.append(PlannedBatch(self.taken + len(self.items), cursor, self._build(cut)))
        self.unplaced = False
        ring = self.rings[self.current]
        for item in self.items:
            build = item.build
            if build.place is not None:
                continue
            if not self._fits(build, ring.segment):
                self.unplaced = True
                continue
            if not ring.free:
                self._take_back(item.k)
            claimed = ring.claim()
            if claimed is None:
                self.unplaced = True
                break
            build.begin(_place(self.current, *claimed))
            if not build.todo:
                self.finish(build)

    def finish(self, build: BatchBuild) -> None:
        """If all rows of a batch are in its slot, the slot is READY."""
        if build.whole and build.place and self.slot_states(build.place) is FILLING:
            self.rings[build.place.segment].move(build.place.slot, FINISH)
            self.made += 1
            self.unsaid = True

    def announce(self, now_s: float) -> list[Descriptor]:
        """The descriptors of batches that are READY and whose turn it is, in order.

        Args:
            now_s: Time of the event.
        """
        messages: list[Descriptor] = []
        self.unsaid = False
        for item in self.items:
            build = item.build
            place = build.place
            if place is not None and not build.todo and not build.running:
                state = self.slot_states(place)
                if state is READY:
                    self.rings[place.segment].move(place.slot, ANNOUNCE)
                    state = ANNOUNCED
                    message = build.descriptor(self.session, self.plan, item.k)
                    self.given[place.segment, place.slot] = Announced(build, message, now_s)
                    messages.append(message)
                elif state is ANNOUNCED and not item.announced:  # kept at a seek, under a new number
                    given = self.given[place.segment, place.slot]
                    given.message, given.told_s = build.descriptor(self.session, self.plan, item.k), now_s
                    messages.append(given.message)
                item.announced = item.announced or state is ANNOUNCED
            if not item.announced:
                break
        return messages

    def anew(self, have: int, now_s: float) -> list[Descriptor]:
        """Descriptors to be sent again.

        Args:
            have: The client has the batches of the plan before this one.
            now_s: Time of the event.

        Returns:
            Those from `have` on, and those of former plans whose slot was not given back.
        """
        again: list[Descriptor] = []
        for given in self.given.values():
            place = given.build.place
            assert place is not None
            current = given.message.plan == self.plan and given.message.k >= self.taken
            if self.slot_states(place) is ANNOUNCED and (not current or given.message.k >= have):
                given.told_s = now_s
                again.append(given.message)
        return sorted(again, key=lambda m: (m.plan, m.k))

    def reminders(self, mentioned: set[int], now_s: float) -> list[Descriptor]:
        """Descriptors of slots that only the client can free and that it seems not to know of.

        A message about them was lost. They are of a former plan, or in a segment that the client does not
        mention any longer.

        Args:
            mentioned: Segments that the client's message has mentioned.
            now_s: Time of the event.
        """
        again: list[Descriptor] = []
        for (segment, _), given in self.given.items():
            place = given.build.place
            if place is None or now_s - given.told_s < REMIND_S:
                continue
            orphan = self.slot_states(place) is ANNOUNCED and (given.message.plan != self.plan or given.message.k < self.taken)
            if orphan or (segment != self.current and segment not in mentioned):
                given.told_s = now_s
                again.append(given.message)
        return again

    def restart(self, build: BatchBuild) -> None:
        """Make a batch again in another slot. The old one is FREE when its last job has ended."""
        place = build.place
        self.wait(build)
        if place is not None:
            self.rings[place.segment].abandon(place.slot)

    def wait(self, build: BatchBuild) -> None:
        """A batch has no slot any longer, and waits for one."""
        build.begin(None)
        self.unplaced = True

    def needs(self) -> tuple[int, int]:
        """(bytes of tail a row, bytes of body) that batches of the window are known to need."""
        builds = [item.build for item in self.items]
        return max((d.needs_tail for d in builds), default=0), max((d.needs_body for d in builds), default=0)

    def grown(self, segment: Segment) -> None:
        """A larger segment has been reserved; slots are claimed in it from now on.

        Raises:
            ValueError: It is not newer than the current one, or has too few slots.
        """
        if segment.segment <= self.current or segment.slots < self.prefetch + 2:
            raise ValueError(f"session {self.session} has segment {self.current}: can't go on in {segment}")
        self.rings[segment.segment] = SlotTable(segment)
        self.current = segment.segment
        self.growing = False

    def end(self, why: str) -> None:
        """Make nothing more. What was announced stays valid.

        Args:
            why: For the client's log.
        """
        self.ended = self.ended or why
        for item in self.items:
            if not self._is_given(item.build):
                self._forsake(item.build)

    def leave(self) -> None:
        """The client is gone: all slots go back, those with a job when it has ended."""
        self.gone = True
        self.end("gone")
        self.items.clear()
        for segment, slot in self.given:
            self.rings[segment].move(slot, RELEASE)
        self.given.clear()

    def spent(self) -> list[int]:
        """Segments that nothing uses any longer. They are forgotten here."""
        done = [number for number, ring in self.rings.items() if ring.idle and (self.gone or number != self.current)]
        for number in done:
            del self.rings[number]
            self._heard.pop(number, None)
        return done

    def first_work(self) -> PlannedBatch | None:
        """The first batch of the window that has a piece for a worker."""
        for item in self.items:
            if item.build.todo and item.build.has_work:
                return item
        return None

    def slot_states(self, place: SlotRef) -> SlotState | None:
        """State of a slot.

        Returns:
            None once the slot serves another batch, or its segment has been freed.
        """
        ring = self.rings.get(place.segment)
        return ring.state[place.slot] if ring and ring.generation[place.slot] == place.generation else None

    # parts of the above

    def _build(self, cut: Slice) -> BatchBuild:
        return BatchBuild(self.stream, self.on_error, self.collated, self.seed, cut)

    def _fits(self, build: BatchBuild, segment: Segment) -> bool:
        return build.needs_tail <= segment.tail_row_bytes and build.needs_body <= segment.body_bytes

    def _state(self, key: tuple[int, int]) -> SlotState:
        return self.rings[key[0]].state[key[1]]

    def _is_given(self, build: BatchBuild) -> bool:
        place = build.place
        given = self.given.get((place.segment, place.slot)) if place else None
        return given is not None and given.build is build

    def _lease(self, build: BatchBuild) -> None:
        place = build.place
        if place and self.slot_states(place) is ANNOUNCED:
            self.rings[place.segment].move(place.slot, LEASE)

    def _forsake(self, build: BatchBuild) -> None:
        """No batch of the window is this one any longer. A slot that the client knows stays."""
        if build.place and not self._is_given(build):
            if self.slot_states(build.place) in (FILLING, READY):
                self.restart(build)
            else:
                self.wait(build)

    def _take_back(self, k: int) -> None:
        """Free a slot for batch k: the last batch after it that is not announced loses its own."""
        for item in reversed(self.items):
            place = item.build.place
            if item.k <= k:
                return
            if not place or place.segment != self.current or self.rings[self.current].writers[place.slot]:
                continue
            if self.slot_states(place) in (FILLING, READY):
                return self.restart(item.build)
