"""Jobs that are better done by another worker, and workers that nobody waits for."""

from __future__ import annotations

from loaderd.core.actions import Kill, Retire
from loaderd.core.events import Seen, WorkerReady
from loaderd_testing.scheduler_harness import House


def test_a_trainers_batch_behind_anothers_hanging_job_is_made_elsewhere() -> None:
    house = House(workers=2, sample_timeout_s=30.0, ready=False)
    house.attach(1, prefetch=2)
    house.attach(2, prefetch=2)
    house.step(WorkerReady(1))
    while [house.core.state.jobs[job.job].session.session for job in house.sent[1]] != [1, 2]:
        house.work(1)
    behind = house.sent[1][1]
    assert house.take(2).k == 0  # so batch 1 is what trainer 2 waits for
    assert behind.start == 8
    house.step(WorkerReady(2))
    seen = house.seen(1, 0)
    for _ in range(8):
        while house.sent[2]:
            house.work(2)
        house.look(seen)
    house.hear(2)
    batch = house.clients[2].take()
    assert batch is not None
    assert (batch.k, batch.slot == behind.slot) == (1, False)
    house.work(1)
    house.work(1)
    assert house.core.state.sessions[2].rings[1].state[behind.slot].value != "ending"


def test_a_job_that_a_stopped_worker_has_not_begun_is_made_elsewhere() -> None:
    house = House(workers=2, ready=False)
    house.attach(prefetch=1)
    house.step(WorkerReady(1))
    house.step(WorkerReady(2))
    while house.sent[2]:
        house.work(2)
    (job,) = house.sent[1]
    word = Seen(1, 0, "", True, 0)
    house.look(word)
    assert [(j.start, j.slot == job.slot) for j in house.sent[2]] == [(job.start, False)]
    house.work(2)
    assert house.take().k == 0
    ring = house.core.state.sessions[1].rings[1]
    assert ring.state[job.slot].value == "ending"
    house.work(1)  # it goes on, and what it writes is nobody's
    assert ring.state[job.slot].value != "ending"


def test_a_batch_is_made_elsewhere_once_and_not_again() -> None:
    house = House(workers=3, ready=False)
    house.attach(prefetch=1)
    for worker in (1, 2, 3):
        house.step(WorkerReady(worker))
    while house.sent[2] or house.sent[3]:
        house.work(2)
        house.work(3)
    (job,) = house.sent[1]
    house.look(Seen(1, 0, "", True, 0))
    taker = next(w for w in (2, 3) if house.sent[w])
    assert house.sent[taker][0].start == job.start
    house.look(*(Seen(w, 0, "", True, 0) for w in (1, taker)))
    assert not house.sent[5 - taker]


def test_a_job_of_a_stopped_worker_stays_with_it_where_there_is_no_other_slot() -> None:
    house = House(workers=2)
    house.attach(prefetch=1)
    for _ in range(2):
        house.take(keep=True)
    (job,) = house.jobs()
    assert house.core.state.sessions[1].rings[1].free == 0
    house.look(Seen(house.holder(job), 0, "", True, 0))
    assert house.jobs() == [job]
    assert house.core.state.jobs[job.job].wanted


def test_a_job_that_a_stopped_worker_is_at_stays_with_it() -> None:
    house = House(workers=2)
    house.attach(prefetch=1)
    house.work(2)
    for _ in range(200):
        house.look(house.seen(1, 0, paused=True), after_s=1.0)
    assert not house.sent[2]
    assert not house.of(Kill)


def test_a_stopped_worker_that_nobody_waits_for_any_longer_is_ended_and_is_no_fault_of_the_stream() -> None:
    house = House(workers=2)
    house.attach(1, prefetch=1)
    house.work(2)
    house.look(house.seen(1, 0, paused=True))
    house.look(house.seen(1, 0, paused=True), after_s=100.0)
    assert not house.of(Kill)  # its batch is waited for
    house.detach(1)
    house.attach(2, prefetch=1)
    (kill,) = [a for a in house.look(house.seen(1, 0, paused=True)) if isinstance(a, Kill)]
    assert (kill.worker, kill.why) == (1, "it is stopped by a signal (T), and nobody waits for it")
    house.die(1, 0, own=False, cause="killed: it is stopped")
    assert house.core.state.streams["train"].deaths < 1
    assert house.take(2).k == 0


def test_a_worker_that_is_stopped_for_a_moment_at_work_that_nobody_wants_lives_on() -> None:
    house = House(workers=1)
    house.attach(1, prefetch=1)
    house.detach(1)
    house.look(house.seen(1, 0, paused=True))
    house.look(house.seen(1, 0, paused=True), after_s=4.0)
    house.look(house.seen(1, 0))
    house.look(house.seen(1, 0, paused=True), after_s=4.0)
    house.look(house.seen(1, 0, paused=True), after_s=4.0)
    assert not house.of(Kill)


def test_a_stopped_worker_that_was_to_be_replaced_does_not_keep_its_seat() -> None:
    house = House(workers=1, worker_memory=1000)
    house.attach(prefetch=1)
    house.look(Seen(1, house.seen(1, 0).word, "", False, 1001))
    house.finish()
    assert house.of(Retire) == [Retire(1)]
    for _ in range(30):
        house.look(Seen(1, 0, "", True, 1001))
    assert [kill.worker for kill in house.of(Kill)] == [1]
