"""What the kernel says about processes, and what an ending means."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from loaderd.engine.oom import OomWatch
from loaderd.system import processes
from loaderd_testing.deadlines import DEADLINE_S, until


@pytest.mark.parametrize(
    ("status", "oom", "own", "cause"),
    [
        (0, False, True, "exit code 0"),
        (3 << 8, False, True, "exit code 3"),
        (signal.SIGSEGV, False, True, "SIGSEGV"),
        (signal.SIGBUS, False, True, "SIGBUS"),
        (signal.SIGABRT | 0x80, False, True, "SIGABRT"),
        (signal.SIGFPE, False, True, "SIGFPE"),
        (signal.SIGILL, False, True, "SIGILL"),
        (signal.SIGKILL, False, False, "SIGKILL"),
        (signal.SIGKILL, True, True, "SIGKILL (out of memory)"),
        (signal.SIGTERM, True, False, "SIGTERM"),
        (50, False, False, "signal 50"),
    ],
)
def test_an_ending_says_whose_doing_it_was(status: int, oom: bool, own: bool, cause: str) -> None:
    assert processes.ending(status, out_of_memory=oom) == processes.Ending(own, cause)


def test_an_ending_that_nobody_could_learn_is_nobodys_fault() -> None:
    assert not processes.ending(None).own


def test_a_pidfd_tells_the_end_of_a_process_that_is_not_reaped() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    pidfd = os.pidfd_open(child.pid)
    assert not processes.ended(pidfd)
    assert processes.send_signal(pidfd, signal.SIGKILL)
    assert processes.ended(pidfd, 20)
    assert processes.send_signal(pidfd, signal.SIGKILL)  # a zombie bears it
    child.wait()
    assert not processes.send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)


def test_a_stopped_process_is_told_from_one_that_sleeps() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    assert not processes.stopped(child.pid)
    child.send_signal(signal.SIGSTOP)
    until("its stop", lambda: processes.stopped(child.pid))
    child.kill()
    child.wait()
    assert not processes.stopped(child.pid)
    assert processes.anonymous_bytes(child.pid) == 0


def test_anonymous_memory_grows_with_what_is_written() -> None:
    before = processes.anonymous_bytes(os.getpid())
    hoard = bytearray(os.urandom(1 << 20) * 40)
    assert processes.anonymous_bytes(os.getpid()) - before > 35 << 20
    del hoard


def test_a_group_is_killed_in_its_own_session_only() -> None:
    child = subprocess.Popen(["sh", "-c", "sleep 1000 & wait"], start_new_session=True)
    processes.kill_group(child.pid, child.pid + 1)
    assert child.poll() is None
    processes.kill_group(child.pid, child.pid)
    assert child.wait(DEADLINE_S) == -signal.SIGKILL
    processes.kill_group(child.pid, child.pid)  # nobody is there any longer


def test_children_are_found_until_they_are_reaped() -> None:
    child = subprocess.Popen(["true"])
    until("the child", lambda: child.pid in processes.children())
    child.wait()
    assert child.pid not in processes.children()


def test_the_dead_are_reaped_unless_somebody_waits_for_them() -> None:
    ours, orphan, living = (subprocess.Popen(["sleep", "1000"]) for _ in range(3))
    for one in (ours, orphan):
        one.kill()
        os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
    processes.reap_others({ours.pid})
    assert {ours.pid, living.pid} <= set(processes.children())
    assert orphan.pid not in processes.children()
    living.kill()
    assert [ours.wait(), living.wait()] == [-signal.SIGKILL] * 2
    orphan.wait()  # whose status is gone


def test_only_a_child_of_ours_can_be_reaped() -> None:
    assert processes.reap_adopted(os.getpid()) is None
    pid = os.fork()
    if pid == 0:
        os._exit(5)
    statuses: list[int] = []

    def reaped() -> bool:
        status = processes.reap_adopted(pid)
        statuses.extend([status] if status is not None else [])
        return bool(statuses)

    until("its end", reaped)
    assert os.waitstatus_to_exitcode(statuses[0]) == 5


def test_one_rise_of_the_oom_count_explains_one_death() -> None:
    count = [4]
    watch = OomWatch(lambda: count[0])
    watch.look(100.0)
    assert not watch.rose(100.5)
    count[0] = 5
    assert watch.rose(101.0)
    assert not watch.rose(101.0)


def test_an_old_rise_of_the_oom_count_explains_nothing() -> None:
    count = [4]
    watch = OomWatch(lambda: count[0])
    watch.look(100.0)
    count[0] = 5
    for now_s in (103.0, 106.0, 109.0):
        watch.look(now_s)
    assert not watch.rose(109.5)


def test_a_rise_that_was_looked_at_a_moment_ago_still_counts() -> None:
    count = [4]
    watch = OomWatch(lambda: count[0])
    watch.look(100.0)
    count[0] = 5
    watch.look(103.0)
    assert watch.rose(103.01)
