"""A waiting trainer is told what it waits for."""

from __future__ import annotations

from loaderd.core import stack_dumps
from loaderd.core.actions import DumpStack
from loaderd.core.events import (
    Drain,
    StackDumped,
    WorkerBooting,
    WorkerObservation,
    WorkerPoll,
    WorkerReady,
)
from loaderd.core.explain import explain
from loaderd.core.jobs import IMPORTING, Stage
from loaderd_testing.scheduler_harness import SchedulerHarness, done
from loaderd_wire.slices import EpochShape


def line(harness: SchedulerHarness, session: int = 1) -> str:
    return explain(harness.core.state, harness.core.state.sessions[session], harness.now_s)[0]


def test_it_names_batch_rows_worker_stage_sample_and_seconds() -> None:
    harness = SchedulerHarness(workers=2)
    harness.attach()
    harness.work(1)
    harness.look(
        WorkerObservation(2, harness.seen(2, 5, Stage.DECODE).word, "n01440764/7.jpg", False, 0),
        after_s=1.0,
    )
    harness.look(
        WorkerObservation(2, harness.seen(2, 5, Stage.DECODE).word, "n01440764/7.jpg", False, 0),
        after_s=3.0,
    )
    harness.now_s += 0.5
    text = line(harness)
    assert text == (
        "batch 0 (epoch 0, step 0) waits for rows 4-7: worker 2 has been decoding row 5, "
        "sample n01440764/7.jpg, for 3.5 s"
    )


def test_it_names_a_stopped_worker() -> None:
    harness = SchedulerHarness(workers=1)
    harness.attach()
    harness.look(harness.seen(1, 0, paused=True))
    harness.now_s += 4.0
    assert line(harness) == (
        "batch 0 (epoch 0, step 0) waits for rows 0-7: "
        "worker 1 is stopped by a signal (T), 4.0 s so far, reading row 0, sample ?; continue it "
        "with SIGCONT"
    )
    _, detail = explain(harness.core.state, harness.core.state.sessions[1], harness.now_s)
    assert "its stack cannot be read while it is stopped" in detail
    (worker,) = harness.core.snapshot().workers
    assert (worker.state, worker.seconds) == ("stopped", 0.0)


def test_it_names_an_import_and_how_long_that_has_taken() -> None:
    harness = SchedulerHarness(workers=1)
    harness.attach()
    seen = harness.seen(1, 3, Stage.TRANSFORM)
    harness.look(WorkerObservation(1, seen.word, "7.jpg", False, 0), after_s=1.0)
    harness.look(WorkerObservation(1, seen.word, "7.jpg", False, 0), after_s=4.0)
    harness.look(WorkerObservation(1, seen.word | IMPORTING, "7.jpg", False, 0), after_s=2.0)
    harness.look(WorkerObservation(1, seen.word | IMPORTING, "7.jpg", False, 0), after_s=1.0)
    harness.now_s += 0.5
    assert line(harness).endswith(
        "worker 1 has been importing modules while transforming row 3, sample 7.jpg, for 3.5 s"
    )
    harness.step(Drain())
    (worker,) = harness.core.snapshot().workers
    assert (worker.stage, worker.seconds) == ("import", 3.5)
    harness.look(WorkerObservation(1, seen.word, "7.jpg", False, 0), after_s=1.0)
    assert harness.core.snapshot().workers[0].stage == "transform"


def test_it_tells_of_workers_that_are_starting_and_of_what_the_last_one_died() -> None:
    harness = SchedulerHarness(workers=1, ready=False)
    harness.attach()
    assert line(harness).endswith("waits for rows 0-7: workers are starting")
    harness.die(1, stage=Stage.IDLE, cause="exit code 3", boot="ImportError", ready=False)
    assert line(harness).endswith(
        "workers are starting; 1 died before they were ready, the last: exit code 3"
    )
    harness.step(WorkerBooting(2, "importing users (call of stream 'train')"))
    harness.now_s += 7.0
    assert (
        "workers are starting: worker 2 has been importing users (call of stream 'train') for 7.0 "
        "s; 1 died"
    ) in line(harness)
    (worker,) = harness.core.snapshot().workers
    assert (worker.state, worker.doing) == ("starting", "importing users (call of stream 'train')")
    harness.step(WorkerReady(2))
    assert "starting" not in line(harness)
    assert harness.core.snapshot().workers[0].doing == ""


def test_it_tells_of_other_sessions_batches() -> None:
    harness = SchedulerHarness(workers=1)
    harness.attach(1)
    harness.attach(2)
    assert line(harness, 2) == (
        "batch 0 (epoch 0, step 0) waits for rows 0-7: workers are busy with other sessions' "
        "batches (2 of 2 jobs)"
    )


def test_it_tells_of_the_workers_of_one_stage_that_concerns_the_whole_job() -> None:
    harness = SchedulerHarness(workers=1, collated=True)
    harness.attach()
    harness.step(WorkerPoll((harness.seen(1, 0, Stage.COLLATE),)))
    assert line(harness).endswith("worker 1 has been collating for 0.0 s")


def test_it_tells_of_a_worker_that_was_killed_and_of_one_that_does_not_die() -> None:
    harness = SchedulerHarness(workers=1, sample_timeout_s=1.0)
    harness.attach(prefetch=1)
    seen = harness.seen(1, 0)
    for _ in range(20):
        harness.look(seen)
    assert line(harness).endswith("worker 1 was killed and has not exited yet")
    for _ in range(20):
        harness.look(seen)
    assert "workers are starting (1 cannot be killed)" in line(harness)


def test_it_says_nothing_when_the_batch_is_there() -> None:
    harness = SchedulerHarness()
    harness.attach(tell=False)
    assert line(harness) == "the daemon has not received a request of this client yet"
    harness.tell()
    harness.finish()
    assert line(harness) == ""
    assert explain(harness.core.state, harness.core.state.sessions[1], harness.now_s) == ("", "")


def test_it_says_that_the_daemon_drains() -> None:
    harness = SchedulerHarness()
    harness.attach()
    harness.step(Drain())
    assert line(harness) == "the daemon is draining"


def test_the_detail_has_all_busy_workers_and_the_last_stack() -> None:
    harness = SchedulerHarness(workers=2)
    harness.attach()
    harness.die(1, row=0, stack="File user.py, line 9")
    _, detail = explain(harness.core.state, harness.core.state.sessions[1], harness.now_s)
    assert "worker 2 has just started a job" in detail
    assert "the last worker that died on stream train: SIGSEGV" in detail
    assert "File user.py, line 9" in detail


def test_the_deaths_before_are_told_with_what_goes_on_now() -> None:
    harness = SchedulerHarness(workers=1)
    harness.attach(prefetch=1)
    harness.die(1, 3, cause="SIGBUS", key="x")
    assert "before" not in line(harness)
    harness.die(2, 3, cause="SIGKILL", key="y", own=False)
    assert line(harness).endswith(
        "worker 3 has just started a job; 2 workers died on it before, the last: SIGKILL at "
        "sample 'y'"
    )


def test_a_batch_without_memory_waits_for_a_larger_segment() -> None:
    harness = SchedulerHarness(workers=1)
    harness.attach(prefetch=1)
    harness.make = lambda job: done(job, needs_body=10_000)
    harness.work()
    assert line(harness) == "batch 0 (epoch 0, step 0) has no slot: waiting for a larger segment"


def test_a_stopped_worker_is_named_before_a_slow_one() -> None:
    harness = SchedulerHarness(workers=2)
    harness.attach(prefetch=1)
    harness.look(harness.seen(1, 0), harness.seen(2, 4))
    harness.look(harness.seen(1, 0), harness.seen(2, 4, paused=True), after_s=5.0)
    assert "worker 2 is stopped" in line(harness)


def test_a_detail_of_many_workers_has_a_bound() -> None:
    harness = SchedulerHarness(workers=100)
    harness.attach(prefetch=8, shape=EpochShape(2000, 100, 0, 1, True))
    harness.tell(ping=True, stacks=True)
    for _ in range(20):
        for dump in harness.of(DumpStack):
            harness.step(StackDumped(dump.worker, "frame\n" * 10_000))
        harness.tell(ping=True, stacks=True)
    _, detail = explain(harness.core.state, harness.core.state.sessions[1], harness.now_s)
    assert "and 36 more workers" in detail
    assert detail.count("its stacks") == stack_dumps.MOST
    assert len(detail) < 150_000
