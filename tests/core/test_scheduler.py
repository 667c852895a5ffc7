"""Attach to detach: order, window, fairness, the sizes of jobs, segments, draining."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loaderd.core.actions import FreeSegment, GrowSegment, LogLine, StreamBroken
from loaderd.core.events import (
    Attach,
    Detach,
    Drain,
    GrowFailed,
    ProgressReceived,
    SegmentGrown,
    StreamOpened,
    WorkerDone,
)
from loaderd.core.streams import StreamRules
from loaderd_testing.scheduler_harness import SHAPE, SchedulerHarness, done, segment
from loaderd_wire.messages import Descriptor, Failure, Pulse
from loaderd_wire.slices import LAST_EPOCH, Cursor, EpochShape, steps


def test_batches_come_in_order_over_the_end_of_an_epoch() -> None:
    harness = SchedulerHarness()
    harness.attach()
    plan = steps(harness.clients[1].shape, Cursor(0, 0, 0))
    for _ in range(20):
        batch = harness.take()
        _, cut = next(plan)
        assert (batch.epoch, batch.start, batch.rows) == (cut.epoch, cut.start, cut.rows)
        assert batch.filled == 8
        assert not batch.failed


def test_nothing_is_made_before_the_client_has_told_its_plan() -> None:
    harness = SchedulerHarness()
    harness.attach(tell=False)
    assert harness.jobs() == []
    harness.tell()
    assert harness.jobs()


def test_a_trainer_that_takes_nothing_gets_prefetch_batches_and_no_more() -> None:
    harness = SchedulerHarness()
    harness.attach(prefetch=3)
    harness.finish()
    assert [m.k for m in harness.inbox[1] if isinstance(m, Descriptor)] == [0, 1, 2]
    assert harness.core.next_look_s(harness.now_s) is None


def test_a_trainer_that_keeps_every_batch_stops_its_own_supply_and_no_other() -> None:
    harness = SchedulerHarness()
    harness.attach(1, prefetch=2)
    harness.attach(2, prefetch=2)
    kept = [harness.take(1, keep=True) for _ in range(4)]
    harness.finish()
    harness.hear(1)
    assert harness.clients[1].take() is None
    assert harness.clients[1].free_slots() == 0
    for _ in range(10):
        harness.take(2)
    session = next(s for s in harness.core.snapshot().sessions if s.session == 1)
    assert session.story == "batch 4 (epoch 0, step 4) has no slot: the trainer holds all 4 slots"
    harness.clients[1].release(kept[0].segment, kept[0].slot, kept[0].generation)
    harness.tell(1)
    assert harness.take(1).k == 4


def test_announcements_come_in_order_whatever_the_order_of_the_work() -> None:
    harness = SchedulerHarness(workers=4)
    harness.attach(prefetch=4)
    for _ in range(40):
        newest = max(harness.jobs(), key=lambda job: job.job, default=None)
        if newest is None:
            break
        worker = harness.holder(newest)
        harness.step(WorkerDone(worker, done(harness.sent[worker].popleft())))
    assert [m.k for m in harness.inbox[1] if isinstance(m, Descriptor)] == [0, 1, 2, 3]


# how a batch is cut


# leases and messages


def test_a_stream_opened_late_is_served_like_any_other() -> None:
    harness = SchedulerHarness()
    with pytest.raises(ValueError, match="can't attach"):
        harness.core.step(Attach(9, "late", SHAPE, 0, 4, segment()), 0.0)
    assert harness.step(StreamOpened(StreamRules("late", "raise", False, 64))) == []
    harness.attach(stream="late")
    with pytest.raises(ValueError, match="stream 'late' has sessions of what it was"):
        harness.core.step(StreamOpened(StreamRules("late", "raise", False, 64)), 0.0)
    assert [harness.take().k for _ in range(5)] == list(range(5))
    assert harness.core.snapshot().streams["late"].sessions == (1,)


def test_a_stream_whose_data_changed_is_opened_anew_when_no_session_of_it_is_left() -> None:
    harness = SchedulerHarness(workers=2)
    rules = StreamRules("train", "raise", False, 64)
    harness.attach(1)
    one, other = harness.sent  # workers
    first, second = (harness.sent[worker].popleft() for worker in (one, other))
    harness.step(WorkerDone(one, done(first, changed="train.mdb: other values")))
    with pytest.raises(ValueError, match="stream 'train' has sessions of what it was"):
        harness.core.step(StreamOpened(rules), harness.now_s)
    harness.step(Detach(1))
    harness.step(StreamOpened(rules))
    harness.attach(2)
    # of the session that has left: of the past
    harness.step(WorkerDone(other, done(second, changed="train.mdb: other values")))
    assert len(harness.of(StreamBroken)) == 1
    assert [harness.take(2).k for _ in range(5)] == list(range(5))


def test_an_older_progress_changes_nothing() -> None:
    harness = SchedulerHarness()
    client = harness.attach()
    old = client.progress()
    harness.take()
    before = harness.core.snapshot().sessions
    assert harness.step(ProgressReceived(1, old)) == []
    assert harness.core.snapshot().sessions == before


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"taken": 3}, "3 batches taken of plan 1, of which 2 were announced"),
        ({"taken": 0}, "0 batches taken of plan 1 after 1"),
    ],
)
def test_a_forged_progress_is_noted_and_harms_nobody(change: dict[str, Any], text: str) -> None:
    harness = SchedulerHarness()
    harness.attach(prefetch=1)
    harness.take()
    harness.finish()
    session = harness.core.state.sessions[1]
    forged = replace(harness.clients[1].progress(), **change)
    actions = harness.step(ProgressReceived(1, forged))
    assert [type(a) for a in actions] == [LogLine]
    assert text in str(actions)
    assert (session.window.plan, session.window.taken) == (1, 1)
    for k in range(1, 12):
        assert harness.take().k == k


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"plan": 0}, "plan 0, plans count from 1"),
        ({"plan": 2, "position": 65}, "position 65 of an epoch of 64 samples"),
        ({"plan": 2, "position": 1 << 62}, f"position {1 << 62} of an epoch of 64 samples"),
        ({"position": 65}, "position 65 of an epoch of 64 samples"),
        (
            {"plan": 2, "epoch": LAST_EPOCH + 1},
            f"epoch {LAST_EPOCH + 1}, the last one is {LAST_EPOCH}",
        ),
        ({"plan": 9, "taken": 5}, "5 batches taken of plan 9, of which none was announced"),
    ],
)
def test_a_progress_that_no_client_sends_ends_its_session_with_an_error_and_no_other(
    change: dict[str, int], text: str
) -> None:
    harness = SchedulerHarness()
    harness.attach(1)
    harness.attach(2)
    harness.finish()
    harness.step(ProgressReceived(1, replace(harness.clients[1].progress(ping=True), **change)))
    failure = harness.inbox[1][-1]
    assert failure == Failure(1, "ProtocolError", f"the client sent an invalid request: {text}")
    assert [type(harness.take(2)) for _ in range(20)] == [Descriptor] * 20
    harness.inbox[1].clear()
    harness.tell(1, ping=True)
    assert failure in harness.inbox[1]


def test_the_last_position_of_an_epoch_is_none_too_many() -> None:
    harness = SchedulerHarness()
    harness.attach(cursor=Cursor(0, SHAPE.samples, 8))
    assert (harness.take().epoch, harness.take().start) == (1, SHAPE.batch_size)


def test_a_progress_of_a_session_that_is_gone_is_passed_over() -> None:
    harness = SchedulerHarness()
    client = harness.attach()
    progress = client.progress()
    harness.detach()
    assert harness.step(ProgressReceived(1, progress)) == []
    assert harness.step(ProgressReceived(99, progress)) == []


def test_a_ping_is_answered_with_the_turn_and_what_is_waited_for() -> None:
    harness = SchedulerHarness()
    harness.attach()
    harness.tell(ping=True)
    (pulse,) = [m for m in harness.inbox[1] if isinstance(m, Pulse)]
    assert pulse.turns == harness.core.state.turns
    assert pulse.made == 0
    assert pulse.story.startswith("batch 0 (epoch 0, step 0) waits for rows 0-7: worker 1")
    harness.finish()
    harness.inbox[1].clear()
    harness.tell(ping=True)
    (pulse,) = [m for m in harness.inbox[1] if isinstance(m, Pulse)]
    assert (pulse.made, pulse.story, pulse.detail) == (4, "", "")


# the end of a session


def test_a_detached_session_keeps_its_segment_until_its_jobs_have_ended() -> None:
    harness = SchedulerHarness(workers=2)
    harness.attach()
    harness.take(keep=True)
    running = len(harness.jobs())
    assert running
    assert harness.detach() == []
    for _ in range(running - 1):
        harness.work(next(w for w in harness.sent if harness.sent[w]))
        assert not harness.of(FreeSegment)
    harness.finish()
    assert harness.of(FreeSegment) == [FreeSegment(1, 1)]
    assert harness.core.state.leaving == {}
    harness.attach(2)
    harness.take(2)


def test_a_detached_session_without_jobs_drops_its_segment_at_once() -> None:
    harness = SchedulerHarness()
    harness.attach()
    harness.finish()
    assert harness.detach() == [FreeSegment(1, 1)]


def test_a_drain_ends_all_making_and_leaves_announced_batches_alone() -> None:
    harness = SchedulerHarness()
    client = harness.attach()
    while not any(isinstance(m, Descriptor) for m in harness.inbox[1]):
        harness.work()
    harness.step(Drain())
    harness.finish()
    harness.hear()
    batch = client.take()
    assert batch is not None
    harness.tell(ping=True)
    assert harness.jobs() == []
    assert "the daemon is draining" in str(harness.inbox[1])


@pytest.mark.parametrize(
    "event",
    [
        Detach(5),
        Attach(2, "nope", SHAPE, 0, 4, segment()),
        Attach(1, "train", SHAPE, 0, 4, segment()),
    ],
)
def test_an_impossible_event_is_an_error_that_says_what_stands_against_it(
    event: Attach | Detach,
) -> None:
    harness = SchedulerHarness()
    harness.attach()
    with pytest.raises(ValueError, match=r"can't (de|at)tach"):
        harness.core.step(event, 200.0)


def test_an_epoch_without_a_step_is_refused() -> None:
    harness = SchedulerHarness()
    with pytest.raises(ValueError, match="can't be served"):
        harness.core.step(Attach(1, "train", EpochShape(4, 8, 0, 1, True), 0, 4, segment()), 200.0)


# larger segments


def test_a_session_that_attaches_to_a_draining_daemon_is_served_nothing() -> None:
    harness = SchedulerHarness()
    harness.step(Drain())
    harness.attach()
    harness.tell(ping=True, waiting=True)
    assert not harness.jobs()
    told = harness.inbox[1][-1]
    assert isinstance(told, Pulse)
    assert told.story == "the daemon is draining"
    harness.detach()
    assert not harness.core.state.sessions


def test_a_segment_that_cannot_grow_ends_its_session_with_the_reason() -> None:
    harness = SchedulerHarness()
    harness.make = lambda job: done(job, needs_body=1 << 20)
    harness.attach(1)
    harness.attach(2)
    harness.work()
    assert [a.session for a in harness.log if isinstance(a, GrowSegment)] == [1]
    harness.step(GrowFailed(1, "needs 6 MB, 1 MB is left"))
    assert harness.inbox[1][-1] == Failure(1, "StreamFailedError", "needs 6 MB, 1 MB is left")
    assert 2 in harness.core.state.sessions
    assert not harness.core.state.sessions[2].ended


def test_a_segment_that_comes_after_its_session_has_left_is_dropped() -> None:
    harness = SchedulerHarness()
    harness.make = lambda job: done(job, needs_tail=500)
    harness.attach()
    harness.work()
    harness.detach()
    harness.segments[1, 2] = segment(2)
    assert harness.step(SegmentGrown(1, segment(2))) == [FreeSegment(1, 2)]
    harness.finish()


# policies that a worker reports
