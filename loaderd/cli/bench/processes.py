"""One round of a benchmark.

It has a daemon and a trainer of its own, or a trainer with torch's DataLoader. Nothing outlives it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any

from loaderd.cli import status
from loaderd.cli.exit_codes import FAULT, NO_START, CommandError
from loaderd.config.load import Config
from loaderd.config.stream import StreamConfig
from loaderd.system.processes import keep_niceness

LOOK_S = 0.25  # between two looks at the daemon, at the most
LEAVE_S = 15.0
MEASURED = b'{"batches_s"'  # how its answer begins, whatever user code prints
HERE = ("announced", "ready")  # states of a slot whose batch is made
CHILD = """
import runpy, sys
from loaderd.system.processes import die_with_parent
die_with_parent(int(sys.argv.pop(1)))
sys.argv.pop(0)
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True, slots=True)
class BenchRun:
    """What one round has measured.

    Attributes:
        trainer: What the trainer measured.
        parts: Seconds a batch, by stage of the workers (on the clock) and in the daemon (of CPU).
        all_s: Seconds of CPU of every process, a batch.
        busy: How many workers had something to do, on average.
        ready: Finished batches in the trainer's slots, on average.
    """

    trainer: dict[str, float]
    parts: dict[str, float]
    all_s: float
    busy: float
    ready: float


@dataclass(frozen=True, slots=True)
class CpuReading:
    """A daemon as it was at a moment.

    Attributes:
        at_s: That moment, on the monotonic clock.
        stages: Seconds spent so far by its workers, stage by stage.
        schedule_s: Seconds spent so far by its scheduler.
        daemon_s: Seconds of CPU of its own process.
        workers_s: Seconds of CPU of fork server and workers.
        made: Batches made for its session.
        ready: How many of its slots hold one that is ready.
    """

    at_s: float
    stages: dict[str, float]
    schedule_s: float
    daemon_s: float
    workers_s: float
    made: int
    ready: int


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each figure over the rounds, at least one; all have the same figures."""
    return {name: median(each[name] for each in rounds) for name in rounds[0]}


def loaderd(
    config: Config, plan: StreamConfig, socket: str, seconds: float, prefetch: int
) -> BenchRun:
    """A daemon for this config on `socket`, and a trainer.

    Raises CommandError with what either says.
    """
    serve = ["serve", config.path, "--socket", socket]
    with daemon(serve, socket, f"{socket}.log") as process:
        process.wait_ready()
        asked = {
            "make": None,
            "args": {"source": socket, "stream": plan.name, "prefetch": prefetch},
            "seconds": seconds,
        }
        looks: list[CpuReading] = []
        with trainer(asked) as measuring:
            while measuring.runs(min(LOOK_S, seconds / 4)):
                looks += process.look(plan.name)
            measured = measuring.answer()
    return summed(measured, looks)


def dataloader(
    config: Config, plan: StreamConfig, workers: int, seconds: float, prefetch: int
) -> BenchRun:
    """The same stream as a torch DataLoader has it. Raises CommandError with what it says."""
    args = {
        "plan": plan.to_json(),
        "folder": config.folder,
        "init": config.workers.init or "",
        "workers": workers,
        "prefetch": prefetch,
    }
    with trainer(
        {"make": "loaderd.cli.bench.dataloader:make", "args": args, "seconds": seconds}
    ) as measuring:
        while measuring.runs(LOOK_S):
            pass
        return summed(measuring.answer(), ())


class TrainerProcess:
    """A process that measures; what it says goes to files."""

    def __init__(self, process: subprocess.Popen[bytes], out: IO[bytes], error: IO[bytes]) -> None:
        self.pid = process.pid
        self._process, self._out, self._error = process, out, error

    def runs(self, seconds: float) -> bool:
        """Whether it still does, after it was given so long to end."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def answer(self) -> dict[str, float]:
        """What it measured, at its end. Raises CommandError with what it says if it failed."""
        self._out.seek(0)
        self._error.seek(0)
        if self._process.returncode:
            said = _last(self._error.read().decode(errors="replace"))
            raise CommandError(
                f"the trainer failed (exit code {self._process.returncode}):\n{said}", FAULT
            )
        return json.loads(
            next(
                line
                for line in reversed(self._out.read().splitlines())
                if line.startswith(MEASURED)
            )
        )


class DaemonProcess:
    """A process that serves, and what it says.

    It speaks in its log; and on a pipe, once, when it is ready or can't be.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], socket: str, log: str, said: IO[str]
    ) -> None:
        self.pid, self._socket, self._log, self._said = process.pid, socket, log, said

    def wait_ready(self) -> None:
        """Raises CommandError with what it says if it can't serve."""
        said = self._said.read().strip()
        if not said.startswith("ready"):
            text = said.partition(": ")[2] if said.startswith("ConfigError: ") else said
            raise CommandError(f"the daemon could not start: {text or _log(self._log)}", NO_START)

    def look(self, stream: str) -> list[CpuReading]:
        """What it looks like while its only session runs; nothing before and after.

        Raises CommandError if it has gone.
        """
        try:
            found = status.fetch(self._socket)
        except CommandError as error:
            raise CommandError(f"the daemon is gone: {error}\n{_log(self._log)}", FAULT) from None
        sessions = [
            session.progress
            for session in found.sessions
            if session.progress and session.progress.epoch is not None
        ]
        if not sessions:
            return []
        slots, progress = sessions[0].slots, found.streams[stream].progress
        others = [worker.process.pid for worker in found.workers if worker.process is not None]
        return [
            CpuReading(
                at_s=time.monotonic(),
                stages=dict(progress.stage_s) if progress is not None else {},
                schedule_s=found.schedule_s,
                daemon_s=cpu_s(self.pid),
                workers_s=sum(map(cpu_s, others)),
                made=sessions[0].made,
                ready=sum(slots.get(state, 0) for state in HERE),
            )
        ]


def summed(measured: dict[str, float], looks: Sequence[CpuReading]) -> BenchRun:
    """A trainer's measurement, per batch.

    If it had a daemon, what that looked like in the meantime is in it, too.
    """
    first_s, last_s = measured.pop("begin_s"), measured.pop("end_s")
    own_s = measured["cpu_s"] + measured["children_s"]
    inside = [look for look in looks if first_s <= look.at_s <= last_s]
    looks = inside if len(inside) > 1 else looks
    if len(looks) < 2:
        return BenchRun(measured, {}, own_s, 0.0, 0.0)
    before, after = looks[0], looks[-1]
    batches = max(1, after.made - before.made)
    daemon_s, workers_s = (
        (after.daemon_s - before.daemon_s) / batches,
        (after.workers_s - before.workers_s) / batches,
    )
    parts = {
        stage: (spent - before.stages.get(stage, 0.0)) / batches
        for stage, spent in after.stages.items()
    }
    busy = sum(parts.values()) * batches / max(1e-9, after.at_s - before.at_s)
    parts["schedule"] = (after.schedule_s - before.schedule_s) / batches
    parts["announce"] = max(0.0, daemon_s - parts["schedule"])
    return BenchRun(
        measured,
        parts,
        own_s + daemon_s + workers_s,
        busy,
        sum(look.ready for look in looks) / len(looks),
    )


def cpu_s(pid: int) -> float:
    """Seconds of CPU of all threads of a process, to the nanosecond; 0 if it has gone."""
    try:
        return (
            sum(
                int((task / "schedstat").read_text().split()[0])
                for task in Path(f"/proc/{pid}/task").iterdir()
            )
            / 1e9
        )
    except OSError:
        return 0.0


def _child(module: str) -> list[str]:
    """The command line of `python -m module`, which does not outlive this process."""
    return [sys.executable, "-c", CHILD, str(os.getpid()), module]


@contextmanager
def daemon(serve: Sequence[str], socket: str, log_path: str) -> Iterator[DaemonProcess]:
    """A daemon, which need not be ready yet.

    Args:
        serve: Arguments of `loaderd`.
        socket: Where it serves.
        log_path: Where its log goes.
    """
    read, write = os.pipe()
    command = [*_child("loaderd"), *serve, "--ready-fd", str(write)]
    with open(log_path, "wb") as log:
        # in a session of its own: Ctrl-C is for us alone
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(write,),
            start_new_session=True,
        )
    try:
        os.close(write)
        keep_niceness(process.pid)
        with os.fdopen(read, encoding="utf-8", errors="replace") as said:
            yield DaemonProcess(process, socket, log_path, said)
    finally:
        process.terminate()
        try:
            process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def trainer(asked: Mapping[str, Any]) -> Iterator[TrainerProcess]:
    """A process that measures, as `loaderd_client._bench` is asked to."""
    # not pipes: user code may print as much as it likes
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        process = subprocess.Popen(
            [*_child("loaderd_client._bench"), json.dumps(asked)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=error,
            start_new_session=True,
        )
        try:
            keep_niceness(process.pid)
            yield TrainerProcess(process, out, error)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and its workers
            process.wait()


def _log(path: str) -> str:
    try:
        return _last(Path(path).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""


def _last(text: str, lines: int = 12) -> str:
    return "\n".join(text.rstrip().splitlines()[-lines:])
