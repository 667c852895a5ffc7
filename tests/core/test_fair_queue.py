"""Whose turn it is, and that stale entries do not pile up."""

from __future__ import annotations

from loaderd_testing.scheduler_harness import House


def test_entries_of_sessions_that_left_do_not_pile_up() -> None:
    house = House(workers=1)
    for session in range(1, 120):
        house.attach(session)
    for session in range(1, 119):
        house.detach(session)
    house.finish()
    assert len(house.core.state.queue) <= 4 * 1 + 64
    assert house.take(119).k == 0


def test_a_client_that_tells_without_end_makes_the_queue_no_longer() -> None:
    house = House(workers=1)
    house.attach()
    for _ in range(500):
        house.tell()
    assert len(house.core.state.queue) <= 4 * 1 + 64


def test_a_starving_session_comes_before_one_that_is_ahead() -> None:
    house = House(workers=1)
    house.attach(1, prefetch=4)
    house.finish()
    house.attach(2, prefetch=4)
    house.take(1)
    order = [house.core.state.jobs[job.job].session.session for job in house.jobs()]
    while house.jobs():
        house.work()
        order += [house.core.state.jobs[job.job].session.session for job in house.jobs()[-1:]]
    assert order[0] == 2


def test_a_session_whose_trainer_always_waits_does_not_starve_another_one() -> None:
    house = House(workers=1)
    for session in (1, 2, 3):
        house.attach(session, prefetch=1)
    made: list[int] = []
    for _ in range(12):
        (job,) = house.jobs()
        session = house.core.state.jobs[job.job].session.session
        made.append(session)
        house.work()
        house.take(session)  # at once, so that it has work again before the next one is drawn
    assert made == [1, 2, 3] * 4


def test_the_turn_of_a_session_that_left_is_not_kept() -> None:
    house = House(workers=1)
    for session in range(1, 20):
        house.attach(session)
        house.finish()
        house.detach(session)
    assert house.core.state.queue._turns == {}
