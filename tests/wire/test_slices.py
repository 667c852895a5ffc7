"""Which rows are whose: ranks part an epoch exactly, the tail is even, resume in any shape repeats
and loses nothing.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderd_wire.slices import (
    Cursor,
    EpochShape,
    is_repetition,
    next_cursor,
    normalize_cursor,
    rows_of_epoch,
    slice_at,
    steps,
    steps_left,
)


def shape_of(
    samples: int, batch_size: int, world_size: int = 1, rank: int = 0, drop_last: bool = False
) -> EpochShape:
    return EpochShape(samples, batch_size, rank, world_size, drop_last)


def epoch_of(shape: EpochShape, origin: int = 0) -> list[list[int]]:
    """Positions of each step of one rank, from `origin` to the end of the epoch."""
    cursor, steps = Cursor(0, origin, 0), []
    while steps_left(shape, cursor.position):
        piece = slice_at(shape, cursor)
        steps.append([p % shape.samples for p in range(piece.start, piece.start + piece.rows)])
        cursor = next_cursor(shape, cursor)
    assert cursor.step == len(steps)
    return steps


def ranks_of(
    samples: int, batch_size: int, world_size: int, drop_last: bool, origin: int = 0
) -> list[list[list[int]]]:
    return [
        epoch_of(shape_of(samples, batch_size, world_size, rank, drop_last), origin)
        for rank in range(world_size)
    ]


def by_the_book(
    samples: int, batch_size: int, world_size: int, rank: int, drop_last: bool, origin: int
) -> list[list[int]]:
    """The rule of the surface, word by word."""
    steps, at, block = [], origin, world_size * batch_size
    while samples - at >= block:
        steps.append(list(range(at + rank * batch_size, at + (rank + 1) * batch_size)))
        at += block
    t = samples - at
    if t and not drop_last:
        if t >= world_size:
            steps.append(
                list(range(at + rank * t // world_size, at + (rank + 1) * t // world_size))
            )
        else:
            rows = list(range(at, samples)) + [p % samples for p in range(world_size - t)]
            steps.append([rows[rank]])
    return steps


shapes = st.tuples(st.integers(1, 60), st.integers(1, 9), st.integers(1, 7), st.booleans())


@given(shapes, st.integers(0, 60))
def test_each_step_is_what_the_rule_says(shape: tuple[int, int, int, bool], origin: int) -> None:
    samples, batch_size, world_size, drop_last = shape
    origin = min(origin, samples)
    for rank in range(world_size):
        steps = epoch_of(shape_of(samples, batch_size, world_size, rank, drop_last), origin)
        assert steps == by_the_book(samples, batch_size, world_size, rank, drop_last, origin)


@given(shapes)
def test_ranks_part_an_epoch_and_repeat_only_what_a_short_tail_must(
    shape: tuple[int, int, int, bool],
) -> None:
    samples, batch_size, world_size, drop_last = shape
    ranks = ranks_of(samples, batch_size, world_size, drop_last)
    assert len({len(steps) for steps in ranks}) == 1, "ranks are out of step"
    assert min((len(step) for steps in ranks for step in steps), default=1) > 0, "a batch is empty"
    rows = [p for steps in ranks for step in steps for p in step]
    t = samples % (world_size * batch_size)
    if drop_last:
        assert sorted(rows) == list(range(samples - t))
    else:
        repeated = world_size - t if 0 < t < world_size else 0
        assert sorted(rows) == sorted([*range(samples), *[p % samples for p in range(repeated)]])
        assert len(rows) - samples == repeated


@given(shapes, st.integers(0, 60))
def test_an_uneven_tail_repeats_nothing_and_differs_in_no_other_row(
    shape: tuple[int, int, int, bool], origin: int
) -> None:
    samples, batch_size, world_size, _ = shape
    origin = min(origin, samples)
    even = ranks_of(samples, batch_size, world_size, False, origin)
    uneven = [
        epoch_of(EpochShape(samples, batch_size, rank, world_size, False, uneven_tail=True), origin)
        for rank in range(world_size)
    ]
    rows = [p for rank in uneven for step in rank for p in step]
    assert sorted(rows) == list(range(origin, samples))
    assert len({len(rank) for rank in uneven}) == 1, "ranks are out of step"
    for one, other in zip(even, uneven, strict=True):
        assert other[:-1] == one[:-1]
        assert other[-1:] in (one[-1:], [[]])


@given(st.integers(1, 20), st.integers(1, 5), st.integers(1, 6), st.integers(0, 20))
def test_whole_batches_are_dealt_out_undivided_wherever_a_resume_begins(
    batches: int, batch_size: int, world_size: int, before: int
) -> None:
    left = range(min(before, batches), batches)
    shapes = [
        EpochShape(batches * batch_size, batch_size, rank, world_size, False, whole_batches=True)
        for rank in range(world_size)
    ]
    ranks = [epoch_of(shape, left.start * batch_size) for shape in shapes]
    dealt = [
        (step[0] // batch_size, is_repetition(shape, step[0]))
        for row in zip(*ranks, strict=True)
        for shape, step in zip(shapes, row, strict=True)
        if step == list(range(step[0], step[0] + batch_size)) and step[0] % batch_size == 0
    ]
    again = [(number % batches, True) for number in range(-len(left) % world_size)]
    assert dealt == [*((number, False) for number in left), *again]
    assert len(dealt) == sum(map(len, ranks))


@given(shapes, st.integers(0, 60))
def test_a_repetition_is_told_by_where_it_starts(
    shape: tuple[int, int, int, bool], origin: int
) -> None:
    samples, batch_size, world_size, drop_last = shape
    origin = min(origin, samples)
    seen: set[int] = set()
    for rank in range(world_size):
        mine = shape_of(samples, batch_size, world_size, rank, drop_last)
        cursor = Cursor(0, origin, 0)
        while steps_left(mine, cursor.position):
            piece = slice_at(mine, cursor)
            own = set(range(piece.start, piece.start + piece.rows))
            left = samples - cursor.position
            repeated = left < world_size and rank >= left
            assert is_repetition(mine, piece.start) == repeated
            assert repeated or not seen & own
            if not repeated:
                seen |= own
            cursor = next_cursor(mine, cursor)


@given(shapes)
def test_a_tail_is_shared_so_that_no_two_ranks_differ_by_more_than_a_row(
    shape: tuple[int, int, int, bool],
) -> None:
    samples, batch_size, world_size, _ = shape
    sizes = {len(steps[-1]) for steps in ranks_of(samples, batch_size, world_size, drop_last=False)}
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= batch_size


@given(shapes, st.integers(1, 9), st.integers(1, 7), st.integers(0, 20))
def test_a_resume_in_another_shape_goes_on_where_the_first_one_stopped(
    shape: tuple[int, int, int, bool], batch_size: int, world_size: int, steps: int
) -> None:
    samples, old_batch, old_world, drop_last = shape
    steps = min(steps, samples // (old_batch * old_world))
    first = [
        p
        for rank in ranks_of(samples, old_batch, old_world, drop_last)
        for step in rank[:steps]
        for p in step
    ]
    origin = steps * old_batch * old_world
    second = [
        p
        for rank in ranks_of(samples, batch_size, world_size, False, origin)
        for step in rank
        for p in step
    ]
    tail = (samples - origin) % (batch_size * world_size)
    repeated = world_size - tail if 0 < tail < world_size else 0
    assert sorted(first + second) == sorted(
        [*range(samples), *[p % samples for p in range(repeated)]]
    )


@pytest.mark.parametrize("drop_last", [False, True])
def test_every_rank_agrees_on_every_cursor(drop_last: bool) -> None:
    for samples, batch_size, world_size in itertools.product(range(1, 30), (1, 2, 5), (1, 2, 3)):
        walks = []
        for rank in range(world_size):
            shape, cursor, walk = (
                shape_of(samples, batch_size, world_size, rank, drop_last),
                Cursor(3, 0, 0),
                [],
            )
            while steps_left(shape, cursor.position):
                cursor = next_cursor(shape, cursor)
                walk.append(cursor)
            walks.append(walk)
        assert all(walk == walks[0] for walk in walks)
        if walks[0]:
            assert walks[0][-1] == Cursor(3, samples, len(walks[0])), (
                "the end of an epoch is not at its length"
            )


def test_a_cursor_settles_into_the_next_epoch_only_when_nothing_is_left() -> None:
    shape = shape_of(10, 4, drop_last=True)
    assert normalize_cursor(shape, Cursor(2, 4, 1)) == Cursor(2, 4, 1)
    assert normalize_cursor(shape, Cursor(2, 8, 2)) == Cursor(3, 0, 0)
    assert normalize_cursor(shape, Cursor(2, 10, 2)) == Cursor(3, 0, 0)
    assert normalize_cursor(shape_of(10, 4), Cursor(2, 8, 2)) == Cursor(2, 8, 2)


@pytest.mark.parametrize("position", [11, 13, 1 << 62, -1])
def test_a_plan_that_begins_outside_of_its_epoch_is_refused(position: int) -> None:
    for drop_last in (False, True):
        with pytest.raises(ValueError, match=f"position {position} of an epoch of 10 samples"):
            next(steps(shape_of(10, 4, drop_last=drop_last), Cursor(0, position, 0)))


def test_a_step_beyond_the_end_is_refused() -> None:
    for shape, position in (
        (shape_of(10, 4), 10),
        (shape_of(10, 4, drop_last=True), 8),
        (shape_of(3, 4, drop_last=True), 0),
    ):
        with pytest.raises(ValueError, match="no step"):
            slice_at(shape, Cursor(0, position, 0))


@pytest.mark.parametrize(
    "shape", [(0, 1, 0, 1), (1, 0, 0, 1), (1, 1, 1, 1), (1, 1, -1, 1), (1, 1, 0, 0)]
)
def test_an_impossible_shape_is_refused(shape: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="impossible shape"):
        EpochShape(*shape, False)


def test_a_plan_goes_on_over_the_ends_of_epochs_and_refuses_an_epoch_without_a_step() -> None:
    plan = list(itertools.islice(steps(shape_of(10, 4), Cursor(1, 4, 7)), 4))
    assert [(at.epoch, at.step, cut.start, cut.rows) for at, cut in plan] == [
        (1, 7, 4, 4),
        (1, 8, 8, 2),
        (2, 0, 0, 4),
        (2, 1, 4, 4),
    ]
    with pytest.raises(ValueError, match="no step"):
        next(steps(shape_of(3, 4, drop_last=True), Cursor(0, 0, 0)))


@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 5), st.booleans())
def test_the_rows_of_an_epoch_are_those_of_all_its_steps(
    samples: int, batch_size: int, world_size: int, drop_last: bool
) -> None:
    for rank in range(world_size):
        shape = shape_of(samples, batch_size, world_size, rank, drop_last)
        assert rows_of_epoch(shape) == sum(map(len, epoch_of(shape)))
