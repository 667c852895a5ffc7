"""A session's window and slots: over seeks, with messages that are late, lost or twice."""

from __future__ import annotations

import random

import pytest

from loaderd.core.actions import Send
from loaderd.core.events import Grown, Told
from loaderd.core.jobs import Stage
from loaderd_testing.scheduler_harness import House
from loaderd_wire.messages import Batch, Segment
from loaderd_wire.slices import LAST_EPOCH, Cursor, Shape, steps


def test_a_seek_to_a_batch_that_is_ready_makes_nothing_twice() -> None:
    house = House()
    client = house.attach(prefetch=4)
    house.finish()
    house.hear()
    house.log.clear()
    client.seek(Cursor(0, 16, 2))
    house.tell()
    house.hear()
    batch = client.take()
    assert batch is not None
    assert (batch.start, batch.generation) == (16, 1)
    house.finish()
    assert sorted({a.job.start for a in house.log if isinstance(a, Send)}) == [32, 40]


def test_a_seek_keeps_the_jobs_that_run_for_the_new_plan() -> None:
    house = House(workers=2)
    client = house.attach(prefetch=2)
    running = house.jobs()
    client.seek(Cursor(0, 8, 1))
    house.tell()
    kept = [job for job in running if job.start == 8]
    assert kept
    house.finish()
    assert [a.job for a in house.log if isinstance(a, Send) and a.job.start == 8] == kept
    assert house.take().start == 8


def test_a_seek_back_to_a_batch_that_the_trainer_has_in_hand_makes_it_anew() -> None:
    house = House()
    client = house.attach()
    first = house.take(keep=True)
    client.seek(Cursor(0, 0, 0))
    again = house.take()
    assert (again.start, again.epoch) == (first.start, first.epoch)
    assert (again.slot, again.generation) != (first.slot, first.generation)


def test_a_batch_taken_and_not_told_of_before_a_seek_back_is_not_served_from_its_slot() -> None:
    house = House()
    client = house.attach()
    house.finish()
    house.hear()
    first = client.take()  # the daemon never hears of this in the old plan
    assert first is not None
    client.seek(Cursor(0, 0, 0))
    again = house.take()
    assert again.start == first.start
    assert again.slot != first.slot


def test_descriptors_on_their_way_over_a_seek_are_used_where_they_fit() -> None:
    house = House()
    client = house.attach(prefetch=4)
    house.finish()
    late = list(house.inbox[1])
    house.inbox[1].clear()
    client.seek(Cursor(0, 8, 1))
    for message in late:
        assert isinstance(message, Batch)
        client.receive(message)
    first = client.take()
    assert first is not None
    assert (first.start, first.generation) == (8, 1)
    house.tell()
    for start in (16, 24, 32):
        assert house.take().start == start
    house.finish()
    client.release(first.segment, first.slot, first.generation)
    house.tell()
    assert len(house.core.state.sessions[1].given) == 4


def test_what_was_announced_and_lost_before_a_seek_is_found_again() -> None:
    house = House()
    client = house.attach(prefetch=4)
    house.finish()
    house.inbox[1].clear()
    client.seek(Cursor(9, 0, 0))
    house.tell()
    house.finish()
    assert house.core.state.sessions[1].rings[1].free == 0
    house.now_s += 2
    house.tell()
    house.hear()
    house.tell()
    house.finish()
    for k in range(8):
        assert house.take().k == k
    assert house.core.state.sessions[1].announced <= 12


def test_a_release_that_was_lost_in_an_old_segment_is_asked_for_again() -> None:
    house = House()
    client = house.attach(prefetch=2)
    kept = house.take(keep=True)
    session = house.core.state.sessions[1]
    new = Segment(2, 4, 8192, 128, 0)
    house.segments[1, 2] = new
    client.add_segment(new)
    house.step(Grown(1, new))
    for _ in range(4):
        house.take()
    client.release(kept.segment, kept.slot, kept.generation)
    client.progress()  # lost on its way
    assert 1 in session.rings
    house.now_s += 2
    house.tell()
    house.hear()
    assert client.dirty
    house.tell()
    assert 1 not in session.rings
    assert (1, 1) not in house.segments


def test_seeks_in_quick_succession_end_where_the_last_one_went() -> None:
    house = House()
    client = house.attach()
    for epoch in range(1, 30):
        client.seek(Cursor(epoch, 8 * (epoch % 8), epoch % 8))
        house.tell()
        house.work()
    batch = house.take()
    assert (batch.epoch, batch.start) == (29, 40)


def test_a_slot_that_a_seek_left_behind_is_named_again_once_a_second() -> None:
    house = House()
    client = house.attach(prefetch=2)
    house.finish()
    house.inbox[1].clear()
    client.seek(Cursor(9, 0, 0))
    house.tell()
    house.finish()
    house.inbox[1].clear()
    for after_s in (2.0, 0.4, 0.4, 0.4):
        house.now_s += after_s
        house.tell()
    old = [message.k for message in house.inbox[1] if isinstance(message, Batch) and message.plan == 1]
    assert old == [0, 1, 0, 1]


def test_the_last_epoch_that_there_is_is_served() -> None:
    house = House()
    house.attach(cursor=Cursor(LAST_EPOCH, 0, 0))
    assert house.take().epoch == LAST_EPOCH


@pytest.mark.parametrize("seed", range(150))
def test_whatever_is_lost_late_or_dead_the_trainer_gets_the_batches_of_its_plan(seed: int) -> None:
    chance = random.Random(seed)
    world = chance.choice([1, 2])
    batch_size = chance.choice([1, 2, 8])
    shape = Shape(chance.choice([16, 17, 64]), batch_size, chance.randrange(world), world, chance.random() < 0.5)
    house = House(workers=chance.choice([1, 2, 4]), samples=shape.samples)
    client = house.attach(shape=shape, prefetch=chance.choice([1, 2, 4]))
    plan = steps(shape, Cursor(0, 0, 0))
    held: list[Batch] = []
    late: list[Batch] = []
    for _ in range(80):
        dice = chance.random()
        if dice < 0.1:
            cursor = Cursor(chance.choice([0, 0, 1]), chance.randrange(shape.samples + 1), chance.randrange(3))
            client.seek(cursor)
            plan = steps(shape, cursor)
            if chance.random() < 0.7:
                house.tell()
        elif dice < 0.2 and held:
            _give_back(house, held.pop(chance.randrange(len(held))))
        elif dice < 0.3:
            stage = chance.choice([Stage.READ, Stage.IDLE, Stage.OPEN, Stage.FETCH_MANY])
            house.die(chance.choice(list(house.sent)), own=False, stage=stage)
        elif dice < 0.4:
            late += [m for m in house.inbox[1] if isinstance(m, Batch)]
            house.inbox[1].clear()
        elif dice < 0.5 and late:
            chance.shuffle(late)
            for message in late[:4]:
                client.receive(message)
            del late[:3]
        else:
            while len(held) >= 2:
                _give_back(house, held.pop(0))
            batch = _next(house)
            _, cut = next(plan)
            assert (batch.epoch, batch.start, batch.rows) == (cut.epoch, cut.start, cut.rows)
            held.append(batch)
            if chance.random() < 0.8:
                house.tell()


def _give_back(house: House, batch: Batch) -> None:
    house.clients[1].release(batch.segment, batch.slot, batch.generation)


def _next(house: House) -> Batch:
    house.tell()
    for turn in range(300):
        house.hear()
        batch = house.clients[1].take()
        if batch is not None:
            return batch
        house.work()
        house.now_s += 0.1
        if turn % 20 == 19:
            house.tell(again=True)
    raise AssertionError(house.core.picture())


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


def test_a_batch_of_the_window_that_was_not_announced_cannot_be_taken() -> None:
    house = House()
    house.attach(prefetch=2)
    p = house.clients[1].progress()
    forged = type(p)(**{name: getattr(p, name) for name in p.__slots__} | {"taken": 1})
    (note,) = house.step(Told(1, forged))
    assert "1 batches taken of plan 1, of which 0 were announced" in str(note)
    assert [house.take().k for _ in range(3)] == [0, 1, 2]


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
