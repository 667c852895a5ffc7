"""A fork server's process, from its start on.

The engine makes it; or `serve` ahead of the engine, because its own imports take as long as a fork
server's.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loaderd.config.stream import StreamConfig
from loaderd.system.processes import keep_niceness

BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv.pop(1)); from loaderd.worker.__main__ "
    "import main; main()"
)
# Each is respected where the user has set it.
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",  # else iterating over a set of strings differs from worker to worker
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "BLIS_NUM_THREADS": "1",
    "OPENCV_FOR_THREADS_NUM": "1",
}
# these libraries go by OMP_NUM_THREADS unless told otherwise
FOLLOW_OMP = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
# glibc's memcpy past the caches, from 128 KiB on. Rows that are only copied into a slot are not
# read again by who copies them: without first fetching the slot's old bytes a copy takes two thirds
# of the time. (native/rows.c does so by itself; this is for rows that have names, and for machines
# where it could not be built.)
COPYING = {"GLIBC_TUNABLES": "glibc.cpu.x86_non_temporal_threshold=131072"}


def environment(users: Mapping[str, str], *, copies: bool = False) -> dict[str, str]:
    """The environment of the fork server: the user's, and ENVIRONMENT where that says nothing.

    Args:
        users: The user's environment.
        copies: Nothing but copies is made, as `only_copies` says: then COPYING, too.
    """
    silent = FOLLOW_OMP if "OMP_NUM_THREADS" in users else ()
    ours = {name: value for name, value in ENVIRONMENT.items() if name not in silent}
    return {**ours, **(COPYING if copies else {}), **users}


def only_copies(plans: Sequence[StreamConfig], init: str) -> bool:
    """Whether all streams are delivered as they are stored.

    That is without transforms, and without user code, which has uses of its own for its copies.
    """
    return not init and all(
        plan.dataset is None
        and not plan.sources
        and not plan.transforms
        and ":" not in plan.layout
        and ":" not in plan.collate
        for plan in plans
    )


@dataclass(slots=True)
class Launched:
    """A fork server that has been started and told nothing yet.

    As a context: at its end the process is killed and reaped, unless somebody has taken it over
    with all that belongs to it.

    Attributes:
        process: The process.
        socket: Our end of its channel.
        output: The end of a pipe to read what it prints from.
        dump: A memfd for its stacks.
    """

    process: subprocess.Popen[bytes]
    socket: socket.socket
    output: int
    dump: int
    taken: bool = False

    def take(self) -> Launched:
        """It is the caller's from now on."""
        self.taken = True
        return self

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.taken:
            self.process.kill()
            self.process.wait()
            self.socket.close()
            os.close(self.output)
            os.close(self.dump)


def launch(
    plans: Sequence[StreamConfig], init: str, folder: str, *, preload: str, spawn: bool
) -> Launched:
    """Start a fork server.

    Args:
        plans: All streams.
        init: As in its Setup.
        folder: As in its Setup.
        preload: As in its Setup; "none" if it shall import nothing before it is told what.
        spawn: It starts workers as new processes.
    """
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    read, write = os.pipe2(os.O_CLOEXEC)
    dump = os.memfd_create("loaderd-stack-template", os.MFD_CLOEXEC)
    fds = (its.fileno(), dump)
    places = [*([folder] if folder else []), *map(str, sys.path)]
    argv = [
        sys.executable,
        "-c",
        BOOT,
        json.dumps(places),
        "fork-server",
        str(os.getpid()),
        *map(str, fds),
    ]
    with its:
        process = subprocess.Popen(
            [*argv, "spawn" if spawn else "fork", preload],
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=write,
            pass_fds=fds,
            start_new_session=True,
            env=environment(os.environ, copies=only_copies(plans, init)),
        )
    os.close(write)
    keep_niceness(process.pid)
    return Launched(process, ours, read, dump)
