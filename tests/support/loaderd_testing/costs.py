"""Processor time of the tests, by file: what a run of all of them ends with."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from operator import itemgetter

import pytest

SHOWN = 10
FEWEST_FILES = 50  # of a run whose costs are told

_spent_s = 0.0  # by this process and its children until the last report
_added_s = 0.0  # by processes that are no children


def spend(report: pytest.TestReport) -> None:
    """Gives a report the processor time since the one before it.

    That is what its test has used in this process and in those of its children that have ended.
    Reports that come from another process of the run keep theirs.
    """
    global _spent_s
    now_s = sum(os.times()[:4]) + _added_s
    report.cpu_s = now_s - _spent_s  # type: ignore[attr-defined]  # xdist carries it over
    _spent_s = now_s


def add(seconds: float) -> None:
    """A process that is no child of this one has ended, and had used so much."""
    global _added_s
    _added_s += seconds


def begin() -> None:
    """What this process has spent so far is no test's."""
    global _spent_s
    _spent_s = sum(os.times()[:4]) + _added_s


def lines(reports: Iterable[object]) -> Iterator[str]:
    """The files that took the most processor time, most first; none of a short run."""
    spent: defaultdict[str, float] = defaultdict(float)
    for report in reports:
        if isinstance(report, pytest.TestReport):
            spent[report.nodeid.partition("::")[0]] += getattr(report, "cpu_s", 0.0)
    if len(spent) < FEWEST_FILES:
        return
    yield f"{sum(spent.values()):7.0f} s in all, of these files the most:"
    for name, seconds in sorted(spent.items(), key=itemgetter(1), reverse=True)[:SHOWN]:
        yield f"{seconds:7.0f} s {name}"
