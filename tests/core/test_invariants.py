"""The invariants: a state in which one of them does not hold is an error that names it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loaderd.core import invariants
from loaderd.core.jobs import Job
from loaderd.core.slots import SlotState
from loaderd.core.state import SchedulerState
from loaderd_testing.scheduler_harness import SchedulerHarness


def busy() -> SchedulerHarness:
    """One batch taken, one announced, one that runs."""
    harness = SchedulerHarness(workers=1)
    harness.attach(prefetch=2)
    harness.take(keep=True)
    while len(harness.core.state.sessions[1].slots.announced) < 2:
        harness.work()
    harness.core.invariants()
    assert harness.core.state.jobs
    return harness


def job_of(state: SchedulerState) -> Job:
    return next(iter(state.jobs.values())).job


def loses_its_job(state: SchedulerState) -> None:
    state.jobs.clear()


def is_not_known_to_its_slot(state: SchedulerState) -> None:
    job = job_of(state)
    state.sessions[1].slots.tables[job.segment].writers[job.slot].clear()


def writes_an_announced_slot(state: SchedulerState) -> None:
    job = job_of(state)
    state.sessions[1].slots.tables[job.segment].state[job.slot] = SlotState.ANNOUNCED


def is_not_wanted_by_its_batch(state: SchedulerState) -> None:
    next(iter(state.jobs.values())).build.running.clear()


def forgets_an_announced_slot(state: SchedulerState) -> None:
    state.sessions[1].slots.announced.popitem()


def has_a_gap_in_its_window(state: SchedulerState) -> None:
    state.sessions[1].window.items[-1].k += 1


def has_too_long_a_window(state: SchedulerState) -> None:
    state.sessions[1].window.prefetch = 1


def announces_a_later_batch_first(state: SchedulerState) -> None:
    items = state.sessions[1].window.items
    items[0].announced, items[1].announced = False, True


def puts_two_batches_into_one_slot(state: SchedulerState) -> None:
    items = state.sessions[1].window.items
    items[1].build.place = items[0].build.place


def claims_twice(state: SchedulerState) -> None:
    ring = state.sessions[1].slots.tables[1]
    ring.generation[next(iter(state.sessions[1].slots.announced))[1]] += 1


def remembers_who_has_left(state: SchedulerState) -> None:
    state.leaving[2] = state.sessions[1]


def starts_a_worker_too_many(state: SchedulerState) -> None:
    state.pool.begin()


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (loses_its_job, "jobs and workers disagree"),
        (is_not_known_to_its_slot, "is not known to slot"),
        (writes_an_announced_slot, "writes a slot that is announced"),
        (is_not_wanted_by_its_batch, "does its batch want it"),
        (forgets_an_announced_slot, "has announced or lent"),
        (has_a_gap_in_its_window, "its window has gaps"),
        (has_too_long_a_window, "prefetch is 1"),
        (announces_a_later_batch_first, "a batch was announced before an earlier one"),
        (puts_two_batches_into_one_slot, "writes where its batch is not|two batches have one slot"),
        (claims_twice, "was told with another generation"),
        (remembers_who_has_left, "is still remembered"),
        (starts_a_worker_too_many, "places of a pool of 1"),
    ],
    ids=lambda one: one.__name__ if callable(one) else "",
)
def test_a_state_that_contradicts_itself_is_named(
    harm: Callable[[SchedulerState], None], complaint: str
) -> None:
    harness = busy()
    harm(harness.core.state)
    with pytest.raises(AssertionError, match=complaint):
        invariants.assert_invariants(harness.core.state)


def test_work_beside_an_idle_worker_is_named() -> None:
    harness = SchedulerHarness(workers=2)
    harness.attach(prefetch=1)
    state = harness.core.state
    build = state.sessions[1].window.items[0].build
    (number, running) = next((n, r) for n, r in state.jobs.items() if r.build is build)
    state.pool.answered(running.worker, number)
    build.redo([build.running.pop(number)])
    state.sessions[1].slots.tables[1].wrote(running.job.slot, number)
    del state.jobs[number]
    with pytest.raises(AssertionError, match="work at batch 0 and an idle worker"):
        invariants.assert_invariants(state)
