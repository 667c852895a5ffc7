"""Sessions that share their batches: what is made once, what is made anew, and who waits."""

from __future__ import annotations

import random

import pytest

from loaderd.core.actions import FreeSegment, GrowSegment, SendJob
from loaderd.core.events import Attach, Drain, GrowFailed
from loaderd.core.groups import GROW_AGAIN_S
from loaderd.core.shared_slots import MOST_TOLD
from loaderd.core.slots import SlotState
from loaderd_testing.scheduler_harness import SchedulerHarness, bad_row, done
from loaderd_wire.messages import Descriptor, Failure
from loaderd_wire.slices import Cursor, EpochShape, Slice, slice_at, steps

GROUP = 99
LONG = EpochShape(samples=8 * 200, batch_size=8, rank=0, world_size=1, drop_last=True)


def pair(*, share_window: int = 8, prefetch: int = 4) -> SchedulerHarness:
    harness = SchedulerHarness(workers=2, samples=8 * 200)
    for session in (1, 2):
        harness.attach(
            session, group=GROUP, shape=LONG, prefetch=prefetch, share_window=share_window
        )
    return harness


def made(harness: SchedulerHarness) -> list[tuple[int, int]]:
    """(epoch, start) of the batches whose making was begun, in order, each as often as it was."""
    jobs = [action.job for action in harness.of(SendJob)]
    return [(job.epoch, job.start) for job in jobs if job.first == 0]


def starts(batches: list[Descriptor]) -> list[int]:
    return [batch.start for batch in batches]


def test_two_that_go_in_step_get_the_same_batches_and_each_is_made_once() -> None:
    harness = pair()
    got: dict[int, list[Descriptor]] = {1: [], 2: []}
    for _ in range(30):
        for session, batches in got.items():
            batches.append(harness.take(session))
    assert starts(got[1]) == starts(got[2]) == [8 * n for n in range(30)]
    assert len(made(harness)) == len(set(made(harness)))
    group = harness.core.snapshot().groups[0]
    assert (group.told - group.hits, group.hits) == (group.made, group.told - group.made)
    assert group.sessions == (1, 2)


def test_both_are_told_of_the_same_slot_and_each_in_its_own_numbers() -> None:
    harness = pair()
    harness.clients[2].seek(Cursor(0, 8, 1))
    harness.tell(2)
    harness.finish()
    first, second = harness.take(1), harness.take(1)
    other = harness.take(2)
    assert (second.segment, second.slot) == (other.segment, other.slot)
    assert (first.plan, second.k, other.plan, other.k) == (1, 1, 2, 0)
    assert (second.session, other.session) == (1, 2)


def test_one_that_is_a_little_behind_finds_what_was_made() -> None:
    harness = pair(share_window=8)
    for _ in range(8):
        harness.take(1)
    before = len(made(harness))
    for _ in range(8):
        harness.take(2)
    assert len(made(harness)) == before
    assert harness.core.snapshot().sessions[0].lag == 0


def test_one_that_is_far_behind_has_its_batches_made_anew_and_the_fast_one_goes_on() -> None:
    harness = pair(share_window=4)
    for _ in range(50):
        harness.take(1)
    assert [session.lag for session in harness.core.snapshot().sessions] == [0, 50]
    got = [harness.take(2) for _ in range(20)]
    assert starts(got) == [8 * n for n in range(20)]
    assert made(harness).count((0, 8 * 10)) == 2
    harness.take(1)


def test_a_batch_that_was_made_anew_is_not_counted_as_made_for_another() -> None:
    harness = pair(share_window=1)
    for _ in range(5):
        harness.take(1)  # the second one is told of two, and wants two more
    harness.attach(3, group=GROUP, shape=LONG, share_window=1, cursor=Cursor(0, 800, 100))
    for _ in range(20):
        harness.take(1)
        harness.take(3)
    group = harness.core.state.groups[GROUP]
    hits = group.hits
    assert [harness.take(2).start for _ in range(4)] == [0, 8, 16, 24]
    assert made(harness).count((0, 16)) == 2
    assert made(harness).count((0, 24)) == 2
    assert group.hits == hits


def test_when_they_meet_they_share_again() -> None:
    harness = pair(share_window=4)
    for _ in range(50):
        harness.take(1)
    for _ in range(51):
        harness.take(2)
    harness.log.clear()
    for _ in range(20):
        harness.take(2)
        harness.take(1)
    assert len(made(harness)) == len(set(made(harness)))


def test_a_stalled_one_holds_nobody_up_and_keeps_few_slots() -> None:
    harness = pair(share_window=2)
    harness.finish()  # client 2 is told of batches, and never takes one
    for n in range(100):
        assert harness.take(1).start == 8 * n
    table = harness.core.state.groups[GROUP].slots.table
    assert table.count(SlotState.ANNOUNCED) <= 2 * MOST_TOLD
    assert [harness.take(2).start for _ in range(10)] == [8 * n for n in range(10)]


def test_a_slot_is_not_used_again_before_every_one_that_was_told_of_it_has_given_it_back() -> None:
    harness = pair(share_window=1)
    harness.finish()
    harness.hear(2)
    mine = harness.clients[2].take()
    assert mine is not None
    for _ in range(60):
        other = harness.take(1)
        assert other.start == 0 or (other.segment, other.slot) != (mine.segment, mine.slot)
    harness.clients[2].release(mine.segment, mine.slot, mine.generation)
    harness.tell(2)
    generations = harness.core.state.groups[GROUP].slots.table.generation
    assert generations[mine.slot] == mine.generation + 1


def test_the_next_batch_after_a_seek_back_is_told_with_a_generation_of_its_own() -> None:
    harness = pair()
    first = harness.take(1)
    harness.clients[1].seek(Cursor(0, 0, 0))
    again = harness.take(1)
    assert (again.start, again.slot) == (first.start, first.slot)
    assert again.generation > first.generation
    assert made(harness).count((0, 0)) == 1
    other = harness.take(2)  # it was told before, of the generation before
    assert (other.slot, other.start) == (first.slot, 0)
    assert other.generation == first.generation


def test_one_that_dies_is_not_waited_for() -> None:
    harness = pair(share_window=1)
    harness.finish()
    harness.detach(2)
    for n in range(40):
        assert harness.take(1).start == 8 * n
    assert harness.core.state.groups[GROUP].slots.pins == {}


def test_one_that_joins_late_begins_at_its_own_cursor() -> None:
    harness = SchedulerHarness(samples=8 * 200)
    harness.attach(1, group=GROUP, shape=LONG)
    for _ in range(30):
        harness.take(1)
    harness.attach(2, group=GROUP, shape=LONG, cursor=Cursor(0, 8 * 29, 29))
    assert harness.take(2).start == 8 * 29
    harness.attach(3, group=GROUP, shape=LONG)
    assert harness.take(3).start == 0


def test_the_group_ends_with_its_last_member_and_its_memory_goes() -> None:
    harness = pair()
    harness.detach(1)
    assert harness.of(FreeSegment) == []
    harness.detach(2)
    harness.finish()
    assert harness.of(FreeSegment) == [FreeSegment(GROUP, 1)]
    assert harness.core.state.groups == harness.core.state.leaving == {}


def test_one_whose_plans_differ_cannot_join() -> None:
    harness = pair()
    first = harness.segments[GROUP, 1]
    other = EpochShape(samples=64, batch_size=8, rank=0, world_size=1, drop_last=True)
    with pytest.raises(ValueError, match=r"session 3 can't join group 99"):
        harness.core.step(Attach(3, "train", other, 7, 4, first, GROUP, 8), harness.now_s)
    with pytest.raises(ValueError, match=r"session 4 can't join group 99"):
        harness.core.step(Attach(4, "train", LONG, 8, 4, first, GROUP, 8), harness.now_s)
    assert sorted(harness.core.state.sessions) == [1, 2]


def test_a_bad_sample_is_told_to_each_of_them() -> None:
    harness = SchedulerHarness(on_error="skip", samples=8 * 200)
    harness.make = lambda job: done(job, (bad_row(job.first),) if job.first == 0 else ())
    for session in (1, 2):
        harness.attach(session, group=GROUP, shape=LONG)
    batches = [harness.take(1), harness.take(2)]
    assert [len(batch.bad) for batch in batches] == [1, 1]
    assert [batch.filled for batch in batches] == [7, 7]


def test_one_that_has_ended_is_not_the_furthest() -> None:
    harness = pair()
    for _ in range(8):
        harness.take(1)
    assert [session.lag for session in harness.core.snapshot().sessions] == [0, 8]
    harness.core.state.sessions[1].end("no memory")
    assert [session.lag for session in harness.core.snapshot().sessions] == [None, 0]
    harness.core.state.sessions[2].end("no memory")
    assert [session.lag for session in harness.core.snapshot().sessions] == [None, None]


def test_a_batch_that_outgrows_its_slot_is_made_again_for_all() -> None:
    harness = SchedulerHarness(samples=8 * 200)
    for session in (1, 2):
        harness.attach(session, group=GROUP, shape=LONG)
    harness.make = lambda job: done(job, needs_tail=100)
    harness.work()
    harness.make = done
    assert [action.session for action in harness.of(GrowSegment)] == [GROUP]
    harness.grow()
    assert [harness.take(session).segment for session in (1, 2)] == [2, 2]
    for session in (1, 2):
        harness.take(session)
    assert harness.of(FreeSegment) == [FreeSegment(GROUP, 1)]


def test_without_memory_for_it_all_that_wait_for_it_fail() -> None:
    harness = SchedulerHarness(samples=8 * 200)
    for session in (1, 2):
        harness.attach(session, group=GROUP, shape=LONG)
    harness.make = lambda job: done(job, needs_tail=100)
    harness.work()
    harness.step(GrowFailed(GROUP, "no memory"))
    for session in (1, 2):
        failures = [each for each in harness.inbox[session] if isinstance(each, Failure)]
        assert [each.text for each in failures] == ["no memory"]


def test_where_stalled_clients_keep_all_slots_the_next_one_gets_more() -> None:
    harness = SchedulerHarness(samples=8 * 200)
    for session in range(1, 8):
        cursor = Cursor(0, 80 * session, 10 * session)
        harness.attach(session, group=GROUP, shape=LONG, prefetch=2, share_window=2, cursor=cursor)
    harness.finish()  # 6 slots: six clients were told of a batch each, and take none
    assert [action.slots for action in harness.of(GrowSegment)] == [6 + 4]
    assert harness.take(7).start == 8 * 70
    for session in range(1, 7):
        assert harness.take(session).start == 80 * session


def test_without_memory_for_more_slots_one_waits_and_asks_again() -> None:
    harness = SchedulerHarness(samples=8 * 200)
    for session in range(1, 8):
        cursor = Cursor(0, 80 * session, 10 * session)
        harness.attach(session, group=GROUP, shape=LONG, prefetch=2, share_window=2, cursor=cursor)
    harness.finish()
    harness.log.clear()
    harness.step(GrowFailed(GROUP, "no memory"))
    harness.tell(7, ping=True)
    assert harness.of(GrowSegment) == []
    assert "have not read those in all 6 slots" in harness.core.snapshot().sessions[6].story
    harness.now_s += GROW_AGAIN_S
    harness.tell(7, ping=True)
    assert len(harness.of(GrowSegment)) == 1
    harness.step(GrowFailed(GROUP, "no memory"))
    harness.take(1)  # it gives its slot back
    assert harness.take(7).start == 8 * 70


def test_stopped_clients_that_keep_what_they_were_told_of_leave_a_slot_for_the_others() -> None:
    harness = SchedulerHarness(samples=8 * 200)
    for session in range(1, 6):
        harness.attach(session, group=GROUP, shape=LONG, prefetch=2, share_window=2, tell=False)
    for session in range(1, 6):
        harness.clients[session].seek(Cursor(0, 80 * session, 10 * session))
    harness.tell(1)
    harness.step(GrowFailed(GROUP, "no memory"))
    harness.log.clear()
    for session in range(1, 5):
        harness.tell(session)
        harness.finish()  # it was told of two of 6 slots, or of one, and has stopped
    for n in range(30):
        assert harness.take(5).start == 8 * (50 + n)


def test_a_group_with_a_member_for_each_slot_but_one_asks_for_more_slots() -> None:
    harness = SchedulerHarness(samples=8 * 200)
    for session in range(1, 6):
        assert harness.of(GrowSegment) == []
        harness.attach(session, group=GROUP, shape=LONG, prefetch=2, share_window=2)
    assert [action.slots for action in harness.of(GrowSegment)] == [6 + 4]
    harness.grow()
    assert harness.of(GrowSegment) == []


def test_a_crowded_group_whose_batches_outgrow_their_slots_asks_for_no_more_slots_at_once() -> None:
    harness = SchedulerHarness(samples=8 * 200)
    for session in range(1, 6):
        harness.attach(session, group=GROUP, shape=LONG, prefetch=2, share_window=2)
    harness.log.clear()
    harness.step(GrowFailed(GROUP, "no memory"))  # for more slots
    harness.make = lambda job: done(job, needs_tail=100)
    harness.now_s += GROW_AGAIN_S
    harness.work()
    harness.make = done
    assert [action.slots for action in harness.of(GrowSegment)] == [6]
    harness.grow()
    assert [action.slots for action in harness.of(GrowSegment)] == [6 + 4]
    assert [harness.take(session).start for session in range(1, 6)] == [0] * 5


def test_a_group_that_has_got_many_members_at_once_asks_for_slots_for_all() -> None:
    harness = SchedulerHarness(samples=8 * 200)
    for session in range(1, 13):
        harness.attach(session, group=GROUP, shape=LONG, prefetch=2, share_window=2, tell=False)
    harness.tell(1)
    assert [action.slots for action in harness.of(GrowSegment)] == [12 + 4]


def test_without_memory_for_more_slots_larger_batches_are_asked_for_before_anyone_fails() -> None:
    harness = SchedulerHarness(samples=8 * 200)
    for session in range(1, 6):
        harness.attach(session, group=GROUP, shape=LONG, prefetch=2, share_window=2)
    harness.make = lambda job: done(job, needs_tail=100)
    harness.work()
    harness.make = done
    harness.log.clear()
    harness.step(GrowFailed(GROUP, "no memory"))  # for more slots
    assert [action.slots for action in harness.of(GrowSegment)] == [6]
    harness.grow()
    assert [harness.take(session).start for session in range(1, 6)] == [0] * 5


def test_a_client_that_gives_nothing_back_does_not_get_all_slots() -> None:
    harness = pair(share_window=8, prefetch=2)
    mine = harness.clients[2]
    for _ in range(20):
        harness.finish()
        harness.hear(2)
        if mine.take() is None:
            break
        harness.tell(2)
    assert len(harness.core.state.sessions[2].slots.announced) == 2 + MOST_TOLD
    assert "not given back 4 batches" in harness.core.snapshot().sessions[1].story
    for n in range(30):
        assert harness.take(1).start == 8 * n


def test_a_member_whose_batches_are_in_the_making_is_not_short_of_slots() -> None:
    harness = pair(share_window=8)
    members = harness.core.state.groups[GROUP].members
    assert [member.held for member in members] == [False, False]
    harness.finish()
    assert [member.held for member in members] == [True, True]


def test_one_whose_place_in_the_epoch_no_other_has_leaves_no_slot_that_is_never_used_again() -> (
    None
):
    harness = SchedulerHarness(samples=8 * 200)
    harness.attach(1, group=GROUP, shape=LONG, prefetch=1, share_window=1)
    for session in (2, 3, 4):  # of 4 slots each of these keeps one
        at = Cursor(0, 80 * session, 10 * session)
        harness.attach(session, group=GROUP, shape=LONG, prefetch=1, share_window=1, cursor=at)
    harness.step(GrowFailed(GROUP, "no memory"))
    harness.log.clear()
    harness.clients[1].seek(Cursor(0, 4, 0))
    harness.tell(1)
    harness.finish()
    harness.hear(1)
    assert starts(list(harness.clients[1].here)) == [4]  # it has the number of the step at 8
    harness.clients[1].seek(Cursor(0, 8, 1))
    assert harness.take(1).start == 8


def test_a_drain_tells_every_member() -> None:
    harness = pair()
    harness.step(Drain())
    assert [session.story for session in harness.core.snapshot().sessions] == [
        "the daemon is draining",
        "the daemon is draining",
    ]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_members_do_each_gets_its_own_order(seed: int) -> None:
    """Members of any speed stall, seek, die and join; after each step all that must hold holds."""
    rng = random.Random(seed)
    shape = EpochShape(8 * rng.choice([3, 7, 40]), 8, 0, 1, True)
    harness = SchedulerHarness(workers=rng.choice([1, 3]), samples=shape.samples)
    window, prefetch = rng.choice([1, 2, 8]), rng.choice([1, 2, 4])
    orders: dict[int, list[Slice]] = {}
    count = 0

    def order(cursor: Cursor) -> list[Slice]:
        found = steps(shape, cursor)
        return [slice_at(shape, next(found)[0]) for _ in range(80)]

    def cursor() -> Cursor:
        step = rng.randrange(shape.samples // 8)
        return Cursor(rng.randrange(2), 8 * step, step)

    for _ in range(250):
        what = rng.random()
        if (what < 0.08 and len(orders) < 5) or not orders:
            count += 1
            group = next(iter(harness.core.state.groups), GROUP + count)
            at = cursor()
            harness.attach(
                count, group=group, shape=shape, cursor=at, prefetch=prefetch, share_window=window
            )
            orders[count] = order(at)
            continue
        session = rng.choice(list(orders))
        if what < 0.12:
            del orders[session]
            harness.detach(session)
        elif what < 0.2:
            at = cursor()
            harness.clients[session].seek(at)
            orders[session] = order(at)
            harness.tell(session)
        elif what < 0.5:
            harness.work()
        else:
            for _ in range(rng.randrange(4)):
                batch, cut = harness.take(session), orders[session].pop(0)
                assert (batch.epoch, batch.start, batch.rows) == (cut.epoch, cut.start, cut.rows)
