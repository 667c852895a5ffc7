"""The worker process that an actor starts: how its end is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loaderd.system import processes
from loaderd.worker.remote.child import ChildWorker
from loaderd_testing.deadlines import DEADLINE_S, until
from loaderd_testing.pipes import line_of
from loaderd_testing.python_processes import python


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


ACTOR = """
import sys
from pathlib import Path
from loaderd.worker.remote.child import ChildWorker
child = ChildWorker({}, sys.path)
print(Path("/proc/thread-self/children").read_text(), flush=True)
sys.stdin.read()
"""


def test_what_it_has_started_ends_with_an_actor_that_is_killed() -> None:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with python("-c", ACTOR, **pipes) as actor:
        pid = int(line_of(actor))
        until("a group of its own", lambda: os.getpgid(pid) == pid)
        with subprocess.Popen(
            ["sleep", "1000"],
            preexec_fn=lambda: os.setpgid(0, pid),
        ) as started:
            actor.kill()
            try:
                assert started.wait(DEADLINE_S) == -signal.SIGKILL
            finally:
                started.kill()


def _children() -> set[int]:
    return set(map(int, Path("/proc/thread-self/children").read_text().split()))


def _open() -> set[int]:
    """Open descriptors, without the one that lists them."""
    return {int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}
