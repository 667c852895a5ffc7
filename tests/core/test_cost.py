"""What a batch costs, in calls of Python functions: it does not depend on what has nothing to do with it."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import FrameType

import pytest

from loaderd_testing.scheduler_harness import SHAPE, House


def calls_a_batch(house: House, batches: int = 20) -> float:
    """Of the scheduler, the client and the house between them, once all slots have been used."""
    count = 0
    house.check = False

    def called(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call"

    for _ in range(12):
        house.take()
    before = sys.getprofile()
    sys.setprofile(called)
    try:
        for _ in range(batches):
            house.take()
    finally:
        sys.setprofile(before)
    return count / batches


def usual() -> float:
    house = House()
    house.attach()
    return calls_a_batch(house)


def test_a_hundred_idle_sessions_cost_a_batch_nothing() -> None:
    house = House()
    house.check = False
    for session in range(1, 102):
        house.attach(session)
    house.finish()
    assert calls_a_batch(house) == pytest.approx(usual(), rel=0.02)


@pytest.mark.parametrize("samples", [1_000, 1_000_000_000])
def test_a_large_dataset_costs_a_batch_nothing(samples: int) -> None:
    house = House()
    house.attach(shape=replace(SHAPE, samples=samples))
    assert calls_a_batch(house) <= usual() * 1.02


def test_a_longer_window_costs_a_batch_little() -> None:
    house = House()
    house.attach(prefetch=64)
    assert calls_a_batch(house) < 3 * usual()
