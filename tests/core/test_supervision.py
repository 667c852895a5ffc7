"""What follows when a worker answers, dies, leaks or does not die: replacement, and the end of a
stream.
"""

from __future__ import annotations

import pytest

from loaderd.core.actions import (
    CannotBoot,
    LogLine,
    Quarantine,
    RetireWorker,
    SendJob,
    StartWorker,
    StreamBroken,
)
from loaderd.core.events import WorkerDied, WorkerObservation, WorkerPoll, WorkerReady
from loaderd.core.jobs import Stage, stamp
from loaderd.core.supervision import WAY_ON
from loaderd_client.protocol import ClientProtocol
from loaderd_testing.scheduler_harness import SchedulerHarness, done, hang, one_session
from loaderd_wire.messages import Descriptor, Failure


def restarts(harness: SchedulerHarness) -> dict[str, int]:
    return {cause: count for cause, count in harness.core.snapshot().restarts.items() if count}


def test_each_restart_is_counted_by_its_cause() -> None:
    harness = one_session(ready=False)
    harness.die(1, boot="Traceback: no", own=True)
    assert restarts(harness) == {"start": 1}
    harness.die(2)
    harness.die(3, own=False, cause="SIGKILL")
    hang(harness, 4, 2)
    harness.die(4, 2, own=False, cause="killed: it took too long")
    assert restarts(harness) == {"start": 1, "crash": 1, "killed": 1, "hung": 1}


def test_a_worker_that_was_given_back_and_is_wanted_again_is_no_restart() -> None:
    harness = SchedulerHarness(workers=2)
    pool = harness.core.state.pool
    pool.resize(1)
    pool.resize(2)
    assert harness.die(2, stage=Stage.IDLE, own=False)[0] == StartWorker(3, 0.0)
    assert restarts(harness) == {}


def test_a_worker_that_does_not_die_keeps_its_slot_and_loses_its_batch_to_another() -> None:
    harness = one_session(on_error="skip")
    job = harness.sent[1][0]
    hang(harness, 1, 2)
    seen = harness.seen(1, 2, Stage.DECODE)
    ring = harness.core.state.sessions[1].slots.tables[1]
    for _ in range(30):
        harness.look(seen)
    assert any(
        isinstance(a, LogLine) and "worker 1 cannot be killed" in a.text for a in harness.log
    )
    assert StartWorker(2, 0.0) in harness.log
    assert restarts(harness) == {"hung": 1}
    assert ring.state[job.slot].value == "ending"
    stuck = harness.sent.pop(1)
    harness.sent.pop(2)
    harness.sent[2] = type(stuck)()
    harness.step(WorkerReady(2))
    for k in range(10):
        batch = harness.take()
        assert batch.k == k
        assert (batch.segment, batch.slot) != (job.segment, job.slot)
        assert batch.filled == (7 if k == 0 else 8)
    assert ring.state[job.slot].value == "ending"
    harness.finish()
    assert harness.core.next_look_s(harness.now_s) is None
    harness.step(WorkerDied(1, False, "SIGKILL", seen, "", ""))
    assert ring.state[job.slot].value == "free"
    assert restarts(harness) == {"hung": 1}


def test_a_killed_worker_that_has_gone_on_and_does_not_die_blames_no_later_sample() -> None:
    harness = one_session(on_error="skip", prefetch=2)
    hang(harness, 1, 2)
    harness.work(1)  # it had answered when it was killed, and has begun its next job
    assert harness.sent[1]
    seen = harness.seen(1, stage=Stage.DECODE, key="innocent")
    for _ in range(30):
        harness.look(seen)
    assert StartWorker(2, 0.0) in harness.log
    harness.sent.pop(1)
    harness.step(WorkerReady(2))
    for _ in range(4):
        assert harness.take().bad == ()
    assert not harness.of(Quarantine)


def test_a_collate_that_hangs_in_a_worker_that_does_not_die_fails_its_batch() -> None:
    harness = one_session(collated=True, on_error="skip")
    hang(harness, 1, 0, Stage.COLLATE)
    for _ in range(30):
        harness.look(harness.seen(1, 0, Stage.COLLATE))
    assert StartWorker(2, 0.0) in harness.log
    harness.sent.pop(1)
    harness.step(WorkerReady(2))
    batch = harness.take()
    assert (batch.failed, [(b.stage, b.error) for b in batch.bad]) == (
        True,
        [("collate", "Timeout")],
    )
    assert [a.job.start for a in harness.of(SendJob)].count(0) == 1
    assert harness.take().filled == 8


def test_a_worker_that_leaks_ends_its_job_and_is_replaced() -> None:
    harness = SchedulerHarness(workers=1, worker_memory=1000)
    harness.attach(prefetch=2)
    seen = harness.seen(1, 0)
    harness.look(WorkerObservation(1, seen.word, "", False, 1001))
    assert not harness.of(RetireWorker)
    harness.work(1)
    harness.work(1)
    assert harness.of(RetireWorker) == [RetireWorker(1)]
    assert harness.die(1, stage=Stage.IDLE, own=False)[0] == StartWorker(2, 0.0)
    assert restarts(harness) == {"memory": 1}
    assert isinstance(harness.take(), Descriptor)


def test_looks_at_the_dead_and_the_unborn_change_nothing() -> None:
    harness = SchedulerHarness(workers=1, ready=False)
    assert (
        harness.step(
            WorkerPoll(
                (WorkerObservation(1, 5, "", False, 0), WorkerObservation(77, 5, "", False, 0))
            )
        )
        == []
    )


def test_a_killed_worker_that_answers_and_lives_on_is_replaced_all_the_same() -> None:
    harness = one_session()
    hang(harness, 1, 2)
    harness.work(1)
    assert harness.jobs() == []
    for _ in range(40):
        assert (
            harness.core.next_look_s(harness.now_s) is not None
            or StartWorker(2, 0.0) in harness.log
        )
        harness.look(WorkerObservation(1, 0, "", False, 0))
    assert StartWorker(2, 0.0) in harness.log


def test_the_slot_of_a_job_is_not_given_to_another_before_its_worker_is_dead() -> None:
    harness = SchedulerHarness(workers=2, sample_timeout_s=1.0)
    client = harness.attach(prefetch=1)
    job = harness.sent[1][0]
    client.seek(type(client.cursor)(3, 0, 0))
    harness.tell()
    state = harness.core.state.sessions[1].slots.tables[1]
    assert state.state[job.slot].value == "ending"
    harness.finish()
    assert state.state[job.slot].value != "ending"


def test_a_dead_worker_is_replaced_at_once_under_a_new_number() -> None:
    harness = one_session(workers=2)
    assert harness.die(1, row=0)[0] == StartWorker(3, 0.0)


def test_workers_that_all_keep_dying_end_their_stream_and_no_other() -> None:
    harness = SchedulerHarness(workers=2, streams=("train", "val"))
    harness.attach(1)
    harness.finish()
    harness.attach(2, stream="val")
    for _ in range(40):
        if harness.of(StreamBroken):
            break
        worker = next(w for w in harness.sent if harness.sent[w])
        harness.die(worker, row=0, key="k17")
    (broken,) = harness.of(StreamBroken)
    assert isinstance(broken, StreamBroken)
    assert (broken.stream, broken.error) == ("val", "StreamFailedError")
    # five of them convicted a row, together with the one before
    assert "15 workers died" in broken.text
    assert "SIGSEGV at sample 'k17'" in broken.text
    assert Failure in {type(m) for m in harness.inbox[2]}
    assert Failure not in {type(m) for m in harness.inbox[1]}
    for _ in range(6):
        harness.take(1)


@pytest.mark.parametrize("sessions", [1, 2, 3])
def test_a_stream_bears_as_many_deaths_for_each_of_its_trainers(sessions: int) -> None:
    harness = SchedulerHarness(workers=2)
    for session in range(1, sessions + 1):
        harness.attach(session)
    deaths = 0
    while not harness.of(StreamBroken):
        harness.die(next(w for w in harness.sent if harness.sent[w]), stage=Stage.IDLE)
        deaths += 1
    assert deaths == 10 * sessions


def test_deaths_of_several_trainers_do_not_end_the_stream_of_the_one_that_stays() -> None:
    harness = SchedulerHarness(workers=2)
    for session in (1, 2, 3):
        harness.attach(session)
    for _ in range(15):
        harness.die(next(w for w in harness.sent if harness.sent[w]), stage=Stage.IDLE)
    harness.detach(1)
    harness.detach(2)
    harness.die(next(w for w in harness.sent if harness.sent[w]), stage=Stage.IDLE)
    assert not harness.of(StreamBroken)
    assert isinstance(harness.take(3), Descriptor)
    deaths = 0
    while not harness.of(StreamBroken):  # a row was finished: it bears what one trainer's does
        harness.die(next(w for w in harness.sent if harness.sent[w]), stage=Stage.IDLE)
        deaths += 1
    assert deaths == 10


def test_trainers_that_come_again_and_again_do_not_keep_alive_what_kills_all_workers() -> None:
    harness = SchedulerHarness(workers=2)
    deaths = 0
    for session in range(1, 200):
        harness.attach(session)
        if session > 2:
            harness.detach(session - 2)
        if harness.of(StreamBroken):
            break
        harness.die(next(w for w in harness.sent if harness.sent[w]), stage=Stage.IDLE)
        deaths += 1
    assert deaths == 30  # there were never more than three at a time


def test_a_death_is_charged_to_the_stream_of_the_job_that_it_happened_in() -> None:
    harness = SchedulerHarness(workers=1, streams=("train", "val"))
    harness.attach(1, prefetch=2)
    harness.finish()
    harness.attach(2, stream="val", prefetch=1)
    harness.take(1)
    first, second = harness.sent[1]
    assert (first.stream, second.stream) == ("val", "train")
    seen = WorkerObservation(1, stamp(second.job, second.first, Stage.READ), "", False, 0)
    del harness.sent[1]
    harness.step(WorkerDied(1, True, "SIGSEGV", seen, "", ""))
    assert (harness.core.state.streams["train"].died, harness.core.state.streams["val"].died) == (
        1,
        0,
    )


def test_workers_killed_from_outside_do_not_end_a_stream_for_a_long_time() -> None:
    harness = SchedulerHarness(workers=2, collated=True)
    harness.attach(prefetch=1)
    kills = 0
    while not harness.of(StreamBroken) and kills < 200:
        harness.die(
            next(w for w in harness.sent if harness.sent[w]),
            stage=Stage.IDLE,
            own=False,
            cause="SIGKILL",
        )
        kills += 1
    assert kills == 80  # eight for each death of their own doing
    assert "80 workers died" in str(harness.of(StreamBroken))


def test_rows_that_are_finished_in_between_keep_the_stream_alive() -> None:
    harness = SchedulerHarness(workers=1)
    harness.attach(prefetch=1)
    for _ in range(30):
        harness.die(next(w for w in harness.sent if harness.sent[w]), stage=Stage.IDLE, own=False)
        harness.take()
    assert not harness.of(StreamBroken)


def test_a_worker_that_cannot_boot_is_told_before_any_was_ready_and_not_later() -> None:
    harness = SchedulerHarness(workers=1, ready=False)
    harness.die(1, stage=Stage.IDLE, cause="exit code 3", boot="ImportError: no torch", ready=False)
    assert harness.of(CannotBoot) == [CannotBoot("ImportError: no torch")]
    harness.step(WorkerReady(2))
    harness.log.clear()
    harness.attach()
    harness.die(2, stage=Stage.IDLE, own=False, ready=False)
    for worker in range(3, 20):
        if harness.of(StreamBroken):
            break
        harness.die(
            worker, stage=Stage.IDLE, cause="exit code 3", boot="ImportError: no torch", ready=False
        )
    assert not harness.of(CannotBoot)
    (broken,) = harness.of(StreamBroken)
    assert "ImportError: no torch" in str(broken)


def test_a_death_of_nobody_is_refused() -> None:
    harness = SchedulerHarness()
    with pytest.raises(ValueError, match="WorkerDied of worker 99"):
        harness.core.step(WorkerDied(99, True, "x", harness.seen(1), "", ""), 200.0)


def test_the_delivered_batches_are_those_of_the_undisturbed_run() -> None:
    def run(disturbed: bool) -> list[tuple[int, ...]]:
        harness = SchedulerHarness(workers=3)
        harness.attach()
        got: list[tuple[int, ...]] = []
        for n in range(30):
            busy = [w for w in harness.sent if harness.sent[w]]
            if disturbed and busy:
                harness.die(
                    busy[n % len(busy)],
                    own=False,
                    stage=[Stage.READ, Stage.IDLE, Stage.WRITE, Stage.OPEN][n % 4],
                )
            batch: Descriptor = harness.take()
            got.append((batch.k, batch.epoch, batch.start, batch.rows, batch.filled))
        return got

    assert run(True) == run(False)


def test_data_that_changes_ends_the_stream_and_nothing_of_the_job_is_delivered() -> None:
    harness = SchedulerHarness(streams=("train", "val"))
    harness.make = lambda job: done(
        job,
        changed="train.mdb: 10 entries, now 11" if job.stream == "train" and job.start == 8 else "",
    )
    harness.attach(1)
    harness.attach(2, stream="val")
    harness.finish()
    (broken,) = harness.of(StreamBroken)
    assert (broken.stream, broken.error, broken.text) == (
        "train",
        "StreamChangedError",
        f"train.mdb: 10 entries, now 11; {WAY_ON}",
    )
    told = list(harness.inbox[1])
    assert all(not isinstance(m, Descriptor) or m.start != 8 for m in told)
    assert isinstance(told[-1], Failure)
    harness.take(2)
    harness.inbox[1].clear()
    harness.tell(1, ping=True)
    assert Failure in {type(m) for m in harness.inbox[1]}
    late = harness.attach(3)
    assert isinstance(late, ClientProtocol)
    assert Failure in {type(m) for m in harness.inbox[3]}
