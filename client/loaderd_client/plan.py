"""The batches that a client waits for, in their order. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from loaderd_wire.errors import ProtocolError
from loaderd_wire.messages import Descriptor
from loaderd_wire.slices import Cursor, EpochShape, Slice, next_cursor, steps


@dataclass(slots=True)
class AwaitedBatch:
    """Batch k of a plan.

    Attributes:
        k: Its number in the plan, from 0.
        cursor: Where it begins.
        slice: Its rows.
        batch: Its descriptor, None until it is here.
    """

    k: int
    cursor: Cursor
    slice: Slice
    batch: Descriptor | None = None


class ClientPlan:
    """The endless sequence of batches from a cursor on, of which the next few are waited for.

    Attributes:
        number: Number of the plan, from 1; each `begin` is a new one.
        start: The cursor that the plan began at.
        awaited: The next batches, `prefetch` of them.
    """

    def __init__(self, shape: EpochShape, prefetch: int, cursor: Cursor) -> None:
        """Begin plan 1.

        Args:
            shape: How epochs are cut into steps.
            prefetch: Number of batches that are waited for at a time.
            cursor: The first batch.
        """
        self._shape = shape
        self._prefetch = prefetch
        self.number = 0
        self.awaited: deque[AwaitedBatch] = deque()
        self.begin(cursor)

    def begin(self, cursor: Cursor) -> None:
        """Begin a new plan; forgets all that was here."""
        self.number += 1
        self.start = self._cursor = cursor
        # of the last batch taken, whose end is worked out when somebody asks
        self._passed: Cursor | None = None
        self._steps: Iterator[tuple[Cursor, Slice]] = steps(self._shape, cursor)
        self._count = 0
        self.awaited.clear()
        for _ in range(self._prefetch):
            self._await_one_more()

    def stand_at(self, cursor: Cursor) -> None:
        """Set `cursor` to one that names the same next batch."""
        self._cursor, self._passed = cursor, None

    @property
    def cursor(self) -> Cursor:
        """The next batch. Behind the last one of an epoch it stands at that epoch's end."""
        if self._passed is not None:
            self._cursor, self._passed = next_cursor(self._shape, self._passed), None
        return self._cursor

    @property
    def have(self) -> int:
        """Number of the first batch that is not here: all before it are here or were taken."""
        have = self.awaited[0].k
        for item in self.awaited:
            if item.batch is None:
                break
            have += 1
        return have

    def take(self) -> None:
        """The next batch is taken."""
        self._passed = self.awaited.popleft().cursor
        self._await_one_more()

    def place(self, batch: Descriptor) -> AwaitedBatch | None:
        """Which batch of this plan a descriptor is.

        Args:
            batch: A descriptor of this plan or of an older one. The latter is one of this plan if
                it has the rows of one of its first `prefetch` batches that is not here.

        Returns:
            The batch, or None if the descriptor is not wanted.

        Raises:
            ProtocolError: The batch was not asked for yet, or has other rows than the plan says.
        """
        if batch.plan != self.number:
            return self._adoptive(batch)
        taken = self.awaited[0].k
        if batch.k >= taken + self._prefetch:
            raise ProtocolError(
                f"batch {batch.k} was announced with {taken} taken and prefetch = {self._prefetch}"
            )
        if batch.k < taken:
            return None
        item = self.awaited[batch.k - taken]
        cut = item.slice
        if (batch.epoch, batch.start, batch.rows) != (cut.epoch, cut.start, cut.rows):
            raise ProtocolError(
                f"batch {batch.k} of plan {batch.plan} should be {cut}, not {batch}"
            )
        return item

    def put(self, item: AwaitedBatch, batch: Descriptor) -> Descriptor | None:
        """Keep a descriptor in its place.

        Returns:
            Another descriptor that was there and is not wanted any more, or None.
        """
        displaced = item.batch if item.batch and not _same(item.batch, batch) else None
        for other in self.awaited:  # kept under another number until now
            if other is not item and other.batch and _same(other.batch, batch):
                other.batch = None
        item.batch = batch
        return displaced

    def clashes(self, batch: Descriptor) -> bool:
        """True if another generation of its slot waits to be taken."""
        for item in self.awaited:
            other = item.batch
            if other and (other.segment, other.slot) == (batch.segment, batch.slot):
                return other.generation != batch.generation
        return False

    def held(self, segment: int) -> list[AwaitedBatch]:
        """The batches that are here and lie in this segment."""
        return [item for item in self.awaited if item.batch and item.batch.segment == segment]

    def segments(self) -> set[int]:
        """Segments in which a batch waits to be taken."""
        return {item.batch.segment for item in self.awaited if item.batch}

    def _adoptive(self, batch: Descriptor) -> AwaitedBatch | None:
        """Where a descriptor of an older plan is, or may be put."""
        for item in self.awaited:
            if item.batch and _same(item.batch, batch):
                return item
        cut = Slice(batch.epoch, batch.start, batch.rows)
        for item in self.awaited:
            if item.k < self._prefetch and item.slice == cut and item.batch is None:
                return item
        return None

    def _await_one_more(self) -> None:
        cursor, cut = next(self._steps)
        self.awaited.append(AwaitedBatch(self._count, cursor, cut))
        self._count += 1


def _same(a: Descriptor, b: Descriptor) -> bool:
    return (a.segment, a.slot, a.generation) == (b.segment, b.slot, b.generation)
