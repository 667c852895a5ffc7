"""The tests themselves: they run where a folder has a long name, wait long enough, and say what
they look for.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from loaderd_testing.deadlines import DEADLINE_S

TESTS = Path(__file__).parent
BY_HAND = ("bench", "fuzz", "mutants")  # no tests, or with limits of their own
SHORTEST_MATCH = 5  # a shorter text is in many a message

# One that opens sockets in its own folder, one that starts a daemon at its default socket, one that
# does so beside a config, one with workers.
EACH_KIND = (
    "client/test_loader.py::test_fields_are_chosen_and_ordered",
    "cli/test_status.py",
    "faults/system/test_exact.py",
    "engine/test_launch.py",
)


def calls() -> Iterator[tuple[str, ast.Call]]:
    """(where, call) of all tests."""
    for path in sorted(TESTS.rglob("*.py")):
        if not {*path.relative_to(TESTS).parts} & {*BY_HAND, "storm"}:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    yield f"{path.relative_to(TESTS)}:{node.lineno}", node


def test_each_kind_of_test_passes_below_a_folder_with_a_long_name(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * (90 - len(str(tmp_path)) - 1))
    folder.mkdir()
    assert len(str(folder)) == 90
    names = [str(TESTS / name) for name in EACH_KIND]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {
        "TMPDIR": str(folder)
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        *names,
    ]
    done = subprocess.run(
        command, cwd=TESTS.parent, env=env, capture_output=True, text=True, timeout=2 * DEADLINE_S
    )
    assert done.returncode == 0, done.stdout


def test_a_wait_has_the_deadline_of_all_and_no_short_one_of_its_own() -> None:
    found = 0
    for where, call in calls():
        name = (
            call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        )
        waits = {"wait": 0, "join": 0, "until": 2, "communicate": 1}  # place of the deadline
        limits = [
            word.value
            for word in call.keywords
            if word.arg in ("timeout", "deadline_s") and name in (*waits, "run", "check_output")
        ]
        limits += call.args[waits[name] : waits[name] + 1] if name in waits else []
        for limit in limits:
            found += 1
            short = (
                isinstance(limit, ast.Constant)
                and isinstance(limit.value, int | float)
                and limit.value >= 1
            )
            assert not short or where.startswith("faults/freezes/torch_side.py"), where
    assert found > 100, "the search finds nothing"


def test_a_match_says_what_it_looks_for_and_is_not_in_the_folder_s_name() -> None:
    found = 0
    for path in sorted(TESTS.rglob("test_*.py")):
        for test in ast.walk(ast.parse(path.read_text())):
            if isinstance(test, ast.FunctionDef) and test.name.startswith("test_"):
                for word in (
                    word
                    for node in ast.walk(test)
                    if isinstance(node, ast.Call)
                    for word in node.keywords
                ):
                    if word.arg == "match" and isinstance(word.value, ast.Constant):
                        found += 1
                        text, where = (
                            str(word.value.value),
                            f"{path.relative_to(TESTS)}:{word.value.lineno}: {word.value.value!r}",
                        )
                        assert len(text) >= SHORTEST_MATCH, where
                        assert not text.isdigit(), where
                        assert text not in test.name[:30], (
                            f"{where}: pytest's folder for the test, and so each path below it, "
                            "matches"
                        )
    assert found > 100, "the search finds nothing"
