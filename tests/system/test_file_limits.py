from __future__ import annotations

import os
import re

import pytest

from loaderd.system import file_limits


def test_a_limit_that_no_daemon_can_begin_with_is_told_with_what_it_needs() -> None:
    text = file_limits.too_few(100)
    found = re.search(
        r"^RLIMIT_NOFILE is 100, and a daemon needs at least (\d+); raise the hard limit \(ulimit "
        r"-Hn\)$",
        text,
    )
    assert found
    least = int(found[1])
    assert file_limits.too_few(least) == ""
    assert file_limits.too_few(least - 1).startswith(f"RLIMIT_NOFILE is {least - 1}, ")


@pytest.mark.parametrize(("limit", "taken", "sessions"), [(1024, 100, 99), (100, 90, 0)])
def test_sessions_are_counted_by_what_is_left_for_them(
    limit: int, taken: int, sessions: int
) -> None:
    assert file_limits.sessions_that_fit(limit, taken) == sessions


def test_descriptors_are_in_use_while_they_are_open() -> None:
    before = file_limits.in_use()
    fd = os.open("/dev/null", os.O_RDONLY)
    assert file_limits.in_use() == before + 1
    os.close(fd)
