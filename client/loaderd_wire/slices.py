"""Which positions of an epoch make up step s of rank r: arithmetic that daemon and client share.

Step s of rank r starts at origin + (s * world_size + r) * batch_size. With drop_last = False the t
rows that are left (0 < t < world_size * batch_size) are one more step, split as evenly as whole
numbers allow. If t < world_size, the ranks from t on get the first positions of the epoch again, so
that every rank has a batch in every step. With uneven_tail = True they get no rows instead.

With whole_batches = True positions are divided batch by batch alone: in the last step the first
ranks have the batches that are left, and the others the first batches of the epoch again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from loaderd_wire.records import quick

MAX_EPOCH = 1 << 60  # the greatest epoch that a user may ask for
LAST_EPOCH = 3 << 60  # the greatest epoch that a daemon serves; messages have room for more


@dataclass(frozen=True, slots=True)
class EpochShape:
    """How an epoch is cut into batches.

    Attributes:
        samples: Positions of an epoch, at least 1.
        batch_size: Rows of a batch, at least 1.
        rank: Whose batches, in [0, world_size).
        world_size: Number of ranks.
        drop_last: Rows behind the last whole step are left out.
        uneven_tail: Nothing is repeated: a last step of fewer rows than ranks has no rows for some.
        whole_batches: A batch is never divided among ranks; `samples` is a multiple of
            `batch_size`, and so is every position.

    Raises:
        ValueError: A value is out of range.
    """

    samples: int
    batch_size: int
    rank: int
    world_size: int
    drop_last: bool
    uneven_tail: bool = False
    whole_batches: bool = False

    def __post_init__(self) -> None:
        if self.samples < 1 or self.batch_size < 1 or not 0 <= self.rank < self.world_size:
            raise ValueError(f"impossible shape {self}")
        if self.whole_batches and self.samples % self.batch_size:
            raise ValueError(f"impossible shape {self}")


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows [start, start + rows) of the order of an epoch, modulo its length.

    Only a last step of fewer rows than ranks goes beyond the length.

    Attributes:
        epoch: Number of the epoch, from 0.
        start: Position of the first row.
        rows: Number of rows, 0 only in a last step of a shape with `uneven_tail`.
    """

    epoch: int
    start: int
    rows: int


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where the next batch begins. It is the same on every rank.

    Attributes:
        epoch: Number of the epoch, from 0.
        position: Position in the epoch's order, over all ranks, in [0, samples].
        step: Number of the step in the epoch, for messages to users.
    """

    epoch: int
    position: int
    step: int


_cursor, _slice = quick(Cursor), quick(Slice)


def steps_left(shape: EpochShape, origin: int) -> int:
    """Steps from position `origin` to the end of the epoch."""
    whole, tail = divmod(shape.samples - origin, shape.world_size * shape.batch_size)
    return whole + (0 if shape.drop_last or tail == 0 else 1)


def slice_at(shape: EpochShape, cursor: Cursor) -> Slice:
    """The rows of this rank in the step that begins at the cursor.

    Raises:
        ValueError: No step is left there.
    """
    left = shape.samples - cursor.position
    block = shape.world_size * shape.batch_size
    if left >= block:
        return Slice(
            cursor.epoch, cursor.position + shape.rank * shape.batch_size, shape.batch_size
        )
    if left <= 0 or shape.drop_last:
        raise ValueError(f"no step at {cursor} of {shape}")
    unit = shape.batch_size if shape.whole_batches else 1
    if shape.whole_batches or left < shape.world_size:
        ahead = shape.rank * unit
        if ahead < left:
            return Slice(cursor.epoch, cursor.position + ahead, unit)
        if shape.uneven_tail:
            return Slice(cursor.epoch, shape.samples, 0)
        return Slice(cursor.epoch, (ahead - left) % shape.samples, unit)
    begin = shape.rank * left // shape.world_size
    end = (shape.rank + 1) * left // shape.world_size
    return Slice(cursor.epoch, cursor.position + begin, end - begin)


def rows_of_epoch(shape: EpochShape) -> int:
    """Rows of all batches that this rank gets in an epoch."""
    before = steps_left(shape, 0) - 1
    if before < 0:
        return 0
    last = Cursor(0, before * shape.world_size * shape.batch_size, before)
    return before * shape.batch_size + slice_at(shape, last).rows


def is_repetition(shape: EpochShape, start: int) -> bool:
    """True if a batch has rows that another rank has too: the first ones of the epoch again.

    A rank's own rows begin at its rank (its batch, where batches stay whole) or behind it in every
    step. A repetition begins before it: see `slice_at`.

    Args:
        shape: How the epoch is cut.
        start: Position of the batch's first row.
    """
    return start < shape.rank * (shape.batch_size if shape.whole_batches else 1)


def next_cursor(shape: EpochShape, cursor: Cursor) -> Cursor:
    """The cursor behind the step at `cursor`. Behind the last step its position is `samples`."""
    position = cursor.position + shape.world_size * shape.batch_size
    done = steps_left(shape, min(position, shape.samples)) == 0
    return _cursor(cursor.epoch, shape.samples if done else position, cursor.step + 1)


def normalize_cursor(shape: EpochShape, cursor: Cursor) -> Cursor:
    """The cursor itself, or the start of the next epoch if no step is left in its own.

    Raises:
        ValueError: The position lies outside of the epoch.
    """
    if not 0 <= cursor.position <= shape.samples:
        raise ValueError(f"position {cursor.position} of an epoch of {shape.samples} samples")
    return cursor if steps_left(shape, cursor.position) else Cursor(cursor.epoch + 1, 0, 0)


def steps(shape: EpochShape, cursor: Cursor) -> Iterator[tuple[Cursor, Slice]]:
    """The batches from a cursor on, for ever, over the ends of epochs.

    Yields:
        (where the batch begins, its rows).

    Raises:
        ValueError: An epoch has no step, or the cursor lies outside of its epoch.
    """
    block, mine, rows = (
        shape.world_size * shape.batch_size,
        shape.rank * shape.batch_size,
        shape.batch_size,
    )
    while True:
        cursor = normalize_cursor(shape, cursor)
        epoch, position, step = cursor.epoch, cursor.position, cursor.step
        # Whole steps with another whole step behind them need no arithmetic of epochs.
        while shape.samples - position >= 2 * block:
            yield _cursor(epoch, position, step), _slice(epoch, position + mine, rows)
            position, step = position + block, step + 1
        cursor = Cursor(epoch, position, step)
        yield cursor, slice_at(shape, cursor)
        cursor = next_cursor(shape, cursor)
