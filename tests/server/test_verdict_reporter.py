"""A line a minute says who waits for whom, while there are trainers."""

from __future__ import annotations

from typing import Any

import pytest

from loaderd.core.verdict import Verdict, idle
from loaderd.server.verdict_reporter import EVERY_S, FIRST_S, VerdictReporter
from loaderd_testing.fake_time import FakeLoop

READ, TRAINER = (
    Verdict("read-bound", "read-bound: slow", 0.5),
    Verdict("trainer-bound", "trainer-bound: fine", 0.0),
)


class Report:
    def __init__(self) -> None:
        self.loop: Any = FakeLoop()
        self.verdicts: list[Verdict] = []
        self.lines: list[str] = []
        self.told: list[str] = []
        self.reporter = VerdictReporter(
            self.loop,
            lambda: self.verdicts,
            lambda level, event, text, **_: self.lines.append(text),
            self.told.append,
        )


@pytest.fixture
def report() -> Report:
    return Report()


def test_nothing_is_said_and_no_timer_set_without_a_trainer(report: Report) -> None:
    assert report.loop.waiting == 0
    report.reporter.session_attached()
    report.loop.advance(10 * EVERY_S)
    assert (report.lines, report.loop.waiting) == ([], 0)


def test_the_trainer_that_waits_most_is_told_of_each_minute(report: Report) -> None:
    report.verdicts = [TRAINER, READ]
    report.reporter.session_attached()
    report.reporter.session_attached()
    report.loop.advance(FIRST_S)
    report.loop.advance(2 * EVERY_S)
    line = "read-bound: slow (of 2 trainers the one that waits most)"
    assert report.lines == [line] * 3
    assert report.told == [f"STATUS={line}"] * 3
    report.verdicts = []
    report.loop.advance(2 * EVERY_S)
    assert (len(report.lines), report.loop.waiting) == (3, 0)


def test_a_trainer_that_rests_is_told_of_once(report: Report) -> None:
    report.verdicts = [idle(70.0)]
    report.reporter.session_attached()
    report.loop.advance(FIRST_S + 3 * EVERY_S)
    report.verdicts = [TRAINER]
    report.loop.advance(EVERY_S)
    report.verdicts = [idle(80.0)]
    report.loop.advance(EVERY_S)
    assert [line.partition(":")[0] for line in report.lines] == ["idle", "trainer-bound", "idle"]
