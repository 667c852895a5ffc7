"""What a run of the tests says of its costs."""

from __future__ import annotations

import pytest

from loaderd_testing.costs import FEWEST_FILES, lines


def report(file: str, cpu_s: float) -> pytest.TestReport:
    made = pytest.TestReport(f"{file}::test_a", (file, 1, "test_a"), {}, "passed", None, "call")
    made.cpu_s = cpu_s  # type: ignore[attr-defined]  # as spend does
    return made


def test_the_most_expensive_files_come_first_with_all_their_tests() -> None:
    reports = [report(f"tests/test_{n}.py", n) for n in range(FEWEST_FILES)]
    told = list(lines([*reports, report("tests/test_7.py", 100), "no report"]))
    assert told[0].split()[:2] == [str(100 + sum(range(FEWEST_FILES))), "s"]
    assert [line.split() for line in told[1:3]] == [
        ["107", "s", "tests/test_7.py"],
        [str(FEWEST_FILES - 1), "s", f"tests/test_{FEWEST_FILES - 1}.py"],
    ]
    assert len(told) == 11


def test_a_run_of_a_few_files_tells_no_costs() -> None:
    assert list(lines([report("tests/test_a.py", 3)])) == []
