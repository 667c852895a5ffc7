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
    found = os.fstat(fd)
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    try:
        with open(LOCKS, encoding="ascii", errors="replace") as file:
            locks = [line.split() for line in file]
    except OSError:
        locks = []
    holders = {
        place: int(pid)
        for _, kind, _, _, pid, place, *_ in (lock for lock in locks if len(lock) >= 6)
        if kind == "FLOCK" and place.endswith(f":{found.st_ino}") and pid.isdecimal()
    }
    # of some file systems (btrfs, overlayfs) the kernel shows another device than a file has
    pid = holders.get(f"{device}:{found.st_ino}") or next(iter(holders.values()), 0)
    if not pid:
        return HIDDEN
    return f"pid {pid}" + " (stopped; SIGCONT continues it)" * processes.stopped(pid)
