"""Trainers that cost no import: `python trainer_forks.py` imports what the first needs, and forks
itself for each run that a line of its input asks for.

In: {"program": path, "args": [...], "env": {...}, "folder": path, "out": path, "ranks": n,
"imports": [module, ...]}
Out: {"pid": n} when the process is there, {"pid": n, "code": n} when it has ended. A code below
0 is that of a signal.

With ranks, the process is an agent as torchrun has one, whose ranks are forked too. They write
into OUT.RANK.LIFE, the agent writes into OUT.
"""

from __future__ import annotations

import gc
import io
import json
import os
import runpy
import select
import sys
from importlib import import_module
from typing import Any, cast

from loaderd_testing.witnesses import tell_stacks


def main() -> None:
    """Serve until the input ends. In a fork: be the run, and return at its end."""
    running: dict[int, int] = {}  # pidfd -> pid
    rest = b""
    while True:
        ready, _, _ = select.select([0, *running], [], [])
        for pidfd in set(ready) - {0}:
            pid = running.pop(pidfd)
            os.close(pidfd)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            print(json.dumps({"pid": pid, "code": code}), flush=True)
        if 0 in ready:
            part = os.read(0, 1 << 16)
            if not part:
                return
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                request = json.loads(line)
                for name in request["imports"]:
                    import_module(name)
                gc.freeze()  # a fork has nothing of it to collect
                pid = os.fork()
                if pid == 0:
                    return run(request)
                running[os.pidfd_open(pid)] = pid
                print(json.dumps({"pid": pid}), flush=True)


def run(request: dict[str, Any]) -> None:
    os.setsid()  # one signal ends it with all that it has started
    os.chdir(request["folder"])
    os.environ.update(request["env"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    write_into(request["out"])
    tell_stacks()
    if request["ranks"]:
        agent(request["ranks"], request["program"], request["args"], request["out"])
    else:
        program(request["program"], request["args"])


def write_into(path: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    # one that is killed has said what it did
    cast(io.TextIOWrapper, sys.stdout).reconfigure(line_buffering=True)


def program(path: str, args: list[str]) -> None:
    """What `python PATH ARGS` does."""
    sys.argv = [path, *args]
    sys.path[0] = os.path.dirname(path)
    runpy.run_path(path, run_name="__main__")


def agent(ranks: int, path: str, args: list[str], out: str) -> None:
    """What `torchrun --standalone --max-restarts=1 --nproc-per-node=RANKS PATH ARGS` does."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=str(os.getpid()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="127.0.0.1",
        max_restarts=1,
        start_method="fork",
    )
    elastic_launch(config, rank)(path, args, out)


def rank(path: str, args: list[str], out: str) -> None:
    tell_stacks()
    write_into(f"{out}.{os.environ['RANK']}.{os.environ['TORCHELASTIC_RESTART_COUNT']}")
    program(path, args)


if __name__ == "__main__":
    main()
