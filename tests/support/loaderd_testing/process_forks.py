"""Processes that cost no import: `python process_forks.py SOCKET MODULE...` imports the modules,
and forks itself for each request.

A request is {"words": [...], "folder": path, "env": {...}, "cpus": [...]} with four descriptors:
stdin, stdout, stderr, and a socket for the answers: the pid, and at the end (wait status, seconds
of processor time). The fork is what `python WORDS` is, in a session of its own.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import select
import socket
import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def main(requests: socket.socket) -> None:
    """Serve until the requests end. In a fork: be what was asked for, and return at its end."""
    running: dict[int, tuple[int, int]] = {}  # pidfd -> (pid, socket for its end)
    while True:
        ready, _, _ = select.select([requests, *running], [], [])
        for pidfd in running.keys() & {*ready}:
            pid, answers = running.pop(pidfd)
            os.close(pidfd)
            _, status, used = os.wait4(pid, 0)
            answer(answers, [status, used.ru_utime + used.ru_stime])
            os.close(answers)
        if requests in ready:
            message, fds, _, _ = socket.recv_fds(requests, 1 << 20, 4)
            if not message:
                return
            *files, answers = fds
            pid = os.fork()
            if pid == 0:
                requests.detach()
                return become(json.loads(message), files)
            running[os.pidfd_open(pid)] = pid, answers
            for fd in files:
                os.close(fd)
            answer(answers, pid)


def answer(fd: int, what: object) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it
        os.write(fd, json.dumps(what).encode())


def become(request: dict[str, Any], files: list[int]) -> None:
    os.setsid()
    for number, fd in enumerate(files):
        os.dup2(fd, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    os.chdir(request["folder"])
    os.sched_setaffinity(0, request["cpus"])
    os.environ.clear()
    os.environ.update(request["env"])
    flag, program, *args = request["words"]
    sys.argv, sys.path[0] = [flag, *args], request["folder"]
    if flag == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        import_module("loaderd_testing.witnesses").tell_stacks()
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), vars(main))


if __name__ == "__main__":
    sys.path[0] = os.path.dirname(sys.path[0])
    for module in ("loaderd_testing.witnesses", *sys.argv[2:]):
        import_module(module)
    gc.collect()
    gc.freeze()  # a fork has nothing of it to collect
    main(socket.socket(fileno=int(sys.argv[1])))
