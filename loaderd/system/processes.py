"""What Linux tells and does about processes.

That is pidfds, parent death, orphans, states, memory, and what an ending means.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
from collections.abc import Collection
from dataclasses import dataclass

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36

OOM_FIRST = 1000  # the highest oom_score_adj: a process may raise its own

DUMP_SIGNAL = signal.SIGRTMIN + 11  # reserved: workers answer it with their stacks

# What a process does to itself. Any other signal came from outside.
OWN_SIGNALS = frozenset(
    {
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGABRT,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGTRAP,
        signal.SIGSYS,
    }
)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


def die_with_parent(parent: int) -> None:
    """This process gets SIGKILL when the thread that made it ends.

    Exits at once where `parent` (a pid) is not its parent any longer.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Descendants whose parent ends become children of this process instead of init's."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_first_for_memory() -> None:
    """When memory is short, the kernel kills this process, or one that it forks, before others.

    A worker is replaced and its rows are made again; of the daemon or a trainer that is not so.
    """
    # not where proc is read-only
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(OOM_FIRST))


def set_name(name: str) -> None:
    """The name that ps and top show for this thread, cut to 15 bytes."""
    buffer = ctypes.create_string_buffer(name.encode()[:15])
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NAME, buffer, 0, 0, 0)


def keep_niceness(leader: int) -> None:
    """Have a session that has just begun, led by this process, scheduled with our own niceness.

    Where the kernel schedules sessions as groups (autogroup), what its members inherit counts
    within the new group alone: a daemon started with `nice` would have workers that take as much as
    anybody.
    """
    nice = os.nice(0)
    if nice:
        with (
            contextlib.suppress(OSError),
            open(f"/proc/{leader}/autogroup", "w", encoding="ascii") as group,
        ):
            group.write(str(nice))


def ended(pidfd: int, timeout_s: float = 0.0) -> bool:
    """Whether the process of this pidfd is dead; it may be unreaped.

    Waits for that, up to timeout_s.
    """
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1e3))


def send_signal(pidfd: int, number: int) -> bool:
    """Send a signal through a pidfd: it can hit nobody else.

    False if the process is dead and reaped.
    """
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    return True


def kill_group(leader: int, session: int) -> None:
    """SIGKILL the process group that `leader` (a pid) leads, or led, in a session.

    A group of another session with that number, which has come to it after the leader was reaped,
    is left alone.
    """
    # Without a descriptor nobody can be found, and the fork server or the kernel's parent signal
    # must do.
    with contextlib.suppress(OSError):
        if any(_ids(pid) == (leader, session) for pid in _all_pids()):
            _kill_group(leader)


def kill_unreaped_group(leader: int) -> None:
    """SIGKILL the group of a leader that nobody has reaped yet.

    So its number cannot be another's.
    """
    _kill_group(leader)


def _kill_group(leader: int) -> None:
    # There may be nobody left in it, or only what has become another user's.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def reap_adopted(pid: int) -> int | None:
    """The wait status of a dead process whose parent is gone, if it has become our child.

    That is so where we are a container's init, where nobody else would ever reap it.

    Returns:
        None: it is somebody else's.
    """
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return status if found else None


def reap_others(known: Collection[int]) -> None:
    """Reap the dead children of this process that are not `known`.

    A container's init inherits orphans, and nobody else would ever reap them.
    """
    for pid in children():
        if pid not in known and _stat(pid)[:1] == ["Z"]:
            reap_adopted(pid)


def children() -> list[int]:
    """Pids of this process's children, zombies included."""
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return [pid for pid in _all_pids() if (fields := _stat(pid)) and int(fields[1]) == me]


def threads() -> int:
    """Threads of this process, native ones included."""
    return len(os.listdir("/proc/self/task"))


def stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal or a debugger; False where it is gone."""
    fields = _stat(pid)
    return bool(fields) and fields[0] in "Tt"


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for this signal, which would end it otherwise.

    Returns:
        False where the process is gone.
    """
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            caught = next((line for line in file if line.startswith(b"SigCgt:")), b"SigCgt: 0")
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
    except (OSError, ValueError, IndexError):
        return False


def anonymous_bytes(pid: int) -> int:
    """RssAnon + VmSwap of a process: what it holds for itself, without slots and database pages.

    0 where it is gone.
    """
    total = 0
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith((b"RssAnon:", b"VmSwap:")):
                    total += int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return 0
    return total


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the third on (state, ppid, pgrp, session, ...).

    They are empty where they cannot be had.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode("ascii").split()
    except OSError:  # it is gone, or we are out of descriptors
        return []


def _ids(pid: int) -> tuple[int, int]:
    """(process group, session) of a process; zeros where it is gone."""
    fields = _stat(pid)
    return (int(fields[2]), int(fields[3])) if fields else (0, 0)


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def was_killed(status: int | None) -> bool:
    """Whether this wait status tells of a SIGKILL."""
    return status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended.

    Attributes:
        own: As in WorkerDied.
        cause: As in WorkerDied.
    """

    own: bool
    cause: str


def ending(status: int | None, *, out_of_memory: bool = False) -> Ending:
    """What a wait status tells.

    Args:
        status: As of os.waitpid; None: nobody could learn it.
        out_of_memory: The cgroup's oom_kill count rose meanwhile.
    """
    if status is None:
        return Ending(False, "ended together with the fork server, status unknown")
    if os.WIFEXITED(status):
        return Ending(True, f"exit code {os.WEXITSTATUS(status)}")
    number = os.WTERMSIG(status)
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if number == signal.SIGKILL and out_of_memory:
        return Ending(True, f"{name} (out of memory)")
    return Ending(number in OWN_SIGNALS, name)
