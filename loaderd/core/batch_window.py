"""The batches of a client's plan that come next, in order and without a gap."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest

from loaderd.core.batches import BatchBuild
from loaderd_wire.messages import Progress
from loaderd_wire.slices import LAST_EPOCH, Cursor, EpochShape, Slice, steps


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


class PlannedBatches:
    """The batches that are made next, the most urgent one first.

    Attributes:
        prefetch: Most batches that are made ahead of a trainer.
        taken: `PlannedBatch.k` of a batch that a trainer needs next.
        items: The batches.
    """

    def __init__(self, prefetch: int) -> None:
        """Begin without batches.

        Args:
            prefetch: Most batches that are made ahead of a trainer, at least 1.
        """
        self.prefetch = prefetch
        self.taken = 0
        self.items: deque[PlannedBatch] = deque()

    def needs(self) -> tuple[int, int]:
        """(bytes of tail a row, bytes of body) that the batches are known to need."""
        builds = [item.build for item in self.items]
        return max((d.needs_tail for d in builds), default=0), max(
            (d.needs_body for d in builds), default=0
        )

    def first_work(self) -> PlannedBatch | None:
        """The first batch that has a piece for a worker."""
        for item in self.items:
            build = item.build
            if build.todo and (not build.running or build.has_work):
                return item
        return None

    def is_next(self, build: BatchBuild) -> bool:
        """Whether a trainer needs a batch next."""
        for item in self.items:
            if item.k != self.taken:
                return False
            if item.build is build:
                return True
        return False


def by_distance(windows: Sequence[Sequence[PlannedBatch]]) -> dict[int, PlannedBatch]:
    """The batches of several windows, each once, those that are needed first in front.

    Args:
        windows: The batches that each of some clients wants next, in order.

    Returns:
        By id of the batch; `PlannedBatch.k` is the smallest place that it has in a window.
    """
    found: dict[int, PlannedBatch] = {}
    for distance, row in enumerate(zip_longest(*windows)):
        for item in row:
            if item is not None and id(item.build) not in found:
                found[id(item.build)] = PlannedBatch(distance, item.cursor, item.build)
    return found


class BatchWindow(PlannedBatches):
    """Batches [taken, taken + prefetch) of the plan.

    Batches of a window are numbered without a gap, and are announced in order.

    Attributes:
        shape: How the client cuts an epoch into batches.
        new_build: Makes the batch of a slice, in which nothing has been done yet.
        plan: Number of the plan; 0 before the first one.
        taken: Batches of the plan that the trainer has got.
    """

    def __init__(
        self, shape: EpochShape, prefetch: int, new_build: Callable[[Slice], BatchBuild]
    ) -> None:
        """Begin without a plan.

        Args:
            shape: How the client cuts an epoch into batches.
            prefetch: Length of the window, at least 1.
            new_build: Makes the batch of a slice.
        """
        super().__init__(prefetch)
        self.shape = shape
        self.new_build = new_build
        self.plan = 0
        self._steps: Iterator[tuple[Cursor, Slice]] = iter(())

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

    def seek(self, p: Progress, stock: Mapping[Slice, BatchBuild]) -> None:
        """Begin a new plan.

        Args:
            p: The Progress that begins it.
            stock: Batches that exist already. Those that are among the first `prefetch` of the
                plan are used for it.
        """
        self.plan, self.taken = p.plan, p.taken
        self.items.clear()
        start = Cursor(p.epoch, p.position, p.step)
        self._steps = islice(steps(self.shape, start), p.taken, None)
        for k in range(p.taken, self.prefetch):
            cursor, cut = next(self._steps)
            self.items.append(PlannedBatch(k, cursor, stock.get(cut) or self.new_build(cut)))
        self.fill()

    def advance(self, taken: int) -> tuple[str, list[BatchBuild]]:
        """The trainer has got the batches before `taken`: they leave the window.

        Returns:
            (what is wrong with that, the batches that left). If something is wrong, nothing was
            changed.
        """
        ahead = taken - self.taken
        # Batches are announced in order: if the last of them was, all were.
        if ahead > 0 and (ahead > len(self.items) or not self.items[ahead - 1].announced):
            return (
                f"{taken} batches taken of plan {self.plan}, of which {self.announced} were "
                "announced",
                [],
            )
        if ahead < 0:
            return f"{taken} batches taken of plan {self.plan} after {self.taken}", []
        got: list[BatchBuild] = []
        while self.taken < taken:
            got.append(self.items.popleft().build)
            self.taken += 1
        return "", got

    def fill(self) -> None:
        """Plan the batches that are missing at the window's end. There must be a plan."""
        while len(self.items) < self.prefetch:
            cursor, cut = next(self._steps)
            k = self.taken + len(self.items)
            self.items.append(PlannedBatch(k, cursor, self.new_build(cut)))
