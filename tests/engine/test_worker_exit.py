"""Why a worker has ended: its wait status, and what was known before."""

from __future__ import annotations

import signal

import pytest

from loaderd.engine.worker_exit import LEFT, ExitReason

KILLED = int(signal.SIGKILL)


@pytest.mark.parametrize("own", [True, False])
def test_a_worker_that_we_killed_has_our_reason(own: bool) -> None:
    reason = ExitReason(killed="it hung", own_fault=own)
    assert reason.judge(KILLED, out_of_memory=False) == (own, "killed: it hung")


def test_a_worker_that_crashed_before_our_kill_has_its_own_reason() -> None:
    own, cause = ExitReason(killed="it hung").judge(int(signal.SIGSEGV), out_of_memory=False)
    assert own
    assert "SIGSEGV" in cause


def test_a_worker_that_was_asked_to_end_has_done_nothing_wrong() -> None:
    assert ExitReason(told_to_leave=True).judge(0, out_of_memory=False) == (False, LEFT)


def test_the_first_line_of_the_last_words_is_told_with_the_cause() -> None:
    _, cause = ExitReason(last_words="no module x\ntraceback").judge(1 << 8, out_of_memory=False)
    assert cause.endswith(": no module x")


def test_the_end_of_a_worker_elsewhere_is_that_of_who_stands_for_it() -> None:
    reason = ExitReason(remote=True, remote_end=(int(signal.SIGSEGV), False))
    assert reason.judge(70 << 8, out_of_memory=False) == (True, "SIGSEGV")
    reason.remote_end = KILLED, True
    assert reason.judge(70 << 8, out_of_memory=False) == (True, "SIGKILL (out of memory)")


def test_who_stands_for_a_worker_that_is_lost_ends_of_its_own_doing() -> None:
    reason = ExitReason(remote=True, last_words="node a is gone\nmore")
    assert reason.judge(70 << 8, out_of_memory=False) == (False, "node a is gone")
    own, cause = ExitReason(remote=True).judge(1 << 8, out_of_memory=False)
    assert (own, cause) == (False, "the process that stands for it here has ended: exit code 1")
