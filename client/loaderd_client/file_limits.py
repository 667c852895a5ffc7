"""Whether this process may open the descriptors that a session needs."""

from __future__ import annotations

import fcntl
import resource

from loaderd_wire.errors import RefusedError

ZEROMQ = 8  # a context with one I/O thread, and a DEALER that is connected
A_SESSION = ZEROMQ + 2  # the control socket, and the segment's memory until it is mapped
SPARE = 2  # what others open meanwhile
TO_READ = 3  # a config file, and a module that is imported for it


def shortage(needed: int) -> str:
    """ "" if so many more can be opened, else what to tell the user.

    Opens nothing itself: another thread may be short of them, too.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    free = 0
    for number in range(limit if limit != resource.RLIM_INFINITY else 0):
        try:
            fcntl.fcntl(number, fcntl.F_GETFD)
        except OSError:
            free += 1
            if free == needed:
                break
    if free == needed or limit == resource.RLIM_INFINITY:
        return ""
    return (
        f"loaderd needs {needed} free file descriptors and finds {free}: this process may have "
        f"{limit} (ulimit -n), and all others are in use; "
        "raise the limit, or close files"
    )


def require(needed: int) -> None:
    """Raises RefusedError."""
    short = shortage(needed)
    if short:
        raise RefusedError(short)
