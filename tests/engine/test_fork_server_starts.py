"""How the next start of a fork server is tried, after those before it."""

from __future__ import annotations

import pytest

from loaderd.engine.fork_server_starts import BACKOFF_S, HOPELESS, ForkServerStarts


def test_each_start_that_came_to_nothing_imports_less_ahead_and_waits_longer() -> None:
    starts = ForkServerStarts(spawn=False)
    tried = []
    for _ in range(len(BACKOFF_S) + 1):
        starts.begin()
        tried.append((starts.preload, starts.pause_s))
        starts.failed(1, "SIGKILL")
    assert [preload for preload, _ in tried[:4]] == ["user", "base", "none", "none"]
    assert [pause_s for _, pause_s in tried] == [*BACKOFF_S, BACKOFF_S[-1]]


def test_one_that_was_ready_begins_the_count_anew_and_imports_no_more_than_it_did() -> None:
    starts = ForkServerStarts(spawn=False)
    for _ in range(HOPELESS):
        starts.begin()
        starts.failed(1, "SIGKILL")
    assert starts.hopeless
    starts.begin()
    starts.ready()
    assert (starts.hopeless, starts.pause_s, starts.preload) == (False, 0.0, "none")


def test_where_workers_are_spawned_nothing_is_imported_ahead() -> None:
    assert ForkServerStarts(spawn=True).preload == "none"


@pytest.mark.parametrize(
    ("fault", "slow", "level"),
    [
        ("ModuleNotFoundError", False, "debug"),
        ("", False, "warning"),
        ("not ready", True, "warning"),
    ],
)
def test_user_code_that_cannot_be_imported_ahead_is_no_warning_but_all_else_is(
    fault: str, slow: bool, level: str
) -> None:
    starts = ForkServerStarts(spawn=False)
    starts.begin()
    if slow:
        starts.too_slow(fault)
    else:
        starts.fault = fault
    assert starts.failed(7, "exit code 1") == (
        level,
        f"fork server 7 ended while importing 'user' (exit code 1): {fault or 'no reason given'}",
    )


def test_where_it_gave_no_reason_what_it_printed_last_is_told() -> None:
    starts = ForkServerStarts(spawn=False)
    starts.begin()
    starts.last_words = "no licence"
    assert starts.failed(7, "exit code 3") == (
        "warning",
        "fork server 7 ended while importing 'user' (exit code 3): no licence",
    )
