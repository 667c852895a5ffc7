"""The batches that the sessions of a group want next, and whose of them are hurried.

Sessions that are too far apart to share, and all wait for the workers, would stay apart: each of
them would go on at the same part of the speed. So the work of those furthest behind goes first, two
times of three, until they are near enough to the others. From then on each has all that all of them
had together. Who waits for nothing is not hurried, and takes nothing from those who do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf

from loaderd.core.batch_window import PlannedBatch, PlannedBatches, by_distance
from loaderd.core.batches import BatchBuild
from loaderd_wire.slices import Cursor

TURNS = 3  # pieces of work of which one is given without regard to who is behind


class GroupWindow(PlannedBatches):
    """The batches of a group that are made next; `PlannedBatch.k` is the distance."""

    def __init__(self, prefetch: int) -> None:
        """Begin without batches.

        Args:
            prefetch: Most batches that are made ahead of a trainer, at least 1.
        """
        super().__init__(prefetch)
        self._wanted: dict[int, PlannedBatch] = {}  # by id of the batch
        self._sessions: list[tuple[int, int]] = []  # of each the next step, and how many it wants
        self._share_window = 0
        self._hurried: set[int] = set()  # by id of the batch
        self._answered = 0

    def look(
        self,
        windows: Sequence[Sequence[PlannedBatch]],
        step_of: Callable[[Cursor], int],
        share_window: int,
    ) -> dict[int, PlannedBatch]:
        """See which batches are wanted.

        Args:
            windows: The batches that each session wants next, in order.
            step_of: Number of the step at a cursor, counted through all epochs.
            share_window: Sessions share if they are less than so many steps apart.

        Returns:
            The batches of the window, by id of the batch, by distance.
        """
        found = by_distance(windows)
        for item in found.values():
            item.build.step = step_of(item.cursor)
        self.items = deque(found.values())
        self._wanted, self._share_window = found, share_window
        self._sessions = [(window[0].build.step, len(window)) for window in windows if window]
        waiting = [
            window[0].build.step
            for window in windows
            if any(item.build.place and not item.build.whole for item in window)
        ]
        near = min(waiting, default=-inf) + share_window
        self._hurried = {
            id(item.build) for window in windows for item in window if window[0].build.step < near
        }
        return found

    def distance(self, build: BatchBuild) -> float:
        """After how many steps the first session needs a batch that has a slot; inf: none does.

        Steps that begin elsewhere in the epoch may have the same number. What a session needs as
        soon as its window ends is in there, so that nothing else of such a number is kept for it.
        """
        item = self._wanted.get(id(build))
        if item is not None:
            return item.k
        ahead = ((build.step - step, count) for step, count in self._sessions)
        return min((n for n, count in ahead if count <= n < self._share_window), default=inf)

    def answered(self) -> None:
        """A worker has done a piece of work: it is the next one's turn."""
        self._answered += 1

    def first_work(self) -> PlannedBatch | None:
        """The first batch that has a piece for a worker; two times of three a hurried one."""
        if self._answered % TURNS:
            for item in self.items:
                if id(item.build) in self._hurried and item.build.has_work:
                    return item
        return super().first_work()
