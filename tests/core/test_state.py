"""The tables of a scheduler, and a job that runs."""

from __future__ import annotations

from loaderd.core.events import Detach, Drain
from loaderd.core.pool import WorkerPool
from loaderd.core.state import SchedulerState
from loaderd_testing.scheduler_harness import SchedulerHarness, one_session


def test_a_new_state_is_empty() -> None:
    state = SchedulerState(WorkerPool(1), {})
    assert (state.sessions, state.leaving, state.jobs, len(state.queue), state.actions) == (
        {},
        {},
        {},
        0,
        [],
    )
    assert (state.draining, state.turns, state.now_s) == (False, 0, 0.0)


def test_two_states_share_no_table() -> None:
    one, other = SchedulerState(WorkerPool(1), {}), SchedulerState(WorkerPool(1), {})
    assert one.sessions is not other.sessions
    assert one.queue is not other.queue


def test_the_state_says_which_event_was_the_last_and_what_it_led_to() -> None:
    harness = SchedulerHarness()
    actions = harness.step(Drain(), after_s=2.5)
    # two workers were ready before
    assert (harness.core.state.now_s, harness.core.state.turns) == (102.5, 3)
    assert harness.core.state.actions == actions == []
    assert harness.core.state.draining


def test_a_job_is_wanted_until_its_batch_is_started_again() -> None:
    harness = one_session()
    (job,) = harness.jobs()
    running = harness.core.state.jobs[job.job]
    assert (running.worker, running.job) == (1, job)
    assert running.wanted
    running.owner.restart(running.build)
    assert not running.wanted


def test_a_job_stays_in_the_table_after_its_client_has_left() -> None:
    harness = one_session()
    (job,) = harness.jobs()
    harness.step(Detach(1))
    state = harness.core.state
    assert (list(state.sessions), list(state.leaving), list(state.jobs)) == ([], [1], [job.job])
    harness.finish()
    assert (state.leaving, state.jobs) == ({}, {})
