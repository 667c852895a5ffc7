"""Epochs as a user goes through them: where the next pass begins, and how far the present one is.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from loaderd_wire.slices import Cursor, EpochShape, steps_left


@dataclass(slots=True)
class Pass:
    """One way through an epoch.

    Attributes:
        shape: How the epoch is cut into steps.
        origin: Where it begins.
        steps: Number of steps from there to the end of the epoch.
        taken: Steps that are over.
        given: Of those, the ones that were handed out or raised for. The others had no rows.
    """

    shape: EpochShape
    origin: Cursor
    steps: int
    taken: int = 0
    given: int = 0

    @property
    def cursor(self) -> Cursor:
        """The next batch to yield. Behind the last one its position is the epoch's length."""
        return self.cursor_after(self.taken)

    def cursor_after(self, taken: int) -> Cursor:
        """The cursor behind so many steps."""
        if taken == 0:
            return self.origin
        position = self.origin.position + taken * self.shape.world_size * self.shape.batch_size
        return Cursor(
            self.origin.epoch,
            self.shape.samples if taken == self.steps else position,
            self.origin.step + taken,
        )

    def rows_after(self, taken: int) -> int:
        """Rows of the step behind so many, of all ranks together."""
        block = self.shape.world_size * self.shape.batch_size
        return min(block, self.shape.samples - self.origin.position - taken * block)


class EpochCursor:
    """The order of passes.

    An iterator is known by the number that `iterate` gave it. Only the newest one may go on.

    Attributes:
        start: Where the next pass begins, when none is running.
        running: The pass whose first batch was asked for, or None.
        newest: Number of the iterator that may go on.
        cut_off: Number of the iterator that the newest one has ended, if its pass was not over.
    """

    def __init__(self, start: Cursor) -> None:
        """Begin before the first pass, which starts at `start`."""
        self.start = start
        self.running: Pass | None = None
        self.newest = self.cut_off = 0
        self._pinned: int | None = None

    @property
    def cursor(self) -> Cursor:
        """Where the training is: the next batch."""
        return self.running.cursor if self.running else self.start

    @property
    def epoch(self) -> int:
        """Of the running pass, or of the next one if none runs."""
        return self.running.origin.epoch if self.running else self.start.epoch

    def iterate(self) -> int:
        """Begin a new iterator: the running pass is abandoned.

        An iterator that never asked for a batch used up nothing.

        Returns:
            Its number.
        """
        if self.running:
            self._leave(self.running)
        self.cut_off = self.newest  # which nobody has, if `finish` has made it
        self.newest += 1
        return self.newest

    def upcoming(self, shape: EpochShape) -> Pass:
        """The pass that `begin` begins."""
        return Pass(shape, self.start, steps_left(shape, min(self.start.position, shape.samples)))

    def begin(self, shape: EpochShape) -> Pass:
        """Begin the next pass."""
        self.running = self.upcoming(shape)
        return self.running

    def finish(self) -> None:
        """The running pass is at its end: its iterator is used up for good."""
        if self.running:
            self._leave(self.running)
        self.newest += 1

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass.

        The running pass stays as it is. A position that was loaded for that very epoch is kept.
        """
        if self.running:
            self._pinned = epoch
        elif epoch != self.start.epoch:
            self.start = Cursor(epoch, 0, 0)

    def load(self, cursor: Cursor) -> None:
        """Go on at a cursor, with the present iterator or a new one."""
        self.running, self._pinned, self.start = None, None, cursor

    def _leave(self, ended: Pass) -> None:
        epoch = ended.origin.epoch + 1 if self._pinned is None else self._pinned
        self.running, self._pinned, self.start = None, None, Cursor(epoch, 0, 0)
