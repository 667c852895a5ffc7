"""Attach to detach: order, window, fairness, the sizes of jobs, segments, draining."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.house import SHAPE, House, bad_row, done, segment
from loaderd.core.actions import Drop, Grow, Note, Quarantine, Send, StreamBroken, Tell
from loaderd.core.drafts import cap
from loaderd.core.events import Attach, Detach, Drain, Grown, NotGrown, Opened, Told, WorkerDone, WorkerReady
from loaderd.core.jobs import Done, Job, Kind
from loaderd.core.streams import StreamRules
from loaderd.core.supervision import WAY_ON
from loaderd_client.session import ClientSession
from loaderd_wire.codec import MAX_MESSAGE, WIRE
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


def test_the_first_batch_is_cut_for_all_workers_while_nothing_is_measured() -> None:
    house = House(workers=4)
    house.attach()
    assert [(j.first, j.last, j.start) for j in house.jobs()[:4]] == [(0, 2, 0), (2, 4, 0), (4, 6, 0), (6, 8, 0)]


def test_jobs_of_cheap_rows_are_not_cut_below_20_ms_except_for_the_batch_that_is_waited_for() -> None:
    house = House(workers=4)
    house.make = lambda job: done(job, seconds=0.001 * (job.last - job.first))
    house.attach(prefetch=2)
    house.finish()
    house.log.clear()
    house.take()
    assert [(a.job.first, a.job.last) for a in house.log if isinstance(a, Send)] == [(0, 8)]
    house.finish()
    house.log.clear()
    house.clients[1].seek(Cursor(5, 0, 0))
    house.tell()
    first = [a.job for a in house.log if isinstance(a, Send) and a.job.start == 0]
    assert [(j.first, j.last) for j in first] == [(0, 2), (2, 4), (4, 6), (6, 8)]


def test_jobs_of_dear_rows_go_to_every_worker() -> None:
    house = House(workers=4)
    house.make = lambda job: done(job, seconds=0.1 * (job.last - job.first))
    house.attach(prefetch=2)
    house.finish()
    house.log.clear()
    house.take()
    assert len([a for a in house.log if isinstance(a, Send) and a.job.start == 16]) == 4


def test_a_collated_batch_is_one_job() -> None:
    house = House(workers=2, collated=True)
    house.attach(prefetch=2)
    assert [(j.kind, j.first, j.last) for j in house.jobs()] == [(Kind.BATCH, 0, 8), (Kind.BATCH, 0, 8)]
    assert len({house.holder(j) for j in house.jobs()}) == 2


def test_the_batch_that_is_waited_for_never_stands_behind_another_job() -> None:
    house = House(workers=2)
    house.attach(1, prefetch=4)
    house.attach(2, prefetch=1)
    # Both workers have work of session 1; the piece of session 2 waits for a worker that has none.
    assert all(job.slot is not None for job in house.jobs())
    behind: set[Job] = set()
    for _ in range(50):
        behind.update(job for jobs in house.sent.values() for job in list(jobs)[1:])
        assert not [job for job in behind if job.job in house.core.state.jobs and _urgent(house, job)]
        busy = [w for w in house.sent if house.sent[w]]
        if not busy:
            break
        house.work(busy[0])
    assert behind, "no job ever stood behind another: there was nothing to be told apart"
    house.hear(2)
    assert house.clients[2].take() is not None


def _urgent(house: House, job: Job) -> bool:
    running = house.core.state.jobs[job.job]
    return running.session.session == 2


def test_the_session_with_the_fewest_batches_ahead_is_served_first() -> None:
    house = House(workers=1, ready=False)
    for session in (1, 2, 3):
        house.attach(session, prefetch=4)
    house.step(WorkerReady(1))
    house.finish()
    order = [(a.session, a.message.k) for a in house.log if isinstance(a, Tell) and isinstance(a.message, Batch)]
    ahead = [k for _, k in order]
    assert ahead == sorted(ahead)
    assert len(order) == 12


# leases and messages


def test_a_release_with_an_old_generation_frees_nothing() -> None:
    house = House()
    client = house.attach(prefetch=1)
    first = house.take()
    while (second := house.take(keep=True)).slot != first.slot:
        client.release(second.segment, second.slot, second.generation)
    client.release(first.segment, first.slot, first.generation)
    house.tell()
    ring = house.core.state.sessions[1].rings[1]
    assert ring.state[second.slot].value == "leased"


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


def test_a_batch_of_the_window_that_was_not_announced_cannot_be_taken() -> None:
    house = House()
    house.attach(prefetch=2)
    p = house.clients[1].progress()
    forged = type(p)(**{name: getattr(p, name) for name in p.__slots__} | {"taken": 1})
    (note,) = house.step(Told(1, forged))
    assert "1 batches taken of plan 1, of which 0 were announced" in str(note)
    assert [house.take().k for _ in range(3)] == [0, 1, 2]


def test_generations_that_were_never_given_out_are_noted_once_a_second() -> None:
    house = House()
    house.attach()
    house.finish()
    p = house.clients[1].progress()
    notes = 0
    for seq in range(10, 30):
        mad = type(p.released[0])(1, (1 << 40,) * 6, (1 << 40,) * 6)
        forged = type(p)(**{name: getattr(p, name) for name in p.__slots__} | {"seq": seq, "released": (mad, type(mad)(7, (1,), (1,)))})
        notes += sum(isinstance(a, Note) for a in house.step(Told(1, forged), after_s=0.1))
    assert notes == 2
    assert len(house.core.state.sessions[1].given) == 4


def test_a_progress_of_a_session_that_is_gone_is_passed_over() -> None:
    house = House()
    client = house.attach()
    progress = client.progress()
    house.detach()
    assert house.step(Told(1, progress)) == []
    assert house.step(Told(99, progress)) == []


def test_lost_descriptors_come_again_when_asked_for() -> None:
    house = House()
    house.attach()
    house.finish()
    house.inbox[1].clear()
    house.tell(again=True)
    assert [m.k for m in house.inbox[1] if isinstance(m, Batch)] == [0, 1, 2, 3]
    house.hear()
    house.tell(again=True)
    assert not house.inbox[1]


def test_an_announced_batch_that_is_given_back_unread_is_made_again() -> None:
    house = House()
    client = house.attach()
    house.finish()
    lost = house.inbox[1].popleft()
    assert isinstance(lost, Batch)
    p = client.progress()
    slots = tuple(int(slot == lost.slot) for slot in range(6))
    house.step(Told(1, type(p)(**{name: getattr(p, name) for name in p.__slots__} | {"released": (type(p.released[0])(1, slots, slots),)})))
    client._seq += 1
    house.finish()
    again = [m for m in house.inbox[1] if isinstance(m, Batch) and m.k == 0]
    assert [m.generation for m in again] == [2]


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


def test_a_batch_too_large_for_its_slot_is_made_in_a_larger_segment() -> None:
    house = House()
    house.make = lambda job: done(job, needs_tail=500) if job.segment == 1 and job.start == 8 else done(job, size=10)
    house.attach()
    house.finish()
    (grow,) = house.of(Grow)
    assert isinstance(grow, Grow)
    assert grow.slots == 6
    assert grow.tail_row_bytes >= 500
    house.tell(ping=True)
    assert house.take().segment == 1
    house.tell(ping=True)
    assert "waiting for a larger segment" in str(house.inbox[1])
    house.grow()
    places = [house.take() for _ in range(12)]
    assert [b.segment for b in places[:1]] == [2]
    assert {b.segment for b in places[4:]} == {2}
    assert house.of(Drop) == [Drop(1, 1)]
    assert not [a for a in house.log if isinstance(a, Grow)]


@pytest.mark.parametrize("needs", [{"needs_body": 5000}, {"needs_tail": 500}])
def test_a_segment_that_grows_in_one_way_keeps_what_it_has_of_the_other(needs: dict[str, int]) -> None:
    house = House()
    house.make = lambda job: done(job, **needs)
    house.attach(tell=False)
    house.core.state.sessions[1].rings[1].segment = segment(1, 6, tail=64, body=800)
    house.tell()
    house.finish()
    (grow,) = house.of(Grow)
    assert isinstance(grow, Grow)
    assert (grow.body_bytes >= 5000, grow.tail_row_bytes >= 500) == ("needs_body" in needs, "needs_tail" in needs)
    assert grow.body_bytes >= 800
    assert grow.tail_row_bytes >= 64


def test_a_larger_segment_that_is_too_small_by_the_time_it_comes_is_followed_by_another() -> None:
    house = House()
    needs = {0: 100, 8: 900}
    house.make = lambda job: (
        done(job, needs_tail=needs[job.start]) if job.segment < 4 - job.start // 8 and job.start in needs else done(job)
    )
    house.attach()
    house.finish()
    for _ in range(3):
        house.grow()
        house.finish()
    assert [house.take().start for _ in range(3)] == [0, 8, 16]


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


def test_a_bad_row_under_raise_fails_its_batch_in_its_turn() -> None:
    house = House()
    house.make = lambda job: done(job, (bad_row(job.first),) if job.start == 8 and job.first == 0 else ())
    house.attach()
    first, second, third = house.take(), house.take(), house.take()
    assert (first.failed, third.failed) == (False, False)
    assert second.failed
    assert second.filled == 0
    assert second.chunks == ()
    assert [b.key for b in second.bad] == ["key0"]
    assert [type(a) for a in house.log if isinstance(a, Quarantine)] == [Quarantine]


def test_a_lost_row_under_skip_is_closed_up_by_one_more_job() -> None:
    house = House(on_error="skip", workers=2)
    house.make = lambda job: done(job, (bad_row(2),) if job.kind == Kind.FILL and job.first <= 2 < job.last else (), size=20)
    house.attach(prefetch=1)
    house.work()
    assert [(j.kind, j.lost) for j in house.jobs()] == [(Kind.COMPACT, (2,))]
    house.work()
    house.hear()
    batch = house.clients[1].take()
    assert batch is not None
    assert batch.filled == 7
    assert not batch.failed
    assert [(c.first, c.last) for c in batch.chunks] == [(0, 3), (3, 7)]


def test_lost_rows_at_the_end_of_a_batch_need_no_closing_up() -> None:
    house = House(on_error="skip", workers=1)
    house.make = lambda job: done(job, (bad_row(6), bad_row(7)))
    house.attach()
    batch = house.take()
    assert batch.filled == 6
    assert not [a for a in house.log if isinstance(a, Send) and a.job.kind == Kind.COMPACT]


@pytest.mark.parametrize("collated", [False, True])
def test_a_batch_that_lost_all_its_rows_under_skip_is_announced_without_rows(collated: bool) -> None:
    house = House(on_error="skip", collated=collated)

    def make(job: Job) -> Done:
        bad = tuple(bad_row(row) for row in range(job.first, job.last)) if job.start == 0 else ()
        return done(job, bad, size=0 if collated and bad else 24)

    house.make = make
    house.attach()
    batch = house.take()
    assert (batch.failed, batch.rows, batch.filled, batch.chunks) == (False, 8, 0, ())
    assert len(batch.bad) == 8
    assert not house.jobs(Kind.COMPACT)
    assert house.take().filled == 8


def test_a_batch_whose_samples_all_kill_their_worker_is_announced_without_rows() -> None:
    house = House(workers=1, on_error="skip")
    house.attach(shape=Shape(64, 2, 0, 1, True), prefetch=1)
    for _ in range(20):
        worker = max(house.sent)
        if not house.sent[worker] or house.sent[worker][0].start:
            break
        house.die(worker, house.sent[worker][0].first)
    batch = house.take()
    assert (batch.failed, batch.filled, [bad.index for bad in batch.bad]) == (False, 0, [0, 10])


def test_a_row_without_a_substitute_fails_its_batch_under_replace() -> None:
    house = House(on_error="replace")
    house.make = lambda job: done(job, (bad_row(job.first, lost=job.start == 8),))
    house.attach()
    assert not house.take().failed
    assert house.take().failed


def test_the_tracebacks_of_many_bad_samples_stay_below_a_messages_size() -> None:
    shape, long = Shape(1 << 14, 1 << 13, 0, 1, True), "x" * 100_000
    house = House(samples=1 << 14, workers=1)
    house.make = lambda job: done(job, tuple(bad_row(row, traceback=long) for row in range(job.first, job.last)))
    house.attach(shape=shape, prefetch=1)
    batch = house.take()
    assert batch.failed
    assert len(batch.bad) > 1000
    assert [len(b.traceback) for b in batch.bad[:17]] == [8192] * 16 + [0]
    assert len(WIRE.encode(batch)) < MAX_MESSAGE / 2


def test_data_that_changes_ends_the_stream_and_nothing_of_the_job_is_delivered() -> None:
    house = House(streams=("train", "val"))
    house.make = lambda job: done(job, changed="train.mdb: 10 entries, now 11" if job.stream == "train" and job.start == 8 else "")
    house.attach(1)
    house.attach(2, stream="val")
    house.finish()
    (broken,) = house.of(StreamBroken)
    assert (broken.stream, broken.error, broken.text) == ("train", "StreamChanged", f"train.mdb: 10 entries, now 11; {WAY_ON}")
    told = list(house.inbox[1])
    assert all(not isinstance(m, Batch) or m.start != 8 for m in told)
    assert isinstance(told[-1], Failure)
    house.take(2)
    house.inbox[1].clear()
    house.tell(1, ping=True)
    assert Failure in {type(m) for m in house.inbox[1]}
    late = house.attach(3)
    assert isinstance(late, ClientSession)
    assert Failure in {type(m) for m in house.inbox[3]}


def test_bad_samples_with_long_names_stay_below_a_messages_size() -> None:
    bad = [replace(bad_row(row).sample, key="k" * 5000) for row in range(4000)]
    assert sum(len(sample.key) for sample in cap(bad)) < MAX_MESSAGE // 4
