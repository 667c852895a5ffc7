"""A pool that finds its own number of workers, with the real scheduler in simulated time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderd.core.events import Drain, PoolReview
from loaderd_testing.timed_load import NEEDS_5, TimedLoad, ran, said

KEEP_S = 600.0  # PoolPace.keep_s


def test_a_load_that_needs_5_2_workers_ends_at_6_and_goes_back_slowly_when_it_is_over() -> None:
    world = TimedLoad(NEEDS_5)
    made = world.run()
    assert world.sizes == [2, 3, 4, 6]
    assert made.kind == "trainer-bound", made.text
    world.load = replace(world.load, row_s=0.1, seconds=KEEP_S - 50)
    world.run()
    assert world.size == 6
    world.load = replace(world.load, seconds=250.0)
    assert world.run().kind == "trainer-bound"
    assert world.sizes == [2, 3, 4, 6, 5, 4, 3, 2]
    assert said(world)[0].startswith("2 -> 3: a trainer waits 6")
    assert said(world)[-1] == "3 -> 2: trainers need 0.8"


@pytest.mark.parametrize("need", [1.9, 5.9, 15.9])
def test_a_load_that_stays_the_same_has_a_pool_that_stays_the_same(need: float) -> None:
    world = ran(replace(NEEDS_5, row_s=need / 8, seconds=300.0))
    grown = list(world.sizes)
    assert grown == sorted(grown)
    world.load = replace(world.load, seconds=2 * KEEP_S)
    made = world.run()
    assert made.kind == "trainer-bound", made.text
    assert len(world.sizes) <= len(grown) + 1, world.sizes
    assert need <= world.size <= max(2, 1.2 * need + 1)


@pytest.mark.parametrize("at_once", [2, 5])
def test_a_load_that_waits_for_a_disk_stops_growing_and_says_so(at_once: int) -> None:
    world = TimedLoad(replace(NEEDS_5, row_s=2.0, at_once=at_once, seconds=500.0))
    made = world.run()
    assert world.size <= 1.5 * at_once
    assert made.kind == "read-bound"
    assert f"more than {world.size} workers did not help (" in made.text
    assert made.text.endswith("): put the data on a faster disk")
    assert made.setting == "lmdb"
    steps = len(world.sizes)
    world.load = replace(world.load, seconds=5 * KEEP_S)
    world.run()
    assert len(world.sizes) <= steps + 6, world.sizes  # two or three trials, ever rarer


def test_a_pool_of_fewer_workers_than_at_the_start_comes_back_at_once_with_a_trainer() -> None:
    world = ran(replace(NEEDS_5, workers=12, row_s=0.1, seconds=2 * KEEP_S))
    assert world.sizes[-1] == 2
    assert world.sizes == sorted(world.sizes, reverse=True)
    assert max(a - b for a, b in zip(world.sizes, world.sizes[1:], strict=False)) == 2
    world.harness.attach(2)
    assert world.size == 12
    assert said(world)[-1] == "2 -> 12: a trainer has come"


def test_a_load_that_grows_again_gets_back_at_once_what_it_had_at_the_start() -> None:
    world = ran(replace(NEEDS_5, workers=12, row_s=0.1, seconds=2 * KEEP_S))
    world.load = replace(world.load, row_s=1.0, seconds=60.0)
    world.run()
    assert 6 <= world.sizes[world.sizes.index(2) + 1] <= 12
    assert 8 <= world.size <= 12


def test_no_more_workers_are_started_than_there_may_be() -> None:
    world = TimedLoad(replace(NEEDS_5, most=4))
    made = world.run()
    assert world.sizes == [2, 3, 4]
    assert "the pool may have 4 workers, and has them" in made.text


def test_a_pool_is_not_reviewed_once_nobody_uses_it_or_while_its_size_is_fixed() -> None:
    fixed = ran(replace(NEEDS_5, most=0, seconds=20.0))
    assert fixed.harness.core.next_review_s() is None
    assert fixed.sizes == [2]
    harness = ran(replace(NEEDS_5, workers=6, seconds=20.0)).harness
    harness.finish()
    harness.detach(1)
    for _ in range(1000):
        review_s = harness.core.next_review_s()
        if review_s is None:
            break
        harness.now_s = max(review_s, harness.now_s)
        harness.step(PoolReview(1 << 40))
        for worker in [w for w in harness.retired() if w in harness.sent]:
            harness.die(worker, own=True, cause="exit code 0")
    assert harness.core.next_review_s() is None
    assert harness.core.state.pool.size == 2


def test_a_daemon_that_drains_starts_no_worker() -> None:
    harness = ran(replace(NEEDS_5, seconds=20.0)).harness
    harness.step(Drain())
    assert harness.core.next_review_s() is None
