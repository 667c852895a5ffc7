"""Attach to detach: order, window, fairness, the sizes of jobs, segments, draining."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderd.core.actions import Drop, Grow, Note, StreamBroken
from loaderd.core.events import Attach, Detach, Drain, Grown, NotGrown, Opened, Told, WorkerDone
from loaderd.core.streams import StreamRules
from loaderd_testing.scheduler_harness import SHAPE, House, done, segment
from loaderd_wire.messages import Batch, Failure, Pulse
from loaderd_wire.slices import LAST_EPOCH, Cursor, Shape, steps


def test_batches_come_in_order_over_the_end_of_an_epoch() -> None:
    house = House()
    house.attach()
    plan = steps(house.clients[1].shape, Cursor(0, 0, 0))
    for _ in range(20):
        batch = house.take()
        _, cut = next(plan)
        assert (batch.epoch, batch.start, batch.rows) == (cut.epoch, cut.start, cut.rows)
        assert batch.filled == 8
        assert not batch.failed


def test_nothing_is_made_before_the_client_has_told_its_plan() -> None:
    house = House()
    house.attach(tell=False)
    assert house.jobs() == []
    house.tell()
    assert house.jobs()


def test_a_trainer_that_takes_nothing_gets_prefetch_batches_and_no_more() -> None:
    house = House()
    house.attach(prefetch=3)
    house.finish()
    assert [m.k for m in house.inbox[1] if isinstance(m, Batch)] == [0, 1, 2]
    assert house.core.next_look_s(house.now_s) is None


def test_a_trainer_that_keeps_every_batch_stops_its_own_supply_and_no_other() -> None:
    house = House()
    house.attach(1, prefetch=2)
    house.attach(2, prefetch=2)
    kept = [house.take(1, keep=True) for _ in range(4)]
    house.finish()
    house.hear(1)
    assert house.clients[1].take() is None
    assert house.clients[1].free_slots() == 0
    for _ in range(10):
        house.take(2)
    picture = next(s for s in house.core.picture()["sessions"] if s["session"] == 1)
    assert picture["story"] == "batch 4 (epoch 0, step 4) has no slot: all slots are in the trainer's hands (4 of 4)"
    house.clients[1].release(kept[0].segment, kept[0].slot, kept[0].generation)
    house.tell(1)
    assert house.take(1).k == 4


def test_announcements_come_in_order_whatever_the_order_of_the_work() -> None:
    house = House(workers=4)
    house.attach(prefetch=4)
    for _ in range(40):
        newest = max(house.jobs(), key=lambda job: job.job, default=None)
        if newest is None:
            break
        worker = house.holder(newest)
        house.step(WorkerDone(worker, done(house.sent[worker].popleft())))
    assert [m.k for m in house.inbox[1] if isinstance(m, Batch)] == [0, 1, 2, 3]


# how a batch is cut


# leases and messages


def test_a_stream_opened_late_is_served_like_any_other() -> None:
    house = House()
    with pytest.raises(ValueError, match="can't attach"):
        house.core.step(Attach(9, "late", SHAPE, 0, 4, segment()), 0.0)
    assert house.step(Opened(StreamRules("late", "raise", False, 64))) == []
    house.attach(stream="late")
    with pytest.raises(ValueError, match="stream 'late' has sessions of what it was"):
        house.core.step(Opened(StreamRules("late", "raise", False, 64)), 0.0)
    assert [house.take().k for _ in range(5)] == list(range(5))
    assert house.core.picture()["streams"]["late"]["sessions"] == [1]


def test_a_stream_whose_data_changed_is_opened_anew_when_no_session_of_it_is_left() -> None:
    house = House(workers=2)
    rules = StreamRules("train", "raise", False, 64)
    house.attach(1)
    one, other = house.sent  # workers
    first, second = (house.sent[worker].popleft() for worker in (one, other))
    house.step(WorkerDone(one, done(first, changed="train.mdb: other values")))
    with pytest.raises(ValueError, match="stream 'train' has sessions of what it was"):
        house.core.step(Opened(rules), house.now_s)
    house.step(Detach(1))
    house.step(Opened(rules))
    house.attach(2)
    house.step(WorkerDone(other, done(second, changed="train.mdb: other values")))  # of the session that has left: of the past
    assert len(house.of(StreamBroken)) == 1
    assert [house.take(2).k for _ in range(5)] == list(range(5))


def test_an_older_progress_changes_nothing() -> None:
    house = House()
    client = house.attach()
    old = client.progress()
    house.take()
    before = house.core.picture()["sessions"]
    assert house.step(Told(1, old)) == []
    assert house.core.picture()["sessions"] == before


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"taken": 3}, "3 batches taken of plan 1, of which 2 were announced"),
        ({"taken": 0}, "0 batches taken of plan 1 after 1"),
    ],
)
def test_a_forged_progress_is_noted_and_harms_nobody(change: dict[str, object], text: str) -> None:
    house = House()
    house.attach(prefetch=1)
    house.take()
    house.finish()
    session = house.core.state.sessions[1]
    p = house.clients[1].progress()
    forged = type(p)(**{name: getattr(p, name) for name in p.__slots__} | change)
    actions = house.step(Told(1, forged))
    assert [type(a) for a in actions] == [Note]
    assert text in str(actions)
    assert (session.plan, session.taken) == (1, 1)
    for k in range(1, 12):
        assert house.take().k == k


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"plan": 0}, "plan 0, plans count from 1"),
        ({"plan": 2, "position": 65}, "position 65 of an epoch of 64 samples"),
        ({"plan": 2, "position": 1 << 62}, f"position {1 << 62} of an epoch of 64 samples"),
        ({"position": 65}, "position 65 of an epoch of 64 samples"),
        ({"plan": 2, "epoch": LAST_EPOCH + 1}, f"epoch {LAST_EPOCH + 1}, the last one is {LAST_EPOCH}"),
        ({"plan": 9, "taken": 5}, "5 batches taken of plan 9, of which none was announced"),
    ],
)
def test_a_progress_that_no_client_sends_ends_its_session_with_an_error_and_no_other(change: dict[str, int], text: str) -> None:
    house = House()
    house.attach(1)
    house.attach(2)
    house.finish()
    house.step(Told(1, replace(house.clients[1].progress(ping=True), **change)))
    failure = house.inbox[1][-1]
    assert failure == Failure(1, "ProtocolError", f"the client asked for the impossible: {text}")
    assert [type(house.take(2)) for _ in range(20)] == [Batch] * 20
    house.inbox[1].clear()
    house.tell(1, ping=True)
    assert failure in house.inbox[1]


def test_the_last_position_of_an_epoch_is_none_too_many() -> None:
    house = House()
    house.attach(cursor=Cursor(0, SHAPE.samples, 8))
    assert (house.take().epoch, house.take().start) == (1, SHAPE.batch_size)


def test_a_progress_of_a_session_that_is_gone_is_passed_over() -> None:
    house = House()
    client = house.attach()
    progress = client.progress()
    house.detach()
    assert house.step(Told(1, progress)) == []
    assert house.step(Told(99, progress)) == []


def test_a_ping_is_answered_with_the_turn_and_what_is_waited_for() -> None:
    house = House()
    house.attach()
    house.tell(ping=True)
    (pulse,) = [m for m in house.inbox[1] if isinstance(m, Pulse)]
    assert pulse.turns == house.core.state.turns
    assert pulse.made == 0
    assert pulse.story.startswith("batch 0 (epoch 0, step 0) waits for rows 0-7: worker 1")
    house.finish()
    house.inbox[1].clear()
    house.tell(ping=True)
    (pulse,) = [m for m in house.inbox[1] if isinstance(m, Pulse)]
    assert (pulse.made, pulse.story, pulse.detail) == (4, "", "")


# the end of a session


def test_a_detached_session_keeps_its_segment_until_its_jobs_have_ended() -> None:
    house = House(workers=2)
    house.attach()
    house.take(keep=True)
    running = len(house.jobs())
    assert running
    assert house.detach() == []
    for _ in range(running - 1):
        house.work(next(w for w in house.sent if house.sent[w]))
        assert not house.of(Drop)
    house.finish()
    assert house.of(Drop) == [Drop(1, 1)]
    assert house.core.state.leaving == {}
    house.attach(2)
    house.take(2)


def test_a_detached_session_without_jobs_drops_its_segment_at_once() -> None:
    house = House()
    house.attach()
    house.finish()
    assert house.detach() == [Drop(1, 1)]


def test_a_drain_ends_all_making_and_leaves_announced_batches_alone() -> None:
    house = House()
    client = house.attach()
    while not any(isinstance(m, Batch) for m in house.inbox[1]):
        house.work()
    house.step(Drain())
    house.finish()
    house.hear()
    batch = client.take()
    assert batch is not None
    house.tell(ping=True)
    assert house.jobs() == []
    assert "the daemon drains" in str(house.inbox[1])


@pytest.mark.parametrize("event", [Detach(5), Attach(2, "nope", SHAPE, 0, 4, segment()), Attach(1, "train", SHAPE, 0, 4, segment())])
def test_an_impossible_event_is_an_error_that_says_what_stands_against_it(event: Attach | Detach) -> None:
    house = House()
    house.attach()
    with pytest.raises(ValueError, match=r"can't (de|at)tach"):
        house.core.step(event, 200.0)


def test_an_epoch_without_a_step_is_refused() -> None:
    house = House()
    with pytest.raises(ValueError, match="can't be served"):
        house.core.step(Attach(1, "train", Shape(4, 8, 0, 1, True), 0, 4, segment()), 200.0)


# larger segments


def test_a_session_that_attaches_to_a_draining_daemon_is_served_nothing() -> None:
    house = House()
    house.step(Drain())
    house.attach()
    house.tell(ping=True, waiting=True)
    assert not house.jobs()
    assert house.inbox[1][-1].story == "the daemon drains"
    house.detach()
    assert not house.core.state.sessions


def test_a_segment_that_cannot_grow_ends_its_session_with_the_reason() -> None:
    house = House()
    house.make = lambda job: done(job, needs_body=1 << 20)
    house.attach(1)
    house.attach(2)
    house.work()
    assert [a.session for a in house.log if isinstance(a, Grow)] == [1]
    house.step(NotGrown(1, "needs 6 MB, 1 MB is left"))
    assert house.inbox[1][-1] == Failure(1, "StreamFailed", "needs 6 MB, 1 MB is left")
    assert 2 in house.core.state.sessions
    assert not house.core.state.sessions[2].ended


def test_a_segment_that_comes_after_its_session_has_left_is_dropped() -> None:
    house = House()
    house.make = lambda job: done(job, needs_tail=500)
    house.attach()
    house.work()
    house.detach()
    house.segments[1, 2] = segment(2)
    assert house.step(Grown(1, segment(2))) == [Drop(1, 2)]
    house.finish()


# policies that a worker reports
