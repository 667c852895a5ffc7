"""Workers that do not move: looked at, dumped and killed."""

from __future__ import annotations

import pytest

from loaderd.core.actions import (
    DumpStack,
    KillWorker,
    RetireWorker,
    SendJob,
    StartWorker,
    StreamBroken,
)
from loaderd.core.events import WorkerDied, WorkerObservation, WorkerReady
from loaderd.core.jobs import IMPORTING, JobKind, Stage
from loaderd_testing.scheduler_harness import SchedulerHarness, hang, one_session


def killed(
    harness: SchedulerHarness, worker: int, row: int, stage: Stage = Stage.DECODE, *, key: str = "k"
) -> None:
    harness.die(
        worker, row, stage, own=False, cause="SIGKILL", key=key, stack="File transform.py, line 3"
    )


def test_a_sample_that_hangs_is_dumped_and_killed_after_its_time_and_named_as_a_timeout() -> None:
    harness = one_session(on_error="skip")
    assert 10.0 < hang(harness, 1, 2) < 12.0
    dump = next(i for i, a in enumerate(harness.log) if isinstance(a, DumpStack))
    assert dump < next(i for i, a in enumerate(harness.log) if isinstance(a, KillWorker))
    killed(harness, 1, 2)
    batch = harness.take()
    assert batch.filled == 7
    (bad,) = batch.bad
    assert (bad.index, bad.key, bad.stage, bad.error) == (20, "k", "decode", "Timeout")
    assert "10 s" in bad.message
    assert bad.traceback == "File transform.py, line 3"


def test_a_stream_in_which_every_sample_hangs_ends_before_it_has_tried_all_substitutes() -> None:
    harness = one_session(on_error="replace")
    for worker in range(1, 20):
        if harness.of(StreamBroken):
            break
        number = harness.core.state.pool.workers[worker].jobs[0]
        row = harness.core.state.jobs[number].job.first
        hang(harness, worker, row)
        killed(harness, worker, row)
        harness.step(WorkerReady(worker + 1))
    assert len(harness.of(KillWorker)) == 10
    assert "10 workers died" in harness.of(StreamBroken)[0].text


def test_a_hang_that_names_no_row_is_tried_row_by_row() -> None:
    harness = one_session()
    hang(harness, 1, 0, Stage.FETCH_MANY)
    killed(harness, 1, 0, Stage.FETCH_MANY)
    harness.finish()
    assert [(a.job.first, a.job.last) for a in harness.log if isinstance(a, SendJob)][1:9] == [
        (r, r + 1) for r in range(8)
    ]
    assert not harness.take().failed


def test_a_single_row_that_hangs_is_guilty_wherever_it_hangs() -> None:
    harness = one_session()
    hang(harness, 1, 0, Stage.FETCH_MANY)
    killed(harness, 1, 0, Stage.FETCH_MANY)
    hang(harness, 2, 0, Stage.FETCH_MANY)
    killed(harness, 2, 0, Stage.FETCH_MANY)
    harness.finish()
    assert [(b.index, b.stage) for b in harness.take().bad] == [(0, "read")]


def test_a_collate_that_hangs_fails_its_batch() -> None:
    harness = one_session(collated=True)
    hang(harness, 1, 0, Stage.COLLATE)
    killed(harness, 1, 0, Stage.COLLATE)
    harness.finish()
    assert [(b.stage, b.error) for b in harness.take().bad] == [("collate", "Timeout")]


def test_a_row_that_hangs_a_collated_batch_is_left_out() -> None:
    harness = one_session(collated=True, on_error="skip")
    hang(harness, 1, 4)
    killed(harness, 1, 4)
    assert [(j.kind, j.lost) for j in harness.jobs()] == [(JobKind.BATCH, (4,))]
    assert harness.take().filled == 7


def test_a_dataset_that_is_being_built_may_take_as_long_in_a_job_as_it_may_where_it_is_first_opened() -> (
    None
):
    harness = one_session()
    assert 100.0 < hang(harness, 1, 0, Stage.OPEN) < 102.0
    assert (
        "row 0 in open: it took longer than 10 * sample_timeout_s = 100 s"
        in harness.of(KillWorker)[-1].why
    )


def test_a_worker_that_moves_is_left_alone_however_slow() -> None:
    harness = one_session()
    for row in range(8):
        for _ in range(36):
            assert harness.look(harness.seen(1, row)) == []


def test_a_stopped_worker_runs_out_of_no_time() -> None:
    harness = one_session()
    for _ in range(100):
        assert harness.look(harness.seen(1, 2, Stage.DECODE, paused=True), after_s=1.0) == []
    harness.tell(ping=True)
    assert "worker 1 is stopped" in str(harness.inbox[1])
    assert hang(harness, 1, 2, Stage.DECODE) > 9.0


def test_what_was_over_its_time_when_last_seen_is_looked_at_once_more_before_it_is_dumped() -> None:
    harness = one_session(sample_timeout_s=1.0)
    harness.look(harness.seen(1, 2))
    # that was one look, and perhaps an old one
    assert harness.look(harness.seen(1, 2), after_s=5.0) == []
    assert harness.look(harness.seen(1, 2)) == [DumpStack(1)]


def importing(
    harness: SchedulerHarness, worker: int, row: int, stage: Stage = Stage.DECODE
) -> WorkerObservation:
    seen = harness.seen(worker, row, stage, key="k")
    return WorkerObservation(worker, seen.word | IMPORTING, "k", False, 0)


def test_an_import_in_a_sample_has_its_own_time_and_leaves_the_samples_alone() -> None:
    harness = one_session(sample_timeout_s=10.0)
    for _ in range(110):
        assert harness.look(importing(harness, 1, 2), after_s=1.0) == []
    assert 9.0 < hang(harness, 1, 2) < 12.0
    assert "sample_timeout_s = 10 s" in harness.of(KillWorker)[-1].why


def test_an_import_that_never_ends_is_killed_and_named_as_that() -> None:
    harness = one_session(on_error="skip")
    begun = harness.now_s
    while not harness.of(KillWorker):
        assert harness.now_s < begun + 130.0
        harness.look(importing(harness, 1, 2), after_s=1.0)
    assert harness.now_s > begun + 120.0
    harness.now_s += 1.0
    seen = importing(harness, 1, 2)
    del harness.sent[1]
    harness.step(WorkerDied(1, False, "SIGKILL", seen, "File lazy.py, line 3", ""))
    harness.step(WorkerReady(2))
    (bad,) = harness.take().bad
    assert (bad.index, bad.stage, bad.error, bad.message) == (
        20,
        "decode",
        "Timeout",
        "importing modules took longer than 120 s",
    )


def test_a_longer_sample_timeout_holds_for_imports_as_well() -> None:
    harness = one_session(sample_timeout_s=300.0)
    for _ in range(290):
        assert harness.look(importing(harness, 1, 2), after_s=1.0) == []


def test_imports_that_fail_for_ever_do_not_keep_a_sample_from_its_end() -> None:
    harness = one_session(on_error="skip")
    begun = harness.now_s
    while not harness.of(KillWorker):
        assert harness.now_s < begun + 150.0
        harness.look(importing(harness, 1, 2))
        harness.look(harness.seen(1, 2, Stage.DECODE, key="k"))
    seen = harness.seen(1, 2, Stage.DECODE, key="k")
    if seen.word == harness.core.state.pool.workers[1].word:
        seen = importing(harness, 1, 2)  # it dies in the other state than it was last seen in
    del harness.sent[1]
    harness.step(WorkerDied(1, False, "SIGKILL", seen, "", ""))
    harness.step(WorkerReady(2))
    assert [bad.error for bad in harness.take().bad] == ["Timeout"]


def test_the_next_row_has_all_its_time_for_imports_again() -> None:
    harness = one_session()
    for row in range(3):
        for _ in range(100):
            assert harness.look(importing(harness, 1, row), after_s=1.0) == []


def test_a_worker_that_went_on_just_before_its_death_is_not_held_to_hang() -> None:
    harness = one_session()
    hang(harness, 1, 2)
    killed(harness, 1, 3)
    harness.finish()
    assert not harness.take().failed


def test_a_word_that_changes_after_the_dump_saves_the_worker() -> None:
    harness = one_session()
    for _ in range(100):
        if any(isinstance(a, DumpStack) for a in harness.look(harness.seen(1, 2))):
            break
    assert harness.look(harness.seen(1, 3), after_s=1.0) == []
    assert harness.look(harness.seen(1, 3), after_s=1.0) == []
    assert not harness.of(KillWorker)


def test_an_idle_worker_is_never_late() -> None:
    harness = one_session()
    harness.finish()
    for _ in range(100):
        assert harness.look(WorkerObservation(1, 0, "", False, 0), after_s=1.0) == []
    assert harness.core.next_look_s(harness.now_s) is None


@pytest.mark.parametrize(("timeout_s", "every_s"), [(30.0, 0.25), (0.8, 0.1), (0.01, 0.02)])
def test_looks_are_as_frequent_as_the_time_allowed_asks_for(
    timeout_s: float, every_s: float
) -> None:
    harness = one_session(sample_timeout_s=timeout_s)
    assert harness.core.next_look_s(harness.now_s) == pytest.approx(harness.now_s + every_s)
    harness.look(harness.seen(1, 0), after_s=3.0)
    assert harness.core.next_look_s(harness.now_s) == pytest.approx(harness.now_s + every_s)


def test_a_worker_that_was_asked_to_end_and_does_not_is_killed() -> None:
    harness = SchedulerHarness(workers=1, worker_memory=1000)
    harness.attach(prefetch=1)
    harness.look(WorkerObservation(1, harness.seen(1, 0).word, "", False, 1001))
    harness.finish()
    assert harness.of(RetireWorker) == [RetireWorker(1)]
    assert harness.core.next_look_s(harness.now_s) is not None
    for _ in range(30):
        harness.look(WorkerObservation(1, 0, "", False, 1001))
    (kill,) = harness.of(KillWorker)
    assert "asked to" in str(kill)


def test_a_worker_stopped_after_its_time_was_up_is_not_killed_while_it_is_stopped() -> None:
    harness = one_session(sample_timeout_s=1.0)
    for _ in range(5):
        harness.look(harness.seen(1, 2))
    for _ in range(50):
        harness.look(harness.seen(1, 2, paused=True))
    assert not harness.of(KillWorker)


def test_a_batch_without_a_slot_takes_none_from_a_later_one_that_is_being_written() -> None:
    harness = SchedulerHarness(workers=2, collated=True)
    harness.attach(prefetch=2)
    for _ in range(2):
        harness.take(keep=True)
    session = harness.core.state.sessions[1]
    first, second = (item.build for item in session.window.items)
    assert first.running
    assert second.running
    session.restart(first)
    harness.tell()
    assert second.running


def test_a_stopped_worker_that_is_killed_and_does_not_die_is_killed_once_and_given_up() -> None:
    harness = SchedulerHarness(workers=1)
    harness.attach(1, prefetch=1)
    harness.detach(1)
    for _ in range(60):
        harness.look(harness.seen(1, 0, paused=True))
    for _ in range(60):
        harness.look(harness.seen(1, 0))
    assert len(harness.of(KillWorker)) == 1
    assert StartWorker(2, 0.0) in harness.log


def test_time_in_which_the_loop_did_not_run_counts_for_nothing_and_stops_nobody() -> None:
    harness = one_session()
    seen = harness.seen(1, 2, Stage.DECODE)
    for _ in range(100):
        assert (
            harness.look(WorkerObservation(1, seen.word, "", False, 0, starved=True), after_s=1.0)
            == []
        )
    harness.tell(ping=True)
    assert "is stopped" not in str(harness.inbox[1])
