"""A session's window and slots: over seeks, with messages that are late, lost or twice."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from loaderd.core.actions import SendJob
from loaderd.core.events import ProgressReceived, SegmentGrown
from loaderd.core.jobs import Stage
from loaderd.core.slots import SlotState
from loaderd_testing.scheduler_harness import SchedulerHarness
from loaderd_wire.messages import Descriptor, Released, Segment
from loaderd_wire.slices import LAST_EPOCH, Cursor, EpochShape, steps


def test_a_seek_to_a_batch_that_is_ready_makes_nothing_twice() -> None:
    harness = SchedulerHarness()
    client = harness.attach(prefetch=4)
    harness.finish()
    harness.hear()
    harness.log.clear()
    client.seek(Cursor(0, 16, 2))
    harness.tell()
    harness.hear()
    batch = client.take()
    assert batch is not None
    assert (batch.start, batch.generation) == (16, 1)
    harness.finish()
    assert sorted({a.job.start for a in harness.log if isinstance(a, SendJob)}) == [32, 40]


def test_a_seek_keeps_the_jobs_that_run_for_the_new_plan() -> None:
    harness = SchedulerHarness(workers=2)
    client = harness.attach(prefetch=2)
    running = harness.jobs()
    client.seek(Cursor(0, 8, 1))
    harness.tell()
    kept = [job for job in running if job.start == 8]
    assert kept
    harness.finish()
    assert [a.job for a in harness.log if isinstance(a, SendJob) and a.job.start == 8] == kept
    assert harness.take().start == 8


def test_a_seek_back_to_a_batch_that_the_trainer_has_in_hand_makes_it_anew() -> None:
    harness = SchedulerHarness()
    client = harness.attach()
    first = harness.take(keep=True)
    client.seek(Cursor(0, 0, 0))
    again = harness.take()
    assert (again.start, again.epoch) == (first.start, first.epoch)
    assert (again.slot, again.generation) != (first.slot, first.generation)


def test_a_batch_taken_and_not_told_of_before_a_seek_back_is_not_served_from_its_slot() -> None:
    harness = SchedulerHarness()
    client = harness.attach()
    harness.finish()
    harness.hear()
    first = client.take()  # the daemon never hears of this in the old plan
    assert first is not None
    client.seek(Cursor(0, 0, 0))
    again = harness.take()
    assert again.start == first.start
    assert again.slot != first.slot


def test_descriptors_on_their_way_over_a_seek_are_used_where_they_fit() -> None:
    harness = SchedulerHarness()
    client = harness.attach(prefetch=4)
    harness.finish()
    late = list(harness.inbox[1])
    harness.inbox[1].clear()
    client.seek(Cursor(0, 8, 1))
    for message in late:
        assert isinstance(message, Descriptor)
        client.receive(message)
    first = client.take()
    assert first is not None
    assert (first.start, first.generation) == (8, 1)
    harness.tell()
    for start in (16, 24, 32):
        assert harness.take().start == start
    harness.finish()
    client.release(first.segment, first.slot, first.generation)
    harness.tell()
    assert len(harness.core.state.sessions[1].slots.announced) == 4


def test_what_was_announced_and_lost_before_a_seek_is_found_again() -> None:
    harness = SchedulerHarness()
    client = harness.attach(prefetch=4)
    harness.finish()
    harness.inbox[1].clear()
    client.seek(Cursor(9, 0, 0))
    harness.tell()
    harness.finish()
    assert harness.core.state.sessions[1].slots.tables[1].free == 0
    harness.now_s += 2
    harness.tell()
    harness.hear()
    harness.tell()
    harness.finish()
    for k in range(8):
        assert harness.take().k == k
    assert harness.core.state.sessions[1].window.announced <= 12


def test_of_two_slots_with_one_batch_only_the_one_that_the_trainer_names_is_lent() -> None:
    harness = SchedulerHarness()
    client = harness.attach(prefetch=2)
    harness.take()
    harness.finish()
    harness.inbox[1].clear()  # batches 1 and 2, in slots that the client never hears of
    client.seek(Cursor(5, 0, 0))
    harness.take()
    client.seek(Cursor(0, 0, 0))
    harness.take()
    harness.finish()  # batch 2, which was none of the plan's first two, is made anew
    harness.hear()
    client.seek(Cursor(0, 16, 2))
    client.progress()  # lost on its way
    batch = client.take()
    assert batch is not None
    client.release(batch.segment, batch.slot, batch.generation)
    harness.tell()
    slots = harness.core.state.sessions[1].slots
    assert SlotState.LEASED not in slots.table.state
    harness.now_s += 2
    harness.tell()  # the lost ones are named again,
    harness.hear()
    harness.tell()  # and given back
    harness.finish()
    assert {known.message.plan for known in slots.announced.values()} == {client.plan}


def test_a_release_that_was_lost_in_an_old_segment_is_asked_for_again() -> None:
    harness = SchedulerHarness()
    client = harness.attach(prefetch=2)
    kept = harness.take(keep=True)
    session = harness.core.state.sessions[1]
    new = Segment(2, 4, 8192, 128, 0)
    harness.segments[1, 2] = new
    client.add_segment(new)
    harness.step(SegmentGrown(1, new))
    for _ in range(4):
        harness.take()
    client.release(kept.segment, kept.slot, kept.generation)
    client.progress()  # lost on its way
    assert 1 in session.slots.tables
    harness.now_s += 2
    harness.tell()
    harness.hear()
    assert client.dirty
    harness.tell()
    assert 1 not in session.slots.tables
    assert (1, 1) not in harness.segments


def test_seeks_in_quick_succession_end_where_the_last_one_went() -> None:
    harness = SchedulerHarness()
    client = harness.attach()
    for epoch in range(1, 30):
        client.seek(Cursor(epoch, 8 * (epoch % 8), epoch % 8))
        harness.tell()
        harness.work()
    batch = harness.take()
    assert (batch.epoch, batch.start) == (29, 40)


def test_a_slot_that_a_seek_left_behind_is_named_again_once_a_second() -> None:
    harness = SchedulerHarness()
    client = harness.attach(prefetch=2)
    harness.finish()
    harness.inbox[1].clear()
    client.seek(Cursor(9, 0, 0))
    harness.tell()
    harness.finish()
    harness.inbox[1].clear()
    for after_s in (2.0, 0.4, 0.4, 0.4):
        harness.now_s += after_s
        harness.tell()
    old = [
        message.k
        for message in harness.inbox[1]
        if isinstance(message, Descriptor) and message.plan == 1
    ]
    assert old == [0, 1, 0, 1]


def test_the_last_epoch_that_there_is_is_served() -> None:
    harness = SchedulerHarness()
    harness.attach(cursor=Cursor(LAST_EPOCH, 0, 0))
    assert harness.take().epoch == LAST_EPOCH


@pytest.mark.parametrize("seed", range(150))
def test_whatever_is_lost_late_or_dead_the_trainer_gets_the_batches_of_its_plan(seed: int) -> None:
    seeder = random.Random(seed)
    world = seeder.choice([1, 2])
    batch_size = seeder.choice([1, 2, 8])
    shape = EpochShape(
        seeder.choice([16, 17, 64]),
        batch_size,
        seeder.randrange(world),
        world,
        seeder.random() < 0.5,
        uneven_tail=seed % 3 == 0,
    )
    harness = SchedulerHarness(workers=seeder.choice([1, 2, 4]), samples=shape.samples)
    client = harness.attach(shape=shape, prefetch=seeder.choice([1, 2, 4]))
    plan = steps(shape, Cursor(0, 0, 0))
    held: list[Descriptor] = []
    late: list[Descriptor] = []
    for _ in range(80):
        dice = seeder.random()
        if dice < 0.1:
            cursor = Cursor(
                seeder.choice([0, 0, 1]), seeder.randrange(shape.samples + 1), seeder.randrange(3)
            )
            client.seek(cursor)
            plan = steps(shape, cursor)
            if seeder.random() < 0.7:
                harness.tell()
        elif dice < 0.2 and held:
            _give_back(harness, held.pop(seeder.randrange(len(held))))
        elif dice < 0.3:
            stage = seeder.choice([Stage.READ, Stage.IDLE, Stage.OPEN, Stage.FETCH_MANY])
            harness.die(seeder.choice(list(harness.sent)), own=False, stage=stage)
        elif dice < 0.4:
            late += [m for m in harness.inbox[1] if isinstance(m, Descriptor)]
            harness.inbox[1].clear()
        elif dice < 0.5 and late:
            seeder.shuffle(late)
            for message in late[:4]:
                client.receive(message)
            del late[:3]
        else:
            while len(held) >= 2:
                _give_back(harness, held.pop(0))
            batch = _next(harness)
            _, cut = next(plan)
            assert (batch.epoch, batch.start, batch.rows) == (cut.epoch, cut.start, cut.rows)
            held.append(batch)
            if seeder.random() < 0.8:
                harness.tell()


def _give_back(harness: SchedulerHarness, batch: Descriptor) -> None:
    harness.clients[1].release(batch.segment, batch.slot, batch.generation)


def _next(harness: SchedulerHarness) -> Descriptor:
    harness.tell()
    for turn in range(300):
        harness.hear()
        batch = harness.clients[1].take()
        if batch is not None:
            return batch
        harness.work()
        harness.now_s += 0.1
        if turn % 20 == 19:
            harness.tell(again=True)
    raise AssertionError(harness.core.snapshot())


def test_a_release_with_an_old_generation_frees_nothing() -> None:
    harness = SchedulerHarness()
    client = harness.attach(prefetch=1)
    first = harness.take()
    while (second := harness.take(keep=True)).slot != first.slot:
        client.release(second.segment, second.slot, second.generation)
    client.release(first.segment, first.slot, first.generation)
    harness.tell()
    ring = harness.core.state.sessions[1].slots.tables[1]
    assert ring.state[second.slot].value == "leased"


def test_a_batch_of_the_window_that_was_not_announced_cannot_be_taken() -> None:
    harness = SchedulerHarness()
    harness.attach(prefetch=2)
    forged = replace(harness.clients[1].progress(), taken=1)
    (note,) = harness.step(ProgressReceived(1, forged))
    assert "1 batches taken of plan 1, of which 0 were announced" in str(note)
    assert [harness.take().k for _ in range(3)] == [0, 1, 2]


def test_lost_descriptors_come_again_when_asked_for() -> None:
    harness = SchedulerHarness()
    harness.attach()
    harness.finish()
    harness.inbox[1].clear()
    harness.tell(again=True)
    assert [m.k for m in harness.inbox[1] if isinstance(m, Descriptor)] == [0, 1, 2, 3]
    harness.hear()
    harness.tell(again=True)
    assert not harness.inbox[1]


def test_an_announced_batch_that_is_given_back_unread_is_made_again() -> None:
    harness = SchedulerHarness()
    client = harness.attach()
    harness.finish()
    lost = harness.inbox[1].popleft()
    assert isinstance(lost, Descriptor)
    slots = tuple(int(slot == lost.slot) for slot in range(6))
    unread = replace(client.progress(), released=(Released(1, slots, slots),))
    harness.step(ProgressReceived(1, unread))
    client._seq += 1
    harness.finish()
    again = [m for m in harness.inbox[1] if isinstance(m, Descriptor) and m.k == 0]
    assert [m.generation for m in again] == [2]
