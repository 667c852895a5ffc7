"""What is counted of a session, over which time, and what a pause is."""

from __future__ import annotations

import pytest

from loaderd.core.jobs import Done, Job, JobKind
from loaderd.core.usage import WINDOW_S, PoolUsage, SessionUsage, UsageSample, busy_workers


class Watched:
    """A session that is told of steps; the clock is ours."""

    def __init__(self) -> None:
        self.usage, self.pool, self.now_s, self.waited_s = SessionUsage(), PoolUsage(), 100.0, 0.0

    def step(self, step_s: float, wait_s: float = 0.0, batches: int = 1) -> None:
        self.now_s += step_s
        self.waited_s += wait_s
        self.usage.told(self.now_s, batches, False, self.waited_s)
        if self.usage.sample_due(self.now_s):
            self.usage.sample(self.now_s, self.pool)

    @property
    def window(self) -> UsageSample:
        made = self.usage.window(self.now_s, self.pool)
        assert made is not None
        return made


def test_the_window_begins_with_the_first_batch_and_forgets_what_is_old() -> None:
    watched = Watched()
    watched.step(0.0, batches=0)
    watched.step(20.0, 20.0, batches=0)
    assert watched.usage.window(watched.now_s, watched.pool) is None
    watched.step(0.5, 0.5)
    for _ in range(1000):
        watched.step(0.1, 0.05)
    for _ in range(1000):
        watched.step(0.1, 0.01)
    window = watched.window
    assert WINDOW_S <= window.counted_s <= WINDOW_S + 2
    assert window.batches == pytest.approx(10 * window.counted_s)
    assert window.waited_s == pytest.approx(0.1 * window.counted_s)


def test_a_slow_trainer_keeps_a_window_of_several_batches() -> None:
    watched = Watched()
    for _ in range(40):
        watched.step(60.0, 6.0)
    assert watched.window.batches == 8
    assert watched.window.counted_s == pytest.approx(480)


def test_a_pause_of_the_training_counts_as_no_time() -> None:
    watched = Watched()
    for _ in range(20):
        watched.step(0.1)
    watched.usage.hold(True, watched.now_s)
    watched.now_s += 30.0
    assert watched.usage.silent_s(watched.now_s) == pytest.approx(30.0)
    assert watched.window.counted_s == pytest.approx(1.9)
    watched.step(0.0, 2.0)
    watched.usage.hold(False, watched.now_s)
    assert watched.window.counted_s == pytest.approx(3.9)
    assert watched.window.waited_s == pytest.approx(2.0)
    assert watched.window.held_s == pytest.approx(0.0)


def test_a_trainer_that_waits_is_not_silent_and_its_wait_counts_at_once() -> None:
    watched = Watched()
    for _ in range(20):
        watched.step(0.1)
    watched.usage.told(watched.now_s, 0, True, watched.waited_s)
    watched.now_s += 40.0
    assert watched.usage.silent_s(watched.now_s) == 0.0
    assert watched.window.waited_s == pytest.approx(40.0)
    assert watched.window.counted_s == pytest.approx(41.9)


def test_a_client_cannot_have_waited_longer_than_the_time_that_went_by() -> None:
    watched = Watched()
    for _ in range(10):
        watched.step(0.1, 5.0)
    assert watched.window.waited_s <= watched.window.counted_s


def test_an_older_client_says_no_wait() -> None:
    usage = SessionUsage()
    usage.told(1.0, 0, False, -1.0)
    usage.told(2.0, 1, True, -1.0)
    assert not usage.knows_wait
    usage.told(3.0, 1, False, 0.0)
    assert usage.knows_wait


def test_time_without_a_free_slot_is_counted_once() -> None:
    watched = Watched()
    watched.step(1.0)
    for held in (True, True, False, False):
        watched.now_s += 1.0
        watched.usage.hold(held, watched.now_s)
    assert watched.window.held_s == pytest.approx(2.0)


def test_rows_are_counted_by_those_who_made_them() -> None:
    watched = Watched()
    watched.step(1.0)
    for kind in JobKind:
        job = Job(1, kind, "train", 1, 0, 0, 0, 0, 8, 2, 6)
        watched.usage.answered(job, Done(1, (), (), 0, 0, 1.0, 2.0, 3.0, 4.0))
    window = watched.window
    assert window.rows == 8  # of FILL and BATCH
    assert (window.read_s, window.decode_s, window.transform_s, window.write_s) == (4, 8, 12, 16)


def test_short_jobs_count_their_own_time_and_long_ones_while_they_run() -> None:
    quiet = UsageSample(
        10.0, 0, 0.0, 10.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, busy_s=15.0, done_s=5.0, jobs=1000
    )
    assert busy_workers(quiet) == pytest.approx(0.5)
    assert busy_workers(quiet._replace(jobs=10)) == pytest.approx(1.5)
    assert busy_workers(quiet._replace(jobs=0, done_s=0.0)) == pytest.approx(1.5)
    assert busy_workers(quiet._replace(counted_s=0.0)) == 0.0
