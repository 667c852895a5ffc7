"""The page's curves: measured while there are trainers, and no longer than a quarter of an hour."""

from __future__ import annotations

from typing import Any

from loaderd.core.verdict import Verdict
from loaderd.server.page.history import EVERY_S, KEPT_S, History
from loaderd_testing.fake_time import FakeLoop


def verdict(rate: float, wait: float) -> Verdict:
    return Verdict("read-bound", "read-bound", wait, batches_per_s=rate)


def test_rates_are_those_of_all_trainers_and_the_wait_is_that_of_the_one_that_waits_most() -> None:
    loop: Any = FakeLoop()
    history = History(loop, lambda: [verdict(3, 0.25), verdict(4, 0.5)])
    assert (history.ages(), loop.waiting) == ([], 0)
    history.session_attached()
    history.session_attached()
    loop.advance(2 * EVERY_S)
    assert history.ages() == [(EVERY_S, 7.0, 0.5), (0.0, 7.0, 0.5)]


def test_nothing_is_measured_after_the_last_trainer_and_again_with_the_next() -> None:
    loop: Any = FakeLoop()
    verdicts = [verdict(1, 0.0)]
    history = History(loop, lambda: verdicts)
    history.session_attached()
    loop.advance(EVERY_S)
    verdicts.clear()
    loop.advance(10 * EVERY_S)
    assert (len(history.ages()), loop.waiting) == (1, 0)
    verdicts.append(verdict(2, 0.0))
    history.session_attached()
    loop.advance(EVERY_S)
    assert [rate for _, rate, _ in history.ages()] == [1.0, 2.0]


def test_what_is_older_than_a_quarter_of_an_hour_is_forgotten() -> None:
    loop: Any = FakeLoop()
    history = History(loop, lambda: [verdict(1, 0.0)])
    history.session_attached()
    loop.advance(KEPT_S * 3)
    assert len(history.ages()) == KEPT_S / EVERY_S
    assert history.ages()[0][0] < KEPT_S
