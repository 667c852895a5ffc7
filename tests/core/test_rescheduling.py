"""Jobs that are better done by another worker, and workers that nobody waits for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderd.core.actions import KillWorker, RetireWorker
from loaderd.core.events import WorkerObservation, WorkerReady
from loaderd.core.jobs import Job, Stage
from loaderd_testing.scheduler_harness import SchedulerHarness, done


def test_a_trainers_batch_behind_anothers_hanging_job_is_made_elsewhere() -> None:
    harness = SchedulerHarness(workers=2, sample_timeout_s=30.0, ready=False)
    harness.attach(1, prefetch=2)
    harness.attach(2, prefetch=2)
    harness.step(WorkerReady(1))
    while [harness.core.state.jobs[job.job].owner.session for job in harness.sent[1]] != [1, 2]:
        harness.work(1)
    behind = harness.sent[1][1]
    assert harness.take(2).k == 0  # so batch 1 is what trainer 2 waits for
    assert behind.start == 8
    harness.step(WorkerReady(2))
    seen = harness.seen(1, 0)
    for _ in range(8):
        while harness.sent[2]:
            harness.work(2)
        harness.look(seen)
    harness.hear(2)
    batch = harness.clients[2].take()
    assert batch is not None
    assert (batch.k, batch.slot == behind.slot) == (1, False)
    harness.work(1)
    harness.work(1)
    assert harness.core.state.sessions[2].slots.tables[1].state[behind.slot].value != "ending"


def test_the_batch_that_is_waited_for_is_made_anew_by_quick_workers_if_they_have_it_sooner() -> (
    None
):
    harness = SchedulerHarness(workers=3)
    harness.make = lambda job: done(job, seconds=0.1 * (job.last - job.first))
    harness.attach(prefetch=1)
    harness.finish()
    harness.take()
    late = harness.sent[3][0]
    for _ in range(60):  # it has become slow since
        harness.core.state.pool.measured(3, 1.0, 100.0, harness.now_s)
    harness.work(1)
    harness.look(harness.seen(2), harness.seen(3))
    harness.work(2)
    harness.look(harness.seen(3, late.first + 1))
    again = [job for job in harness.jobs() if job is not late]
    assert {job.start for job in again} == {late.start}
    assert late.slot not in {job.slot for job in again}
    while harness.sent[1] or harness.sent[2]:
        harness.work(1)
        harness.work(2)
    harness.hear()
    batch = harness.clients[1].take()
    assert batch is not None
    assert batch.slot != late.slot
    slots = harness.core.state.sessions[1].slots.tables[1]
    assert slots.state[late.slot].value == "ending"
    harness.work(3)
    assert slots.state[late.slot].value == "free"


def one_late_job() -> tuple[SchedulerHarness, Job]:
    """The batch that is waited for has one job left: of four rows, 0.1 s each, at worker 2."""
    harness = SchedulerHarness(workers=2, sample_timeout_s=100.0)
    harness.make = lambda job: done(job, seconds=0.1 * (job.last - job.first))
    harness.attach(prefetch=1)
    harness.finish()
    harness.take()
    harness.work(1)
    (late,) = harness.jobs()
    assert (harness.holder(late), late.last - late.first) == (2, 4)
    return harness, late


def test_a_worker_that_has_become_slow_is_found_by_the_rows_that_it_has_finished() -> None:
    harness, late = one_late_job()
    harness.look(harness.seen(2, late.first), after_s=2.0)
    assert harness.jobs() == [late]
    harness.look(harness.seen(2, late.first + 1), after_s=0.0)
    assert [(j.start, j.slot == late.slot) for j in harness.sent[1]] == [(late.start, False)]


def test_a_row_that_hangs_behind_quick_ones_is_not_tried_elsewhere() -> None:
    harness, late = one_late_job()
    harness.look(harness.seen(2, late.first + 1), after_s=0.1)
    for _ in range(60):
        harness.look(harness.seen(2, late.first + 1), after_s=1.0)
    assert harness.jobs() == [late]


@pytest.mark.parametrize("how", ["stopped", "starved"])
def test_a_row_that_hangs_while_its_time_does_not_count_makes_the_rows_before_it_no_slower(
    how: str,
) -> None:
    harness, late = one_late_job()
    harness.look(harness.seen(2, late.first + 1), after_s=0.1)
    hangs = harness.seen(2, late.first + 1)
    uncounted = replace(hangs, paused=how == "stopped", starved=how == "starved")
    for _ in range(30):
        harness.look(uncounted, after_s=1.0)
        harness.look(hangs, after_s=0.25)
    assert harness.jobs() == [late]


def test_what_a_row_that_hangs_took_before_makes_the_rows_before_it_no_slower() -> None:
    harness, late = one_late_job()
    harness.look(harness.seen(2, late.first + 1), after_s=0.1)
    for _ in range(30):
        harness.look(harness.seen(2, late.first + 1), after_s=1.0)
    for _ in range(30):
        harness.look(harness.seen(2, late.first + 1, Stage.DECODE), after_s=1.0)
    assert harness.jobs() == [late]


def test_what_stands_behind_a_job_that_may_hang_is_made_elsewhere_before_that_job_is() -> None:
    """Else its row hangs in the last idle worker, and nobody makes what the other trainer needs."""
    harness = SchedulerHarness(workers=2, sample_timeout_s=1000.0, ready=False)
    harness.make = lambda job: done(job, seconds=0.1 * (job.last - job.first))
    harness.attach(1, prefetch=2)
    harness.attach(2, prefetch=2)
    harness.step(WorkerReady(1))
    while [job.start for job in harness.sent[1]] != [8, 8]:
        harness.work(1)
    assert (harness.take(1).k, harness.take(2).k) == (0, 0)  # both trainers wait for batch 1
    hangs, behind = harness.sent[1]
    harness.look(harness.seen(1, hangs.first), after_s=10.0)
    stands = harness.seen(1, hangs.first + 1)
    harness.look(stands, after_s=0.0)  # slow, as the row shows that it has finished
    harness.step(WorkerReady(2))
    while harness.sent[2]:
        harness.work(2)
    harness.look(stands, after_s=0.0)
    jobs = harness.core.state.jobs
    (again,) = harness.sent[2]
    assert jobs[again.job].build is jobs[behind.job].build
    while harness.sent[2]:
        harness.work(2)
    assert harness.take(jobs[behind.job].owner.session).k == 1
    while harness.sent[2]:
        harness.work(2)
    harness.look(stands, after_s=0.0)
    (again,) = harness.sent[2]
    assert jobs[again.job].build is jobs[hangs.job].build


def test_a_row_that_hangs_in_a_worker_that_was_slower_before_is_not_tried_elsewhere() -> None:
    """A sample that never returns takes one worker, and not the others of its pool, too."""
    harness, late = one_late_job()
    pool = harness.core.state.pool
    for _ in range(60):
        pool.measured(2, 1.0, 2.0, harness.now_s)
    assert pool.workers[2].pace.tier == 1
    for _ in range(60):
        harness.look(harness.seen(2, late.first), after_s=1.0)
    assert harness.jobs() == [late]


def test_a_job_that_a_stopped_worker_has_not_begun_is_made_elsewhere() -> None:
    harness = SchedulerHarness(workers=2, ready=False)
    harness.attach(prefetch=1)
    harness.step(WorkerReady(1))
    harness.step(WorkerReady(2))
    while harness.sent[2]:
        harness.work(2)
    (job,) = harness.sent[1]
    word = WorkerObservation(1, 0, "", True, 0)
    harness.look(word)
    assert [(j.start, j.slot == job.slot) for j in harness.sent[2]] == [(job.start, False)]
    harness.work(2)
    assert harness.take().k == 0
    ring = harness.core.state.sessions[1].slots.tables[1]
    assert ring.state[job.slot].value == "ending"
    harness.work(1)  # it goes on, and what it writes is nobody's
    assert ring.state[job.slot].value != "ending"


def test_a_batch_is_made_elsewhere_once_and_not_again() -> None:
    harness = SchedulerHarness(workers=3, ready=False)
    harness.attach(prefetch=1)
    for worker in (1, 2, 3):
        harness.step(WorkerReady(worker))
    while harness.sent[2] or harness.sent[3]:
        harness.work(2)
        harness.work(3)
    (job,) = harness.sent[1]
    harness.look(WorkerObservation(1, 0, "", True, 0))
    taker = next(w for w in (2, 3) if harness.sent[w])
    assert harness.sent[taker][0].start == job.start
    harness.look(*(WorkerObservation(w, 0, "", True, 0) for w in (1, taker)))
    assert not harness.sent[5 - taker]


def test_a_job_of_a_stopped_worker_stays_with_it_where_there_is_no_other_slot() -> None:
    harness = SchedulerHarness(workers=2)
    harness.attach(prefetch=1)
    for _ in range(2):
        harness.take(keep=True)
    (job,) = harness.jobs()
    assert harness.core.state.sessions[1].slots.tables[1].free == 0
    harness.look(WorkerObservation(harness.holder(job), 0, "", True, 0))
    assert harness.jobs() == [job]
    assert harness.core.state.jobs[job.job].wanted


def test_a_job_that_a_stopped_worker_is_at_stays_with_it() -> None:
    harness = SchedulerHarness(workers=2)
    harness.attach(prefetch=1)
    harness.work(2)
    for _ in range(200):
        harness.look(harness.seen(1, 0, paused=True), after_s=1.0)
    assert not harness.sent[2]
    assert not harness.of(KillWorker)


def test_a_stopped_worker_that_nobody_waits_for_any_longer_is_ended_and_is_no_fault_of_the_stream() -> (
    None
):
    harness = SchedulerHarness(workers=2)
    harness.attach(1, prefetch=1)
    harness.work(2)
    harness.look(harness.seen(1, 0, paused=True))
    harness.look(harness.seen(1, 0, paused=True), after_s=100.0)
    assert not harness.of(KillWorker)  # its batch is waited for
    harness.detach(1)
    harness.attach(2, prefetch=1)
    (kill,) = [
        a for a in harness.look(harness.seen(1, 0, paused=True)) if isinstance(a, KillWorker)
    ]
    assert (kill.worker, kill.why) == (
        1,
        "it is stopped by a signal (T), and no session waits for it",
    )
    harness.die(1, 0, own=False, cause="killed: it is stopped")
    assert harness.core.state.streams["train"].deaths < 1
    assert harness.take(2).k == 0


def test_a_worker_that_is_stopped_for_a_moment_at_work_that_nobody_wants_lives_on() -> None:
    harness = SchedulerHarness(workers=1)
    harness.attach(1, prefetch=1)
    harness.detach(1)
    harness.look(harness.seen(1, 0, paused=True))
    harness.look(harness.seen(1, 0, paused=True), after_s=4.0)
    harness.look(harness.seen(1, 0))
    harness.look(harness.seen(1, 0, paused=True), after_s=4.0)
    harness.look(harness.seen(1, 0, paused=True), after_s=4.0)
    assert not harness.of(KillWorker)


def test_a_stopped_worker_that_was_to_be_replaced_does_not_keep_its_seat() -> None:
    harness = SchedulerHarness(workers=1, worker_memory=1000)
    harness.attach(prefetch=1)
    harness.look(WorkerObservation(1, harness.seen(1, 0).word, "", False, 1001))
    harness.finish()
    assert harness.of(RetireWorker) == [RetireWorker(1)]
    for _ in range(30):
        harness.look(WorkerObservation(1, 0, "", True, 1001))
    assert [kill.worker for kill in harness.of(KillWorker)] == [1]


def test_the_batch_that_is_waited_for_is_made_here_where_another_host_does_not_move() -> None:
    harness = SchedulerHarness(workers=1, remote=1, sample_timeout_s=30.0)
    remote = next(n for n, w in harness.core.state.pool.workers.items() if w.remote)
    harness.attach(prefetch=2)
    harness.finish()
    harness.take()
    harness.take()
    there = harness.sent[remote][0]
    local = next(n for n in harness.sent if n != remote)
    for _ in range(2):
        while harness.sent[local]:
            harness.work(local)
        harness.hear()
        before = harness.clients[1].take()
        if before is not None:
            harness.clients[1].release(before.segment, before.slot, before.generation)
            harness.tell()
    while harness.sent[local]:
        harness.work(local)
    stands = harness.seen(remote, there.first)
    for _ in range(8):
        harness.look(stands)
    assert [job.start for job in harness.sent[local]] == [there.start]
    assert harness.sent[local][0].slot != there.slot
    harness.work(local)
    harness.hear()
    batch = harness.clients[1].take()
    assert batch is not None
    assert batch.start == there.start
