"""What /proc says of a storm's processes."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from loaderd_testing.daemon_harness import alive, children


def family(daemon: int) -> tuple[list[int], list[int]]:
    """(templates, workers) of a daemon."""
    templates = children(daemon)
    return templates, [worker for template in templates for worker in children(template)]


def fds(pid: int) -> dict[str, int]:
    """How many descriptors of each kind a process has open: "socket", "memfd", "pidfd", "pipe", or
    the file's path.
    """
    found: dict[str, int] = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
            kind = (
                target.split(":")[0].lstrip("/")
                if ":" in target and not target.startswith("/dev")
                else target
            )
            found[kind] = found.get(kind, 0) + 1
    return found


def rss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


def signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def cont(pids: list[int]) -> None:
    signal_all([pid for pid in pids if alive(pid)], signal.SIGCONT)
