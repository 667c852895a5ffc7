"""Workers: numbers, places, back-off, room for jobs."""

from __future__ import annotations

import pytest

from loaderd.core.actions import RetireWorker, StartWorker
from loaderd.core.pool import WorkerPool


def pool(size: int = 2) -> WorkerPool:
    p = WorkerPool(size)
    for start in p.begin():
        p.ready(start.worker)
    return p


def test_a_seat_that_goes_on_dying_waits_longer_each_time_and_not_for_ever() -> None:
    p = WorkerPool(1)
    (start,) = p.begin()
    delays: list[float] = []
    for _ in range(12):
        _, again = p.died(start.worker, "SIGKILL")
        assert again is not None
        start = again
        delays.append(start.delay_s)
    assert delays[:5] == [0.0, 0.1, 0.2, 0.4, 0.8]
    assert delays[-1] == 5.0
    assert start.worker == 13


def test_a_job_done_makes_the_next_death_the_first_again() -> None:
    p = pool(1)
    _, start = p.died(1, "SIGKILL")
    assert start == StartWorker(2, 0.0)
    p.ready(2)
    p.give(2, 5, 1.0)
    p.answered(2, 5)
    assert p.died(2, "SIGKILL")[1] == StartWorker(3, 0.0)


def test_a_worker_holds_two_jobs_and_no_third() -> None:
    p = pool(1)
    p.give(1, 1, 0.0)
    assert p.available.pick(second=False) is None
    assert p.available.pick(second=True) == 1
    p.give(1, 2, 0.0)
    assert p.available.pick(second=True) is None
    p.invariants()


def test_an_answer_to_a_job_that_it_does_not_have_is_refused() -> None:
    p = pool(1)
    with pytest.raises(ValueError, match=r"worker 1 \(up\) answers job 9, it has \[\]"):
        p.answered(1, 9)
    with pytest.raises(ValueError, match="WorkerDied of worker 8"):
        p.died(8, "SIGKILL")


def test_a_worker_that_is_to_retire_ends_its_job_first() -> None:
    p = pool(1)
    p.give(1, 4, 0.0)
    assert p.retire(1) is None
    assert p.available.pick(second=True) is None
    assert p.answered(1, 4) == RetireWorker(1)
    assert p.died(1, "SIGKILL")[1] == StartWorker(2, 0.0)


def test_the_seat_of_a_worker_that_does_not_die_goes_to_another_once() -> None:
    p = pool(2)
    p.give(1, 4, 0.0)
    p.killed(1, 1.0)
    assert p.stuck(1) == StartWorker(3, 0.0)
    p.invariants()
    w, start = p.died(1, "SIGKILL")
    assert w.jobs == [4]
    assert start is None
    p.invariants()


def test_a_stopped_worker_gets_no_job_behind_the_one_that_it_has() -> None:
    p = pool(1)
    p.give(1, 4, 0.0)
    assert p.available.pick(second=True) == 1
    p.workers[1].paused = True
    p.available.sort(p.workers[1])
    p.invariants()
    assert p.available.pick(second=True) is None
    p.answered(1, 4)  # so it goes on
    p.invariants()
    assert p.available.pick(second=False) == 1


def test_those_that_die_before_they_are_ready_are_counted_until_one_is() -> None:
    p = WorkerPool(1)
    (start,) = p.begin()
    for n in range(3):
        _, start = p.died(start.worker, f"exit code {n}")
        assert start is not None
    assert (p.boot_deaths, p.last_boot_death) == (3, "exit code 2")
    p.booting(start.worker, "importing users", 5.0)
    assert p.workers[start.worker].doing == "importing users"
    p.ready(start.worker)
    assert (p.boot_deaths, p.workers[start.worker].doing) == (0, "")
    p.booting(start.worker, "too late", 6.0)
    assert p.workers[start.worker].doing == ""


def test_a_worker_that_was_asked_to_leave_is_replaced_at_once_however_often_its_seat_died_before() -> (
    None
):
    p = pool(1)
    worker = 1
    for _ in range(4):
        _, start = p.died(worker, "SIGKILL")
        assert start is not None
        worker = start.worker
    p.ready(worker)
    assert p.retire(worker) == RetireWorker(worker)
    assert p.died(worker, "exit code 0")[1] == StartWorker(worker + 1, 0.0)


def test_a_pool_that_grows_starts_workers_in_places_of_their_own() -> None:
    p = pool(2)
    assert p.resize(4) == [StartWorker(3, 0.0), StartWorker(4, 0.0)]
    assert p.size == 4
    p.invariants()
    assert p.died(3, "SIGKILL")[1] == StartWorker(5, 0.0)


def test_a_pool_that_shrinks_lets_those_end_that_have_least_to_do() -> None:
    p = pool(4)
    for worker in (1, 2, 3):
        p.give(worker, worker, 0.0)
    p.give(2, 5, 0.0)
    assert p.resize(2) == [RetireWorker(4)]
    p.invariants()
    assert p.answered(3, 3) == RetireWorker(3)
    assert p.died(3, "exit code 0")[1] is None
    assert p.died(4, "exit code 0")[1] is None
    p.invariants()
    assert sorted(p.workers) == [1, 2]
    assert p.died(1, "SIGKILL")[1] == StartWorker(5, 0.0)


def test_a_pool_that_grows_while_it_shrinks_keeps_the_places_of_those_that_end() -> None:
    p = pool(3)
    assert p.resize(1) == [RetireWorker(3), RetireWorker(2)]
    assert p.resize(2) == []
    p.invariants()
    assert p.died(2, "exit code 0")[1] is None
    assert p.died(3, "exit code 0")[1] == StartWorker(4, 0.0)
    p.invariants()


def test_a_pool_that_shrinks_does_not_give_up_what_is_starting() -> None:
    p = WorkerPool(3)
    p.begin()
    p.ready(1)
    assert p.resize(1) == [RetireWorker(1)]
    assert p.size == 2
    p.invariants()


def test_the_place_of_a_worker_that_cannot_be_killed_is_given_up_in_a_smaller_pool() -> None:
    p = pool(2)
    p.give(1, 4, 0.0)
    p.killed(1, 1.0)
    assert p.resize(1) == []
    assert p.stuck(1) is None
    assert p.died(1, "SIGKILL")[1] is None
    p.invariants()


def test_a_pool_is_settled_when_each_worker_has_done_a_job() -> None:
    p = pool(2)
    assert not p.settled
    for worker in (1, 2):
        p.give(worker, worker, 0.0)
        p.answered(worker, worker)
    assert p.settled
    p.resize(1)
    assert not p.settled
    p.died(2, "exit code 0")
    assert p.settled
