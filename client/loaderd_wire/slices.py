"""Which positions of an epoch make up step s of rank r: the arithmetic that daemon and client share.

Whole steps are blocks: step s of rank r starts at origin + (s * world_size + r) * batch_size. With drop_last = False the t rows
that are left (0 < t < world_size * batch_size) are one more step, split as evenly as integers allow; if t < world_size the ranks
beyond t get the epoch's first positions again, so that no rank is ever without a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from loaderd_wire.records import quick

MAX_EPOCH = 1 << 60  # that may be asked for: epochs count on from it, and must stay within what a message can hold
LAST_EPOCH = 3 << 60  # that a daemon serves


@dataclass(frozen=True, slots=True)
class Shape:
    """How an epoch is cut: `samples` positions, for `world_size` ranks of `batch_size` rows each."""

    samples: int
    batch_size: int
    rank: int
    world_size: int
    drop_last: bool

    def __post_init__(self) -> None:
        if self.samples < 1 or self.batch_size < 1 or not 0 <= self.rank < self.world_size:
            raise ValueError(f"impossible shape {self}")


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows [start, start + rows) of an epoch's order, modulo its length (only a tail of fewer rows than ranks wraps)."""

    epoch: int
    start: int
    rows: int


@dataclass(frozen=True, slots=True)
class Cursor:
    """The next batch to deliver: it begins at `position` of `epoch` (the same on every rank) and is called `step`."""

    epoch: int
    position: int
    step: int


_cursor, _slice = quick(Cursor), quick(Slice)


def steps_left(shape: Shape, origin: int) -> int:
    """Steps from `origin` to the end of the epoch; 0 if nothing (or, with drop_last, no whole step) is left."""
    whole, tail = divmod(shape.samples - origin, shape.world_size * shape.batch_size)
    return whole + (0 if shape.drop_last or tail == 0 else 1)


def slice_at(shape: Shape, cursor: Cursor) -> Slice:
    """The rows of this rank in the step that begins at the cursor. Raises ValueError where no step is left."""
    left = shape.samples - cursor.position
    block = shape.world_size * shape.batch_size
    if left >= block:
        return Slice(cursor.epoch, cursor.position + shape.rank * shape.batch_size, shape.batch_size)
    if left <= 0 or shape.drop_last:
        raise ValueError(f"no step at {cursor} of {shape}")
    if left < shape.world_size:
        start = cursor.position + shape.rank if shape.rank < left else (shape.rank - left) % shape.samples
        return Slice(cursor.epoch, start, 1)
    begin = shape.rank * left // shape.world_size
    end = (shape.rank + 1) * left // shape.world_size
    return Slice(cursor.epoch, cursor.position + begin, end - begin)


def after(shape: Shape, cursor: Cursor) -> Cursor:
    """The cursor behind the step at `cursor`; behind an epoch's last step the position is `samples`."""
    position = cursor.position + shape.world_size * shape.batch_size
    done = steps_left(shape, min(position, shape.samples)) == 0
    return _cursor(cursor.epoch, shape.samples if done else position, cursor.step + 1)


def settle(shape: Shape, cursor: Cursor) -> Cursor:
    """The cursor itself, or, where its epoch has no step left, the start of the next epoch.

    Raises:
        ValueError: The position lies outside of the epoch.
    """
    if not 0 <= cursor.position <= shape.samples:
        raise ValueError(f"position {cursor.position} of an epoch of {shape.samples} samples")
    return cursor if steps_left(shape, cursor.position) else Cursor(cursor.epoch + 1, 0, 0)


def steps(shape: Shape, cursor: Cursor) -> Iterator[tuple[Cursor, Slice]]:
    """The batches of a plan from `cursor` on, for ever, over the ends of epochs. Raises ValueError where an epoch has no step."""
    block, mine, rows = shape.world_size * shape.batch_size, shape.rank * shape.batch_size, shape.batch_size
    while True:
        cursor = settle(shape, cursor)
        epoch, position, step = cursor.epoch, cursor.position, cursor.step
        while shape.samples - position >= 2 * block:  # whole steps, each with another whole one behind it
            yield _cursor(epoch, position, step), _slice(epoch, position + mine, rows)
            position, step = position + block, step + 1
        cursor = Cursor(epoch, position, step)
        yield cursor, slice_at(shape, cursor)
        cursor = after(shape, cursor)
