"""Whose turn it is, and that stale entries do not pile up."""

from __future__ import annotations

from loaderd_testing.scheduler_harness import SchedulerHarness


def test_entries_of_sessions_that_left_do_not_pile_up() -> None:
    harness = SchedulerHarness(workers=1)
    for session in range(1, 120):
        harness.attach(session)
    for session in range(1, 119):
        harness.detach(session)
    harness.finish()
    assert len(harness.core.state.queue) <= 4 * 1 + 64
    assert harness.take(119).k == 0


def test_a_client_that_tells_without_end_makes_the_queue_no_longer() -> None:
    harness = SchedulerHarness(workers=1)
    harness.attach()
    for _ in range(500):
        harness.tell()
    assert len(harness.core.state.queue) <= 4 * 1 + 64


def test_a_starving_session_comes_before_one_that_is_ahead() -> None:
    harness = SchedulerHarness(workers=1)
    harness.attach(1, prefetch=4)
    harness.finish()
    harness.attach(2, prefetch=4)
    harness.take(1)
    order = [harness.core.state.jobs[job.job].owner.session for job in harness.jobs()]
    while harness.jobs():
        harness.work()
        order += [harness.core.state.jobs[job.job].owner.session for job in harness.jobs()[-1:]]
    assert order[0] == 2


def test_a_session_whose_trainer_always_waits_does_not_starve_another_one() -> None:
    harness = SchedulerHarness(workers=1)
    for session in (1, 2, 3):
        harness.attach(session, prefetch=1)
    made: list[int] = []
    for _ in range(12):
        (job,) = harness.jobs()
        session = harness.core.state.jobs[job.job].owner.session
        made.append(session)
        harness.work()
        harness.take(session)  # at once, so that it has work again before the next one is drawn
    assert made == [1, 2, 3] * 4


def test_the_turn_of_a_session_that_left_is_not_kept() -> None:
    harness = SchedulerHarness(workers=1)
    for session in range(1, 20):
        harness.attach(session)
        harness.finish()
        harness.detach(session)
    assert harness.core.state.queue._turns == {}
