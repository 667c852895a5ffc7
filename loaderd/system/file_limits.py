"""File descriptors: how many this process may have, and so how many sessions it can hold."""

from __future__ import annotations

import os
import resource

# control socket, its process, two segments and their copies on the way out, ZeroMQ's connection,
# one to spare
A_SESSION = 8
A_WORKER = 4
# for connections without a hello, the log, the quarantine, and whatever a library opens for a
# moment
RESERVE = 128
MOST = 1 << 20


def raise_limit() -> int:
    """Raise RLIMIT_NOFILE to the hard limit; returns what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MOST if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def too_few(limit: int) -> str:
    """ "" or why no daemon can begin with so many."""
    least = in_use() + A_WORKER + RESERVE + A_SESSION
    return (
        (
            f"RLIMIT_NOFILE is {limit}, and a daemon needs at least {least}; raise the hard limit "
            "(ulimit -Hn)"
        )
        if limit < least
        else ""
    )


def in_use() -> int:
    """Descriptors that this process has open."""
    return len(os.listdir("/proc/self/fd")) - 1


def spare(count: int) -> bool:
    """Whether this process could open `count` more descriptors just now.

    RLIMIT_NOFILE may be lowered from outside, and a host may run out.
    """
    found: list[int] = []
    try:
        found.extend(os.dup(0) for _ in range(count))
    except OSError:
        return False
    finally:
        for fd in found:
            os.close(fd)
    return True


def shortage(count: int) -> str:
    """Why a session has no room just now; "" if it has.

    libzmq ends the process that it accepts a connection in without a free descriptor.
    """
    if spare(count):
        return ""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"the daemon needs {count} free file descriptors and has fewer: RLIMIT_NOFILE is "
        f"{limit}; raise its limit (ulimit -n)"
    )


def sessions_that_fit(limit: int, taken: int) -> int:
    """Sessions that can be held when `taken` of `limit` descriptors serve other ends."""
    return max(0, (limit - taken - RESERVE) // A_SESSION)
