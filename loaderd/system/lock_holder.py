"""Which process has the lock of a file, as far as the kernel shows it."""

from __future__ import annotations

import os

from loaderd.system import processes

LOCKS = "/proc/locks"
HIDDEN = "a process that is not to be seen from here (another container?)"


def holder(fd: int) -> str:
    """Who has the `flock` of a file, in words.

    Args:
        fd: The file.
    """
    inode = str(os.fstat(fd).st_ino)
    try:
        with open(LOCKS, encoding="ascii", errors="replace") as file:
            locks = [line.split() for line in file]
    except OSError:
        locks = []
    for _, kind, _, _, pid, place, *_ in (lock for lock in locks if len(lock) >= 6):
        if kind == "FLOCK" and place.rpartition(":")[2] == inode and pid.isdecimal():
            stopped = " (stopped; SIGCONT continues it)" * processes.stopped(int(pid))
            return f"pid {pid}{stopped}"
    return HIDDEN
