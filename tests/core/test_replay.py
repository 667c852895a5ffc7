"""Batches that stay in their slots are handed out again, and nothing is made anew."""

from __future__ import annotations

import pytest

from loaderd.core.actions import SendJob
from loaderd.core.replay import FIRST_USES
from loaderd_testing.scheduler_harness import SHAPE, SchedulerHarness, bad_row, done
from loaderd_wire.messages import Descriptor
from loaderd_wire.slices import Cursor, EpochShape

SLOTS = 6


def made(harness: SchedulerHarness) -> int:
    """Jobs that workers were sent."""
    return len(harness.of(SendJob))


def taken(harness: SchedulerHarness, count: int) -> list[Descriptor]:
    return [harness.take() for _ in range(count)]


@pytest.mark.parametrize("collated", [False, True])
def test_after_the_first_uses_of_each_slot_no_worker_gets_a_job(collated: bool) -> None:
    harness = SchedulerHarness(replay=True, collated=collated)
    harness.make = lambda job: done(job, size=16)
    harness.attach()
    first = taken(harness, 4 * FIRST_USES * SLOTS)
    jobs = made(harness)
    again = taken(harness, 40)
    assert made(harness) == jobs
    assert [batch.k for batch in first + again] == list(range(len(first) + 40))
    assert all(batch.filled == 8 and batch.chunks for batch in again)
    assert len({batch.start for batch in again}) == 8  # the positions go on as ever


def test_without_replay_each_batch_is_made() -> None:
    harness = SchedulerHarness()
    harness.attach()
    taken(harness, 60)
    jobs = made(harness)
    taken(harness, 10)
    assert made(harness) >= jobs + 10


def test_a_batch_of_another_size_is_made_and_not_taken_for_a_whole_one() -> None:
    shape = EpochShape(samples=36, batch_size=8, rank=0, world_size=1, drop_last=False)
    harness = SchedulerHarness(replay=True, samples=36)
    harness.attach(shape=shape)
    for batch in taken(harness, 80):
        assert batch.filled == batch.rows == (4 if batch.start == 32 else 8)


def test_a_batch_with_bad_samples_is_not_kept() -> None:
    harness = SchedulerHarness(replay=True, on_error="skip")
    harness.make = lambda job: done(job, (bad_row(job.first),))
    harness.attach()
    taken(harness, 60)
    jobs = made(harness)
    taken(harness, 10)
    assert made(harness) >= jobs + 10


def test_a_change_of_mind_is_served_from_the_slots_too() -> None:
    harness = SchedulerHarness(replay=True)
    client = harness.attach(shape=SHAPE)
    taken(harness, 60)
    client.seek(Cursor(5, 16, 2))
    batch = harness.take()
    assert (batch.epoch, batch.start) == (5, 16)
    taken(harness, 4 * FIRST_USES * SLOTS)  # the seek may have brought other slots into use
    jobs = made(harness)
    taken(harness, 20)
    assert made(harness) == jobs
