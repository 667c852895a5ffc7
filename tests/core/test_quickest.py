"""Quick and slow workers: each gets the rows that nobody would make sooner."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from loaderd.core.actions import SendJob
from loaderd_testing.scheduler_harness import SchedulerHarness, done
from loaderd_testing.timed_load import Load, TimedLoad

ROW_S = 0.01


def taught(harness: SchedulerHarness, worker: int, slowness: float) -> None:
    """A worker takes so many times as long as the others, and that is known."""
    for _ in range(60):
        harness.core.state.pool.measured(worker, 1.0, slowness, harness.now_s)


def ready(workers: int = 2, *, collated: bool = False, sessions: int = 2) -> SchedulerHarness:
    """Workers that need ROW_S for a row, and trainers that have no batch ahead."""
    harness = SchedulerHarness(workers=workers, collated=collated)
    harness.make = lambda job: done(job, seconds=ROW_S * (job.last - job.first))
    for session in range(1, sessions + 1):
        harness.attach(session, prefetch=1)
    harness.finish()
    return harness


@pytest.mark.parametrize("collated", [False, True])
def test_a_batch_that_is_waited_for_stays_with_a_quick_worker_that_is_busy_for_a_moment(
    collated: bool,
) -> None:
    harness = ready(collated=collated)
    taught(harness, 2, 50.0)
    harness.take(1)
    harness.take(2)
    assert harness.idle(2)
    assert len(harness.sent[1]) == 1
    harness.tell(2, ping=True)
    assert "workers that are idle are slow, and a quicker one" in str(harness.inbox[2])
    harness.work(1)
    (job,) = harness.sent[1]
    assert harness.core.state.jobs[job.job].owner.session == 2
    harness.hear(1)


LAG_S = 0.003


@pytest.mark.parametrize(
    ("left_s", "jobs"),
    [(ROW_S, 1), (2 * LAG_S, 2), (LAG_S, 2), (-LAG_S, 1)],  # a late one may hang
)
def test_a_batch_that_is_waited_for_stands_behind_a_job_whose_answer_is_soon_there(
    left_s: float, jobs: int
) -> None:
    harness = ready(workers=1)
    state = harness.core.state
    harness.take(1)
    harness.take(2)
    (first,) = harness.sent[1]
    work_s = state.streams[first.stream].work_s(first.last - first.first)
    assert work_s is not None
    pace = state.pool.workers[1].pace
    pace.lag_s = LAG_S
    harness.now_s = pace.begun_s + work_s + LAG_S - left_s - 1e-6
    harness.tell(2)
    assert len(harness.sent[1]) == jobs


def test_a_slow_worker_gets_what_a_quick_one_that_hangs_would_not_make_sooner() -> None:
    harness = ready()
    taught(harness, 2, 50.0)
    harness.take(1)
    harness.take(2)
    for _ in range(100):
        if harness.sent[2]:
            break
        harness.look(harness.seen(1))
    assert harness.sent[2]
    assert harness.sent[1]


def test_a_batch_that_is_kept_from_a_slow_worker_comes_before_others_second_jobs() -> None:
    harness = SchedulerHarness(workers=2)
    harness.make = lambda job: done(job, seconds=ROW_S * (job.last - job.first))
    harness.attach(1, prefetch=8)
    harness.attach(2, prefetch=1)
    harness.finish()
    taught(harness, 2, 50.0)
    for _ in range(4):
        harness.take(1)
    harness.take(2)
    for _ in range(2):  # the quick worker's jobs; trainer 1 wants more all the time
        harness.work(1)
        harness.hear(1)
        batch = harness.clients[1].take()
        assert batch is not None
        harness.clients[1].release(batch.segment, batch.slot, batch.generation)
        harness.tell(1)
    job = harness.sent[1][0]
    assert harness.core.state.jobs[job.job].owner.session == 2


def test_a_slow_worker_gets_a_smaller_piece_of_a_batch() -> None:
    harness = SchedulerHarness(workers=2)
    harness.make = lambda job: done(job, seconds=0.1 * (job.last - job.first))
    harness.attach(prefetch=4)
    harness.finish()
    taught(harness, 2, 4.0)
    harness.log.clear()
    while len(rows := sizes(harness)) < 2:
        harness.take()
    assert rows[1] > rows[2] >= 1


def sizes(harness: SchedulerHarness) -> dict[int, int]:
    """The most rows that each worker was sent at once."""
    rows: dict[int, int] = {}
    for send in harness.of(SendJob):
        rows[send.worker] = max(rows.get(send.worker, 0), send.job.last - send.job.first)
    return rows


@pytest.mark.parametrize("prefetch", [1, 4])
@pytest.mark.parametrize("slow", [{"slowness": 10.0}, {"slowness": 50.0}, {"lag_s": 1.0}])
def test_a_slow_worker_beside_quick_ones_costs_them_nothing(
    slow: dict[str, float], prefetch: int
) -> None:
    """What keeps a batch waiting is never the slow worker's piece of it."""
    quick = Load(workers=3, row_s=0.025, own_s=0.001, prefetch=prefetch, seconds=15.0)
    mixed = replace(quick, workers=4, slow=1, **{"slowness": 1.0} | slow)
    assert batches_per_s(mixed) > 0.85 * batches_per_s(quick)


def test_workers_of_half_the_speed_add_half_as_much() -> None:
    quick = Load(workers=2, row_s=0.025, own_s=0.001, seconds=15.0)
    mixed = replace(quick, workers=4, slow=2, slowness=2.0)
    assert batches_per_s(mixed) > 1.3 * batches_per_s(quick)


@functools.cache
def batches_per_s(load: Load) -> float:
    """Of a trainer that always waits, once the workers are known."""
    world = TimedLoad(load)
    world.run()
    state, begin_s = world.harness.core.state, world.harness.now_s
    before = state.streams["train"].batches
    world.run()
    return (state.streams["train"].batches - before) / (world.harness.now_s - begin_s)


@pytest.mark.parametrize("then", [{"slowness": 50.0}, {"lag_s": 2.0}])
def test_a_worker_that_was_slow_for_a_while_gets_its_part_again(then: dict[str, float]) -> None:
    """Nothing but a job shows that it is quick again."""
    load = Load(workers=2, row_s=0.025, own_s=0.001, prefetch=4, seconds=15.0)
    world = TimedLoad(load)
    pace = world.harness.core.state.pool.workers[2].pace
    world.run()
    taught(world.harness, 2, then.get("slowness", 1.0))
    pace.lag_s = then.get("lag_s", 0.0)
    for _ in range(16):
        world.run()
    assert pace.tier == 0
    world.harness.log.clear()
    world.run()
    sent = [send.worker for send in world.harness.of(SendJob)]
    assert sent.count(2) > 0.4 * len(sent)
