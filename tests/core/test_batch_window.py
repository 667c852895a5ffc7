"""The window of a plan: its batches are numbered without a gap, whatever the client says."""

from __future__ import annotations

from functools import partial

import pytest

from loaderd.core.batch_window import BatchWindow
from loaderd.core.batches import BatchBuild
from loaderd_testing.scheduler_harness import SHAPE
from loaderd_wire.messages import Progress
from loaderd_wire.slices import Slice


def progress(plan: int = 1, taken: int = 0, start: int = 0) -> Progress:
    return Progress(1, plan, plan, 0, start, start // 8, taken, taken, False, False, False, ())


def window(prefetch: int = 3) -> BatchWindow:
    made = BatchWindow(SHAPE, prefetch, partial(BatchBuild, "train", "raise", False, 7))
    made.seek(progress(), {})
    return made


def numbers(of: BatchWindow) -> list[tuple[int, int]]:
    return [(item.k, item.build.slice.start) for item in of.items]


def announce(of: BatchWindow, count: int) -> None:
    for item in list(of.items)[:count]:
        item.announced = True


def test_a_new_plan_fills_the_window_from_its_cursor() -> None:
    one = window()
    assert numbers(one) == [(0, 0), (1, 8), (2, 16)]
    one.seek(progress(2, start=24), {})
    assert (one.plan, one.taken, numbers(one)) == (2, 0, [(0, 24), (1, 32), (2, 40)])


def test_batches_that_were_taken_leave_the_window_and_as_many_follow() -> None:
    one = window()
    announce(one, 2)
    fault, got = one.advance(2)
    assert (fault, [build.slice.start for build in got]) == ("", [0, 8])
    assert numbers(one) == [(2, 16)]
    one.fill()
    assert numbers(one) == [(2, 16), (3, 24), (4, 32)]


@pytest.mark.parametrize(("taken", "text"), [(2, "of which 1 were announced"), (9, "9 batches")])
def test_more_batches_than_were_announced_cannot_be_taken(taken: int, text: str) -> None:
    one = window()
    announce(one, 1)
    fault, got = one.advance(taken)
    assert text in fault
    assert (got, one.taken, len(one.items)) == ([], 0, 3)


def test_a_plan_cannot_go_back() -> None:
    one = window()
    announce(one, 3)
    one.advance(2)
    assert one.advance(1) == ("1 batches taken of plan 1 after 2", [])
    assert one.taken == 2


def test_a_new_plan_begins_behind_what_the_trainer_has_of_it_and_uses_the_stock() -> None:
    one = window()
    stock = {item.build.slice: item.build for item in one.items}
    one.seek(progress(2, taken=1, start=8), stock)
    assert numbers(one) == [(1, 16), (2, 24), (3, 32)]
    assert one.items[0].build is stock[Slice(0, 16, 8)]


def test_the_stock_is_used_for_the_first_batches_of_a_plan_only() -> None:
    one = window()
    fourth = one.new_build(Slice(0, 24, 8))
    one.seek(progress(2, taken=1), {fourth.slice: fourth})
    assert numbers(one) == [(1, 8), (2, 16), (3, 24)]
    assert one.items[2].build is not fourth
