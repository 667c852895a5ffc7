"""Files that are locked: whether they are still there, and which process has the lock."""

from __future__ import annotations

import os

from loaderd.system import processes

LOCKS = "/proc/locks"
HIDDEN = "a process that is not to be seen from here (another container?)"


def lies_at(fd: int, path: str) -> bool:
    """Whether an open file still lies at a path.

    Between opening it and getting its lock another process may have removed or renamed it. Then
    the lock is one on a name that is gone.

    Args:
        fd: The file.
        path: Where it was opened or made.
    """
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except OSError:
        return False


def holder(fd: int) -> str:
    """Who has the `flock` of a file, in words, as far as the kernel shows it.

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
