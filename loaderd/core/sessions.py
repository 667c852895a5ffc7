"""One client's plan, its window of batches, and its slots."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from loaderd.core.batch_window import BatchWindow, PlannedBatch
from loaderd.core.batches import BatchBuild, SlotRef
from loaderd.core.events import Attach
from loaderd.core.histogram import Histogram
from loaderd.core.jobs import Done, Job
from loaderd.core.replay import Replay
from loaderd.core.session_slots import SessionSlots
from loaderd.core.slot_owner import SlotOwner
from loaderd.core.slots import ANNOUNCED, FILLING, FREE, LEASED, READY
from loaderd.core.usage import SessionUsage
from loaderd_wire.messages import Descriptor, Failure, Progress, Released
from loaderd_wire.slices import steps_left


class SessionState(SlotOwner):
    """What one client is to get next, what it holds, and what it has said. The scheduler drives it.

    Attributes:
        window: Its plan, and the batches of it that come next.
        slots: Its slots.
        ended: Why nothing more is made for it; "" while something is.
        gone: The client has left.
        unplaced: A batch of the window may have no slot.
        unsaid: A batch may be ready to be announced.
        failure: The fault it has ended on; it is sent again whenever the client asks.
        seq: Number of the client's latest message.
        waiting: The trainer waits for a batch.
        usage: What was measured of it.
        need: Workers that its trainer needs, when that was last looked at; 0: unknown.
        verdict: Who waits for whom, in a line that the client is to be told; "": none.
        note_s: When a false statement of the client was last logged; None: never.
        notes_left_out: How many were not logged since.
    """

    window: BatchWindow

    def __init__(
        self,
        event: Attach,
        on_error: str,
        collated: bool,
        times: Histogram,
        *,
        replay: bool = False,
    ) -> None:
        """Begin without a plan.

        Args:
            event: The client and its segment.
            on_error: The stream's rule for bad samples.
            collated: A batch is made as a whole.
            times: Counts how long each batch takes.
            replay: The first batches are handed out again and again.

        Raises:
            ValueError: An epoch has no batch, or the segment has too few slots.
        """
        if (
            steps_left(event.shape, 0) < 1
            or event.prefetch < 1
            or event.segment.slots < event.prefetch + 2
        ):
            raise ValueError(f"session {event.session} can't be served: {event}")
        super().__init__(event.session, event.stream, times)
        self.window = BatchWindow(  # pyright: ignore[reportIncompatibleVariableOverride] - set once
            event.shape,
            event.prefetch,
            partial(
                BatchBuild,
                event.stream,
                on_error,
                collated,
                event.seed,
                epoch_samples=event.shape.samples,
            ),
        )
        self.slots = SessionSlots(event.segment)
        self._replay = Replay() if replay else None
        self.failure: Failure | None = None
        self.seq = 0
        self.waiting = False
        self.usage = SessionUsage()
        self.need = 0.0
        self.verdict = ""
        self._unsettled = False  # a slot in the window may have been given back, or leased
        self.note_s: float | None = None
        self.notes_left_out = 0

    @property
    def owner(self) -> SlotOwner:
        """Who makes its batches."""
        return self

    # what the client says

    def give_back(self, told: Released) -> str:
        """Take in which slots of a segment the client has given back or handed to its trainer.

        Args:
            told: What the client says of one segment.

        Returns:
            What is wrong with it, or "". If something is, nothing was changed.
        """
        window = self.window
        fault, changed = self.slots.give_back(told)
        for known in changed:
            if known.message.plan != window.plan or known.message.k >= window.taken:
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
        for item in self.window.items:
            if item.build.place and not slots.is_known(item.build):
                stock.setdefault(item.build.slice, item.build)
        old = [item.build for item in self.window.items]
        self._unsettled = self.unplaced = self.unsaid = True
        self.window.seek(p, stock)
        kept = {id(item.build) for item in self.window.items}
        for build in old:
            if id(build) not in kept:
                self._give_up(build)

    def advance(self, taken: int) -> str:
        """The trainer has got the batches before `taken`: move the window on.

        Returns:
            What is wrong with that, or "". If something is, nothing was changed.
        """
        fault, got = self.window.advance(taken)
        for build in got:
            self._give_up(build)  # if it is being made again: the client had it after all
            self.unplaced = True
        return fault

    def settle(self) -> None:
        """Batches whose slot was given back, or leased under another number, are made again."""
        if not self._unsettled:
            return
        self._unsettled, self.unplaced = False, True
        for item in self.window.items:
            place = item.build.place
            state = self.slots.state_of(place) if place and item.build.whole else FILLING
            if state is LEASED:
                item.build = self.window.new_build(item.build.slice)
            elif state in (FREE, None):
                self.wait(item.build)

    @property
    def held(self) -> bool:
        """No batch can be begun before the trainer takes one, or gives back a slot."""
        items = self.window.items
        return self.unplaced or (bool(items) and items[-1].announced)

    # what the scheduler does

    def fill(self, now_s: float) -> None:
        """Claim slots for the batches of the window that have none, in order.

        Args:
            now_s: Time of the event.
        """
        window = self.window
        if self.gone or self.ended or not window.plan:
            return
        window.fill()
        self.unplaced = False
        slots = self.slots
        table = slots.table
        for item in window.items:
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
            build.begun_s = now_s
            if self._replay is not None:
                self._replay.begin(build)
            if not build.todo:
                self.finish(build, now_s)

    def announce(self, now_s: float) -> list[Descriptor]:
        """The descriptors of batches that are READY and whose turn it is, in order.

        Args:
            now_s: Time of the event.
        """
        messages: list[Descriptor] = []
        self.unsaid = False
        slots, window = self.slots, self.window
        for item in window.items:
            build = item.build
            place = build.place
            if place is not None and not build.todo and not build.running:
                state = slots.state_of(place)
                if state is READY:
                    place, state = self._place_to_tell(item), ANNOUNCED
                    if place is None:
                        break
                    message = build.descriptor(self.session, window.plan, item.k)
                    slots.announce(build, place, message, now_s)
                    messages.append(message)
                elif state is ANNOUNCED and not item.announced:
                    # Kept at a seek, under a new number.
                    known = slots.announced[place.segment, place.slot]
                    known.message = replace(
                        build.descriptor(self.session, window.plan, item.k),
                        generation=known.message.generation,
                    )
                    known.told_s = now_s
                    messages.append(known.message)
                item.announced = item.announced or state is ANNOUNCED
            if not item.announced:
                break
        if messages and self.verdict:
            messages[0], self.verdict = replace(messages[0], verdict=self.verdict), ""
        return messages

    def hold(self, now_s: float) -> None:
        """Note whether anything can be begun."""
        self.usage.hold(self.held, now_s)

    def not_grown(self, now_s: float) -> list[SessionState]:
        """There is no memory for a larger segment: it can't go on."""
        del now_s
        self.slots.growing = False
        return [self]

    def answered(self, job: Job, done: Done) -> None:
        """Take the measures of a job that a worker has done for it."""
        self.usage.answered(job, done)

    def end(self, why: str) -> None:
        """Make nothing more. What was announced stays valid.

        Args:
            why: For the client's log.
        """
        self.ended = self.ended or why
        for item in self.window.items:
            if not self.slots.is_known(item.build):
                self._give_up(item.build)

    def leave(self) -> None:
        """The client is gone: all slots go back, those with a job when it has ended."""
        self.gone = True
        self.end("gone")
        self.window.items.clear()
        self.slots.release_all()

    # parts of the above

    def _place_to_tell(self, item: PlannedBatch) -> SlotRef | None:
        """Where a batch lies that is READY, if the client is to be told of it now."""
        return item.build.place

    def _finished(self, build: BatchBuild) -> None:
        if self._replay is not None:
            self._replay.finish(build)

    def _give_up(self, build: BatchBuild) -> None:
        """No batch of the window is this one any longer. A slot that the client knows stays."""
        if build.place and not self.slots.is_known(build):
            if self.slots.state_of(build.place) in (FILLING, READY):
                self.restart(build)
            else:
                self.wait(build)

    def _take_back(self, k: int) -> None:
        """Free a slot for batch k: the last batch after it that is not announced loses its own."""
        for item in reversed(self.window.items):
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
