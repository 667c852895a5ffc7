"""The state of the scheduler as plain data."""

from __future__ import annotations

import json
from dataclasses import asdict

from loaderd.core.jobs import Stage
from loaderd.core.snapshot import SessionSnapshot, WorkerSnapshot
from loaderd.core.verdict import Verdict
from loaderd_testing.scheduler_harness import SchedulerHarness, bad_row, done


def test_a_snapshot_is_plain_data_at_any_time() -> None:
    harness = SchedulerHarness(workers=2, on_error="skip")
    harness.make = lambda job: done(job, (bad_row(job.first),))
    harness.attach(1)
    harness.attach(2)
    for _ in range(5):
        harness.take(1)
        harness.look(*(harness.seen(w, stage=Stage.WRITE) for w in harness.sent))
        snapshot = harness.core.snapshot()
        json.dumps(asdict(snapshot))
        assert {s.session for s in snapshot.sessions} == {1, 2}
        assert len(snapshot.workers) == 2
    assert harness.core.snapshot().streams["train"].sessions == (1, 2)


def test_a_snapshot_tells_of_each_session_and_worker_what_it_is_at() -> None:
    harness = SchedulerHarness(workers=1)
    harness.attach(prefetch=2)
    harness.work()
    harness.look(harness.seen(1, 3, Stage.DECODE, key="cat.jpg"), after_s=1.5)
    made = harness.core.snapshot()
    assert (made.draining, made.jobs, made.turns) == (False, 1, 5)
    assert made.sessions[0] == SessionSnapshot(
        session=1,
        plan=1,
        taken=0,
        made=1,
        announced=1,
        waiting=False,
        epoch=0,
        position=0,
        step=0,
        slots={"free": 2, "filling": 1, "ready": 0, "announced": 1, "leased": 0, "ending": 0},
        segments=(1,),
        story="",
        verdict=Verdict("starting", "starting: too little has been measured yet"),
        epoch_steps=8,
    )
    assert made.workers[0] == WorkerSnapshot(
        worker=1,
        state="up",
        jobs=(2,),
        stream="train",
        row=3,
        stage="decode",
        key="cat.jpg",
        seconds=0.0,
        doing="",
        stack="",
    )
    assert made.streams["train"].sessions == (1,)


def test_the_latest_batch_of_a_session_is_the_one_it_was_told_of_last_and_still_has() -> None:
    harness = SchedulerHarness(workers=1)
    harness.attach(prefetch=2)
    assert harness.core.latest_batches() == {}
    harness.finish()
    told = harness.take(keep=True)
    harness.finish()
    message, segment = harness.core.latest_batches()[1]
    assert (message.k, segment.segment) == (2, message.segment)  # it is told of two ahead
    assert told.k == 0
    harness.detach()
    assert harness.core.latest_batches() == {}


def test_the_latest_batch_of_each_session_of_a_group_is_its_own() -> None:
    harness = SchedulerHarness(workers=1)
    for session in (1, 2):
        harness.attach(session, prefetch=2, group=9)
    harness.finish()
    harness.take(2)
    harness.finish()
    latest = harness.core.latest_batches()
    assert [latest[session][0].k for session in (1, 2)] == [1, 2]
    assert {segment.segment for _, segment in latest.values()} == {1}
    harness.detach(1)
    assert list(harness.core.latest_batches()) == [2]
