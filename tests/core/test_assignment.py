"""Which worker gets which rows next; larger segments; what is logged of a client's false statements."""

from __future__ import annotations

import pytest

from loaderd.core.actions import Drop, Grow, Note, Send, Tell
from loaderd.core.events import Told, WorkerReady
from loaderd.core.jobs import Job, Kind
from loaderd_testing.scheduler_harness import House, done, segment
from loaderd_wire.messages import Batch
from loaderd_wire.slices import Cursor


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
