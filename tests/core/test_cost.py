"""What a batch costs, in calls of Python functions: it does not depend on what has nothing to do
with it.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from types import FrameType

import pytest

from loaderd_testing.scheduler_harness import SHAPE, SchedulerHarness


def calls_a_batch(harness: SchedulerHarness, batches: int = 20) -> float:
    """Of the scheduler, the client and the house between them, once all slots have been used."""
    count = 0
    harness.check = False

    def called(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call"

    for _ in range(12):
        harness.take()
    before = sys.getprofile()
    sys.setprofile(called)
    try:
        for _ in range(batches):
            harness.take()
    finally:
        sys.setprofile(before)
    return count / batches


def usual() -> float:
    harness = SchedulerHarness()
    harness.attach()
    return calls_a_batch(harness)


def test_a_hundred_idle_sessions_cost_a_batch_nothing() -> None:
    harness = SchedulerHarness()
    harness.check = False
    for session in range(1, 102):
        harness.attach(session)
    harness.finish()
    assert calls_a_batch(harness) == pytest.approx(usual(), rel=0.02)


@pytest.mark.parametrize("samples", [1_000, 1_000_000_000])
def test_a_large_dataset_costs_a_batch_nothing(samples: int) -> None:
    harness = SchedulerHarness()
    harness.attach(shape=replace(SHAPE, samples=samples))
    assert calls_a_batch(harness) <= usual() * 1.02


def test_a_longer_window_costs_a_batch_little() -> None:
    harness = SchedulerHarness()
    harness.attach(prefetch=64)
    assert calls_a_batch(harness) < 3 * usual()
