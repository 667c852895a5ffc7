"""What workers make batches for: a session with slots of its own, or a group that shares them."""

from __future__ import annotations

from abc import ABC, abstractmethod

from loaderd.core.batch_window import PlannedBatches
from loaderd.core.batches import BatchBuild
from loaderd.core.histogram import Histogram
from loaderd.core.jobs import Done, Job
from loaderd.core.session_slots import SessionSlots
from loaderd.core.slots import FILLING, FINISH
from loaderd_wire.messages import Descriptor, Segment


class SlotOwner(ABC):
    """Slots, the batches that are made in them, and those that are made next.

    Attributes:
        session: Number of the session, or of the group.
        stream: Name of the stream.
        window: The batches that come next.
        slots: Its slots.
        gone: No client is left.
        ended: Why nothing more is made for it; "" while something is.
        made: Batches that were finished, over all plans.
        unplaced: A batch of the window may have no slot.
        unsaid: A batch may be ready to be announced.
        version: Number of its latest entry in the queue.
    """

    window: PlannedBatches
    slots: SessionSlots

    def __init__(self, session: int, stream: str, times: Histogram) -> None:
        """Begin without a batch.

        Args:
            session: Number of the session, or of the group.
            stream: Name of the stream.
            times: Counts how long each batch takes.
        """
        self.session = session
        self.stream = stream
        self.gone = False
        self.ended = ""
        self.made = 0
        # These say what has to be looked at: most events change little of a window.
        self.unplaced = self.unsaid = False
        self.version = 0
        self._times = times

    @abstractmethod
    def fill(self, now_s: float) -> None:
        """Claim slots for the batches of the window that have none, the first ones first.

        Args:
            now_s: Time of the event.
        """

    @abstractmethod
    def announce(self, now_s: float) -> list[Descriptor]:
        """The descriptors of batches that are READY and whose turn it is, in order.

        Args:
            now_s: Time of the event.
        """

    @abstractmethod
    def hold(self, now_s: float) -> None:
        """Note whether anything can be begun.

        Args:
            now_s: Time of the event.
        """

    @abstractmethod
    def answered(self, job: Job, done: Done) -> None:
        """Take the measures of a job that a worker has done for it.

        Args:
            job: The job.
            done: The worker's answer.
        """

    def finish(self, build: BatchBuild, now_s: float) -> None:
        """If all rows of a batch are in its slot, the slot is READY.

        Args:
            build: The batch.
            now_s: Time of the event.
        """
        if build.whole and build.place and self.slots.state_of(build.place) is FILLING:
            self.slots.tables[build.place.segment].move(build.place.slot, FINISH)
            self.made += 1
            self._times.add(now_s - build.begun_s)
            self.unsaid = True
            self._finished(build)

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

    def grown(self, segment: Segment) -> None:
        """A larger segment has been reserved; slots are claimed in it from now on.

        Raises:
            ValueError: It is not newer than the current one, or has too few slots.
        """
        if segment.segment <= self.slots.current or segment.slots < self.window.prefetch + 2:
            raise ValueError(
                f"session {self.session} has segment {self.slots.current}: can't go on in {segment}"
            )
        self.slots.add(segment)

    def starved(self, now_s: float) -> bool:
        """Whether it needs more slots than it has.

        Args:
            now_s: Time of the event.
        """
        del now_s
        return False

    def slots_needed(self) -> int:
        """How many slots a segment must have that is to have more of them."""
        return len(self.slots.table.state)

    @abstractmethod
    def _finished(self, build: BatchBuild) -> None:
        """A batch is whole."""
