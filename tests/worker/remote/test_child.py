"""The worker process that an actor starts: how its end is told."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from loaderd.system import processes
from loaderd.worker.remote.child import ChildWorker


def test_a_process_that_has_its_number_afterwards_is_not_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(processes, "kill_unreaped_group", killed.append)
    before, children = _open(), _children()
    child = ChildWorker({}, sys.path)
    try:
        (pid,) = _children() - children
        os.kill(pid, signal.SIGKILL)
        assert child.death().status == signal.SIGKILL
        assert child.death() is child.death()
        assert killed == [pid]
    finally:
        child.channel.close()
        for fd in _open() - before:
            os.close(fd)


def _children() -> set[int]:
    return set(map(int, Path("/proc/thread-self/children").read_text().split()))


def _open() -> set[int]:
    """Open descriptors, without the one that lists them."""
    return {int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}
