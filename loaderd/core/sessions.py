"""One client's plan, its window of batches, and its slots."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from loaderd.core.batches import BatchBuild
from loaderd.core.events import Attach
from loaderd.core.session_slots import REMIND_S, SessionSlots
from loaderd.core.slots import ANNOUNCED, FILLING, FINISH, FREE, LEASED, READY
from loaderd_wire.messages import Descriptor, Failure, Progress, Released, Segment
from loaderd_wire.slices import LAST_EPOCH, Cursor, Slice, steps, steps_left


@dataclass(slots=True)
class PlannedBatch:
    """A batch of the window.

    Attributes:
        k: Its number in the plan.
        cursor: Where it begins.
        build: The batch.
        announced: The client was told of it in this plan, even if it has to be made again since.
    """

    k: int
    cursor: Cursor
    build: BatchBuild
    announced: bool = False


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
        slots: Its slots.
        ended: Why nothing more is made for it; "" while something is.
        failure: The fault it has ended on; it is sent again whenever the client asks.
        gone: The client has left.
        seq: Number of the client's latest message.
        plan: Number of the client's plan; 0 before its first message.
        taken: Batches of the plan that the trainer has got.
        made: Batches that were finished, over all plans.
        waiting: The trainer waits for a batch.
        items: The window, in order.
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
        if (
            steps_left(event.shape, 0) < 1
            or event.prefetch < 1
            or event.segment.slots < event.prefetch + 2
        ):
            raise ValueError(f"session {event.session} can't be served: {event}")
        self.session = event.session
        self.stream = event.stream
        self.shape = event.shape
        self.seed = event.seed
        self.prefetch = event.prefetch
        self.on_error = on_error
        self.collated = collated
        self.slots = SessionSlots(event.segment)
        self.ended = ""
        self.failure: Failure | None = None
        self.gone = False
        self.seq = self.plan = self.taken = self.made = 0
        self.waiting = False
        self.items: deque[PlannedBatch] = deque()
        self._steps: Iterator[tuple[Cursor, Slice]] | None = None
        # These say what has to be looked at: most events change little of a window.
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
        fault, changed = self.slots.give_back(told)
        for known in changed:
            if known.message.plan != self.plan or known.message.k >= self.taken:
                self._unsettled = True
        return fault

    def seek(self, p: Progress) -> None:
        """Begin a new plan.

        A batch that is made, announced or in the making is kept under its new number if its slice
        is one of the first `prefetch` of the new plan. The client keeps descriptors by the same
        rule. Of two batches with one slice, the one that the client may know is preferred.

        Args:
            p: The Progress that begins it.
        """
        slots = self.slots
        stock = {
            known.build.slice: known.build
            for (segment, slot), known in slots.announced.items()
            if slots.tables[segment].state[slot] is ANNOUNCED
        }
        for item in self.items:
            if item.build.place and not slots.is_known(item.build):
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
            if build and slots.is_known(build):
                slots.lease(build)
        while len(self.items) < self.prefetch:
            cursor, cut = next(self._steps)
            k = self.taken + len(self.items)
            build = stock.get(cut) if k < self.prefetch else None
            if build:
                kept.add(id(build))
            self.items.append(PlannedBatch(k, cursor, build or self._build(cut)))
        for build in old:
            if id(build) not in kept:
                self._give_up(build)

    def advance(self, taken: int) -> str:
        """The trainer has got the batches before `taken`: move the window on.

        Returns:
            What is wrong with that, or "". If something is, nothing was changed.
        """
        ahead = taken - self.taken
        # Batches are announced in order: if the last of them was, all were.
        if ahead > 0 and (ahead > len(self.items) or not self.items[ahead - 1].announced):
            return (
                f"{taken} batches taken of plan {self.plan}, of which {self.announced} were "
                "announced"
            )
        if ahead < 0:
            return f"{taken} batches taken of plan {self.plan} after {self.taken}"
        while self.taken < taken:
            build = self.items.popleft().build
            if self.slots.is_known(build):
                self.slots.lease(build)
            else:
                self._give_up(build)  # it is being made again, but the client had it after all
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
            state = self.slots.state_of(place) if place and item.build.whole else FILLING
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
        slots = self.slots
        table = slots.table
        for item in self.items:
            build = item.build
            if build.place is not None:
                continue
            if (build.needs_tail or build.needs_body) and not slots.fits(build):
                self.unplaced = True
                continue
            if not table.free:
                self._take_back(item.k)
            place = slots.claim()
            if place is None:
                self.unplaced = True
                break
            build.begin(place)
            if not build.todo:
                self.finish(build)

    def finish(self, build: BatchBuild) -> None:
        """If all rows of a batch are in its slot, the slot is READY."""
        if build.whole and build.place and self.slots.state_of(build.place) is FILLING:
            self.slots.tables[build.place.segment].move(build.place.slot, FINISH)
            self.made += 1
            self.unsaid = True

    def announce(self, now_s: float) -> list[Descriptor]:
        """The descriptors of batches that are READY and whose turn it is, in order.

        Args:
            now_s: Time of the event.
        """
        messages: list[Descriptor] = []
        self.unsaid = False
        slots = self.slots
        for item in self.items:
            build = item.build
            place = build.place
            if place is not None and not build.todo and not build.running:
                state = slots.state_of(place)
                if state is READY:
                    state = ANNOUNCED
                    message = build.descriptor(self.session, self.plan, item.k)
                    slots.announce(build, place, message, now_s)
                    messages.append(message)
                elif state is ANNOUNCED and not item.announced:
                    # Kept at a seek, under a new number.
                    known = slots.announced[place.segment, place.slot]
                    known.message = build.descriptor(self.session, self.plan, item.k)
                    known.told_s = now_s
                    messages.append(known.message)
                item.announced = item.announced or state is ANNOUNCED
            if not item.announced:
                break
        return messages

    def announce_again(self, have: int, now_s: float) -> list[Descriptor]:
        """Descriptors to be sent again.

        Args:
            have: The client has the batches of the plan before this one.
            now_s: Time of the event.

        Returns:
            Those from `have` on, and those of former plans whose slot was not given back.
        """
        again: list[Descriptor] = []
        for known in self.slots.announced.values():
            place = known.build.place
            assert place is not None
            current = known.message.plan == self.plan and known.message.k >= self.taken
            if self.slots.state_of(place) is ANNOUNCED and (not current or known.message.k >= have):
                known.told_s = now_s
                again.append(known.message)
        return sorted(again, key=lambda m: (m.plan, m.k))

    def reminders(self, released: tuple[Released, ...], now_s: float) -> list[Descriptor]:
        """Descriptors of slots that only the client can free and that it seems not to know of.

        A message about them was lost. They are of a former plan, or in a segment that the client
        does not mention any longer. Each of them is sent once in REMIND_S.

        Args:
            released: What the client's message has said of its segments.
            now_s: Time of the event.
        """
        again: list[Descriptor] = []
        slots = self.slots
        for (segment, _), known in slots.announced.items():
            if now_s - known.told_s < REMIND_S:
                continue
            place, message = known.build.place, known.message
            if place is None:
                continue
            orphan = (message.plan != self.plan or message.k < self.taken) and slots.state_of(
                place
            ) is ANNOUNCED
            if orphan or (segment != slots.current and all(r.segment != segment for r in released)):
                known.told_s = now_s
                again.append(message)
        return again

    def restart(self, build: BatchBuild) -> None:
        """Make a batch again in another slot. The old one is FREE when its last job has ended."""
        place = build.place
        self.wait(build)
        if place is not None:
            self.slots.tables[place.segment].abandon(place.slot)

    def wait(self, build: BatchBuild) -> None:
        """A batch has no slot any longer, and waits for one."""
        build.begin(None)
        self.unplaced = True

    def needs(self) -> tuple[int, int]:
        """(bytes of tail a row, bytes of body) that batches of the window are known to need."""
        builds = [item.build for item in self.items]
        return max((d.needs_tail for d in builds), default=0), max(
            (d.needs_body for d in builds), default=0
        )

    def grown(self, segment: Segment) -> None:
        """A larger segment has been reserved; slots are claimed in it from now on.

        Raises:
            ValueError: It is not newer than the current one, or has too few slots.
        """
        if segment.segment <= self.slots.current or segment.slots < self.prefetch + 2:
            raise ValueError(
                f"session {self.session} has segment {self.slots.current}: can't go on in {segment}"
            )
        self.slots.add(segment)

    def end(self, why: str) -> None:
        """Make nothing more. What was announced stays valid.

        Args:
            why: For the client's log.
        """
        self.ended = self.ended or why
        for item in self.items:
            if not self.slots.is_known(item.build):
                self._give_up(item.build)

    def leave(self) -> None:
        """The client is gone: all slots go back, those with a job when it has ended."""
        self.gone = True
        self.end("gone")
        self.items.clear()
        self.slots.release_all()

    def first_work(self) -> PlannedBatch | None:
        """The first batch of the window that has a piece for a worker."""
        for item in self.items:
            build = item.build
            if build.todo and (not build.running or build.has_work):
                return item
        return None

    # parts of the above

    def _build(self, cut: Slice) -> BatchBuild:
        return BatchBuild(self.stream, self.on_error, self.collated, self.seed, cut)

    def _give_up(self, build: BatchBuild) -> None:
        """No batch of the window is this one any longer. A slot that the client knows stays."""
        if build.place and not self.slots.is_known(build):
            if self.slots.state_of(build.place) in (FILLING, READY):
                self.restart(build)
            else:
                self.wait(build)

    def _take_back(self, k: int) -> None:
        """Free a slot for batch k: the last batch after it that is not announced loses its own."""
        for item in reversed(self.items):
            place = item.build.place
            if item.k <= k:
                return
            if (
                not place
                or place.segment != self.slots.current
                or self.slots.table.writers[place.slot]
            ):
                continue
            if self.slots.state_of(place) in (FILLING, READY):
                return self.restart(item.build)
