"""How quick a worker is, from what it answers."""

from __future__ import annotations

import pytest

from loaderd.core.worker_pace import WorkerPace

WORK_S = 0.02


def after(jobs: int, own_s: float, passed_s: float | None = None) -> WorkerPace:
    """Of a worker that works own_s for 20 ms of work, and answers passed_s after it was sent it."""
    pace, now_s = WorkerPace(), 0.0
    for _ in range(jobs):
        now_s += own_s if passed_s is None else passed_s
        pace.answered(WORK_S, own_s, now_s)
    return pace


@pytest.mark.parametrize("slowness", [0.5, 1.0, 2.0, 10.0, 100.0])
def test_a_workers_speed_is_found_and_told_from_its_latency(slowness: float) -> None:
    pace = after(60, slowness * WORK_S, slowness * WORK_S + 0.05)
    assert pace.slowness == pytest.approx(slowness, rel=0.02)
    assert pace.lag_s == pytest.approx(0.05, rel=0.02)
    assert pace.takes_s(1.0) == pytest.approx(slowness + 0.05, rel=0.02)


@pytest.mark.parametrize(
    ("own_s", "passed_s", "tier"),
    [
        (0.02, 0.02, 0),
        (0.027, 0.027, 0),
        (0.015, 0.015, 0),
        (0.04, 0.04, 1),
        (0.16, 0.16, 3),
        (0.005, 0.005, -2),
        (0.02, 0.08, 2),
    ],
)
def test_a_tier_takes_twice_as_long_as_the_one_before(
    own_s: float, passed_s: float, tier: int
) -> None:
    assert after(60, own_s, passed_s).tier == tier


def test_one_odd_job_makes_no_worker_slow_and_two_in_a_row_do() -> None:
    pace = after(60, WORK_S)
    tiers: list[int] = []
    for _ in range(2):
        pace.answered(WORK_S, 100 * WORK_S, pace.begun_s + 100 * WORK_S)
        tiers.append(pace.tier)
    assert tiers == [0, 7]
    for _ in range(30):
        pace.answered(WORK_S, WORK_S, pace.begun_s + WORK_S)
    assert pace.tier == 0


def test_a_daemon_that_was_late_once_makes_no_worker_slow() -> None:
    pace = after(60, WORK_S)
    pace.answered(WORK_S, WORK_S, pace.begun_s + 60.0)
    pace.answered(WORK_S, WORK_S, pace.begun_s + WORK_S)
    assert pace.tier == 0


def test_a_link_that_all_share_makes_none_of_them_slow() -> None:
    pace, now_s = WorkerPace(), 0.0
    for _ in range(60):
        now_s += 11 * WORK_S
        pace.answered(WORK_S, WORK_S, now_s, usual_lag_s=10 * WORK_S)
    assert pace.tier == 0
    assert pace.takes_s(WORK_S) == pytest.approx(11 * WORK_S, rel=0.02)


def test_many_short_jobs_tell_no_more_than_one_long_one() -> None:
    short, long = WorkerPace(), WorkerPace()
    for _ in range(20):
        short.answered(WORK_S / 20, WORK_S / 10, short.begun_s + WORK_S / 10)
    long.answered(WORK_S, 2 * WORK_S, 2 * WORK_S)
    assert short.slowness == pytest.approx(long.slowness, rel=0.02)


def test_a_piece_of_a_slow_worker_takes_it_as_long_as_others_take_for_theirs() -> None:
    assert after(60, WORK_S).share == 1.0
    assert after(60, 8 * WORK_S).share == pytest.approx(1 / 8, rel=0.02)
    assert after(60, WORK_S / 8).share == 1.0
    assert after(60, WORK_S, 8 * WORK_S).share <= 1.0  # far away, and as quick as others


def test_a_job_whose_work_is_unknown_tells_nothing() -> None:
    pace = WorkerPace()
    pace.answered(None, 5.0, 5.0)
    assert pace == WorkerPace(begun_s=5.0)


def test_two_quick_jobs_in_a_row_make_a_slow_worker_a_usual_one() -> None:
    pace = after(60, 100 * WORK_S)
    for _ in range(2):
        pace.answered(WORK_S, WORK_S / 2, pace.begun_s + WORK_S)
    assert pace.slowness == pytest.approx(1.0)
