"""A folder with a config, a user's module and a real daemon: what the system tests are made of."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from loaderd.cli import status
from loaderd.cli.control_client import ControlConnection
from loaderd.server.status_report import as_plain
from loaderd_client import Loader, StallError
from loaderd_testing.deadlines import DEADLINE_S, LEAVING_S, WaitedInVainError, until
from loaderd_testing.python_processes import command, python, run
from loaderd_testing.witnesses import WITNESSES, parts, processes

LOG_LINES = 100  # the last of a daemon's log, for a wait that was in vain

# What a user would bring: a picture-like array, a label and a text, all a function of the index.
# FAULT is prepended per test.
MODULE = """
import os, re, signal, sys, time, ctypes, threading
import numpy as np

def once(name):
    # True for the first caller of this name in the whole test, in whatever process
    try:
        os.close(os.open(os.path.join(os.path.dirname(__file__), "once-" + name), os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False

def fault(index):
    pass

{fault}

class Numbers:
    def __init__(self, n={n}, pause={pause}):
        self.n, self.pause = n, pause
    def __len__(self):
        return self.n
    def __getitem__(self, index):
        if self.pause:
            time.sleep(self.pause)
        fault(index)
        rng = np.random.default_rng(index)
        return {{"x": rng.integers(0, 256, (8, 8), np.uint8), "y": index, "t": "s%d" % index}}

def augment(sample, rng):
    sample["noise"] = rng.random(4, np.float32)
    return sample
"""

TOP = """
[daemon]
socket = "d.sock"
{daemon}
[workers]
num_workers = {workers}
sample_timeout_s = {timeout}
{pool}
[streams.train]
"""

CONFIG = (
    TOP
    + """dataset = "mine:Numbers"
batch_size = 8
shuffle = true
seed = 7
{stream}
[[streams.train.transforms]]
call = "mine:augment"
{more}
"""
)


def children(pid: int) -> list[int]:
    """Pids of a process's children, of the dead too until they have been reaped."""
    try:
        return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "config.toml"
        self.socket = folder / "d.sock"
        self.log = folder / "daemon.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.loaders: list[Loader[Any]] = []
        self.seen: set[int] = set()

    def write(
        self,
        *,
        fault: str = "",
        n: int = 100,
        pause: float = 0.0,
        workers: int = 2,
        timeout: float = 20.0,
        daemon: str = "",
        pool: str = "",
        stream: str = "",
        more: str = "",
    ) -> Site:
        self.num_workers = workers
        (self.folder / "mine.py").write_text(
            MODULE.format(fault=textwrap.dedent(fault), n=n, pause=pause)
        )
        self.config.write_text(
            CONFIG.format(
                workers=workers, timeout=timeout, daemon=daemon, pool=pool, stream=stream, more=more
            )
        )
        return self

    def serve(self, *args: str, wait: bool = True, program: tuple[str, ...] = ()) -> Site:
        """Start the daemon. program: what Python runs in place of the command."""
        args = ("serve", str(self.config), *args)
        with self.log.open("ab") as log:
            begin = log.tell()
            files = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self.process = python(*program, *args, **files) if program else command(*args, **files)
        WITNESSES[self] = self.plight
        if wait:
            until(
                "the daemon's ready line",
                lambda: (
                    self.process.poll() is not None or b"ready: " in self.log.read_bytes()[begin:]
                ),
            )
            assert self.process.poll() is None, self.log.read_text()
        return self

    def loader(self, **kwargs: Any) -> Loader[Any]:
        kwargs.setdefault("stream", "train")
        kwargs.setdefault("output", "numpy")
        loader = Loader(str(kwargs.pop("source", self.socket)), **kwargs)
        self.loaders.append(loader)
        return loader

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The daemon, which has been started."""
        assert self._process is not None
        return self._process

    @process.setter
    def process(self, started: subprocess.Popen[bytes]) -> None:
        self._process = started

    @property
    def pid(self) -> int:
        return self.process.pid

    def template(self) -> int:
        return until("the template", lambda: children(self.pid))[0]

    def workers(self) -> list[int]:
        def look() -> list[int]:
            found = [w for t in children(self.pid) for w in children(t) if alive(w)]
            self.seen.update(found)
            return found

        return until("workers", look)

    def settled(self) -> list[int]:
        """Its workers' pids, when all of them are ready, and not only the first, with which the
        daemon is.
        """

        def ready() -> bool:
            found = self.status()["workers"]
            return len(found) == self.num_workers and all(
                one["process"] == "ready" for one in found
            )

        until("all workers", ready)
        return self.workers()

    def kill(self, pid: int | None = None, sig: int = signal.SIGKILL) -> None:
        os.kill(self.pid if pid is None else pid, sig)
        if pid is None and sig == signal.SIGKILL:
            self.process.wait(DEADLINE_S)

    def status(self) -> dict[str, Any]:
        """What `loaderd status --json` prints of a daemon that has started and not failed, asked
        in this process.
        """
        found = status.fetch(str(self.socket))
        assert not found.failed
        assert found.state != "starting"
        return json.loads(json.dumps(as_plain(found)))

    def shown(self) -> str:
        """What `loaderd status` prints on a wide terminal, asked in this process."""
        return "\n".join(status.lines(status.fetch(str(self.socket)), 200, False))

    def plight(self) -> str:
        """What it and its workers are doing, for a wait that was in vain."""
        return parts(
            stacks=self._asked,
            status=self.shown,
            json=lambda: json.dumps(as_plain(status.fetch(str(self.socket)))),
            log=lambda: "\n".join(self.text().splitlines()[-LOG_LINES:]),
            processes=lambda: processes(self.pid),
        )

    def _asked(self) -> str:
        """Stacks of the workers, as far as they answer."""
        asked = [one["worker"] for one in self.status()["workers"] if one["state"] == "up"]
        for worker in asked:
            with ControlConnection(str(self.socket), f"stack {worker}") as line:
                list(line.messages())

        def stacks() -> dict[int, str]:
            workers = self.status()["workers"]
            return {one["worker"]: one["stack"] for one in workers if one["worker"] in asked}

        with contextlib.suppress(WaitedInVainError):  # one may be stopped
            until("stacks", lambda: "" not in stacks().values(), LEAVING_S)
        return "\n".join(f"worker {worker}: {stack}" for worker, stack in stacks().items())

    def cli(self, *args: str, **more: Any) -> subprocess.CompletedProcess[str]:
        return run(*args, cwd=self.folder, **more)

    def text(self) -> str:
        return self.log.read_text()

    def end_sessions(self) -> None:
        """Closes all loaders, and waits until the daemon is as it was before the first came."""
        for loader in self.loaders:
            loader.close()
        self.loaders.clear()
        until("the end of all sessions", lambda: not self.status()["sessions"])

    def close(self) -> None:
        """Ends everything and checks that nothing is left: no process, and of files only what
        DESIGN allows.
        """
        WITNESSES.pop(self, None)
        for loader in self.loaders:
            loader.close()
        if self._process is not None and self._process.poll() is None:
            family = [
                self.pid,
                *children(self.pid),
                *[w for t in children(self.pid) for w in children(t)],
            ]
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError("the daemon did not drain:\n" + self.text()) from None
            self.seen.update(family)
        until("all processes gone", lambda: not [p for p in self.seen if alive(p)])


def take(batches: Iterable[Any], n: int | None = None) -> list[dict[str, Any]]:
    """The next n batches (all, without n), copied."""
    taken: list[dict[str, Any]] = []
    if n == 0:
        return taken
    for batch in batches:
        taken.append(plain(batch))
        if n is not None and len(taken) == n:
            break
    return taken


def plain(batch: Any) -> dict[str, Any]:
    fields = {k: (np.array(v) if isinstance(v, np.ndarray) else list(v)) for k, v in batch.items()}
    return {
        "epoch": batch.epoch,
        "step": batch.step,
        "indices": batch.indices.tolist(),
        "keys": list(batch.sample_keys),
        **fields,
    }


def digest(batches: Iterable[dict[str, Any]]) -> str:
    """One hash over everything that a trainer sees."""
    total = hashlib.sha256()
    for batch in batches:
        for name, value in batch.items():
            total.update(name.encode())
            total.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    return total.hexdigest()


def rows(batches: Iterable[dict[str, Any]]) -> dict[int, str]:
    """Sample index -> its row in full: all fields of it, in bytes."""
    found: dict[int, str] = {}
    for batch in batches:
        fields = [name for name in batch if name not in ("epoch", "step", "indices", "keys")]
        for place, index in enumerate(batch["indices"]):
            found[index] = repr(
                [
                    (
                        name,
                        value.tobytes()
                        if hasattr(value := batch[name][place], "tobytes")
                        else value,
                    )
                    for name in fields
                ]
            )
    return found


def indices(batches: Iterable[dict[str, Any]]) -> list[int]:
    return [i for b in batches for i in b["indices"]]


def patiently(batches: Iterable[Any], *errors: type[Exception]) -> Iterator[Any]:
    """Batches of a loader whose times are short: on a slow machine it gives up too early, and is
    asked again. errors: others that say so.

    batches: what goes on after an error, which a Loader does and a generator does not.
    """
    ready, end_s = iter(batches), time.monotonic() + DEADLINE_S
    while True:
        try:
            batch = next(ready)
        except StopIteration:
            return
        except (StallError, *errors):
            if time.monotonic() > end_s:
                raise
        else:
            yield batch


def pulls(loader: Loader[Any]) -> Iterator[Any]:
    """Batches across epochs, for ever."""
    while True:
        yield from loader
