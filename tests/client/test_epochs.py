from __future__ import annotations

import pytest

from loaderd_client.epochs import EpochCursor
from loaderd_wire.slices import Cursor, EpochShape, next_cursor

SHAPE = EpochShape(samples=50, batch_size=4, rank=0, world_size=1, drop_last=False)


def test_the_cursor_of_a_pass_is_what_after_says_at_every_step() -> None:
    for shape in (
        SHAPE,
        EpochShape(50, 4, 1, 3, False),
        EpochShape(50, 4, 0, 3, True),
        EpochShape(7, 8, 0, 1, False),
    ):
        for start in (Cursor(0, 0, 0), Cursor(3, 5, 9)):
            running = EpochCursor(start).begin(shape)
            expected = start
            for _ in range(running.steps):
                running.taken += 1
                expected = next_cursor(shape, expected)
                assert running.cursor == expected
            assert running.steps == 0 or expected.position == shape.samples


def test_an_iterator_that_was_never_asked_uses_up_nothing() -> None:
    passes = EpochCursor(Cursor(0, 0, 0))
    for _ in range(3):
        passes.iterate()
    assert passes.begin(SHAPE).origin == Cursor(0, 0, 0)


def test_an_abandoned_pass_is_followed_by_the_next_epoch() -> None:
    passes = EpochCursor(Cursor(4, 8, 2))
    passes.iterate()
    passes.begin(SHAPE).taken = 3
    passes.iterate()
    assert passes.cursor == Cursor(5, 0, 0)


def test_an_epoch_set_during_a_pass_is_the_next_ones_alone() -> None:
    passes = EpochCursor(Cursor(0, 0, 0))
    passes.iterate()
    running = passes.begin(SHAPE)
    running.taken = 2
    passes.set_epoch(7)
    assert (passes.epoch, passes.cursor) == (0, Cursor(0, 8, 2))
    passes.finish()
    assert passes.cursor == Cursor(7, 0, 0)
    passes.begin(SHAPE)
    passes.finish()
    assert passes.epoch == 8


@pytest.mark.parametrize(
    ("epoch", "start"), [(3, Cursor(3, 20, 5)), (4, Cursor(4, 0, 0)), (0, Cursor(0, 0, 0))]
)
def test_a_loaded_position_is_kept_for_its_own_epoch_only(epoch: int, start: Cursor) -> None:
    passes = EpochCursor(Cursor(0, 0, 0))
    passes.iterate()
    passes.begin(SHAPE).taken = 1
    passes.load(Cursor(3, 20, 5))
    passes.set_epoch(epoch)
    assert passes.begin(SHAPE).origin == start


def test_the_end_of_an_epoch_resumes_as_its_empty_rest() -> None:
    passes = EpochCursor(Cursor(2, 50, 13))
    assert passes.begin(SHAPE).steps == 0
    passes.finish()
    assert passes.cursor == Cursor(3, 0, 0)


def test_a_used_up_iterator_is_not_the_newest_any_more() -> None:
    passes = EpochCursor(Cursor(0, 0, 0))
    number = passes.iterate()
    passes.begin(SHAPE)
    passes.finish()
    assert passes.newest != number
