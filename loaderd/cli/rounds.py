"""One round of a benchmark: a daemon of its own with a trainer of its own, or a trainer with torch's DataLoader. Nothing outlives it."""

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
from loaderd.cli.failure import FAULT, NO_START, CommandError
from loaderd.config import Config
from loaderd.data.plan import StreamPlan

LOOK_S = 0.25  # between two looks at the daemon
LEAVE_S = 15.0
MEASURED = b'{"batches_s"'  # how its answer begins, whatever user code prints
HERE = ("announced", "ready")  # states of a slot whose batch is made
CHILD = """
import runpy, sys
from loaderd.drivers.processes import die_with_parent
die_with_parent(int(sys.argv.pop(1)))
sys.argv.pop(0)
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True, slots=True)
class Round:
    """trainer: what it measured. stages_s: workers' seconds a batch by stage. daemon_cpu_s: of the daemon's own process, a batch. busy: how
    many workers had something to do, on average. ready: finished batches in the trainer's slots, on average."""

    trainer: dict[str, float]
    stages_s: dict[str, float]
    daemon_cpu_s: float
    busy: float
    ready: float


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: median(each[name] for each in rounds) for name in rounds[0]}


def loaderd(config: Config, plan: StreamPlan, socket: str, seconds: float, prefetch: int) -> Round:
    """A daemon for this config on `socket`, and a trainer. Raises CommandError with what either says."""
    with _daemon(config, socket) as daemon:
        asked = {"make": None, "args": {"source": socket, "stream": plan.name, "prefetch": prefetch}, "seconds": seconds}
        looks: list[tuple[float, dict[str, float], float, int, int]] = []
        with _trainer(asked) as trainer:
            while trainer.runs(LOOK_S):
                try:
                    picture = status.fetch(socket)
                except CommandError as error:
                    raise CommandError(f"the daemon is gone: {error}\n{_log(socket)}", FAULT) from None
                looks += _look(picture, plan.name, daemon.pid)
            measured = trainer.answer()
    return _round(measured, looks)


def dataloader(config: Config, plan: StreamPlan, workers: int, seconds: float, prefetch: int) -> Round:
    """The same stream as a torch DataLoader has it. Raises CommandError with what it says."""
    args = {"plan": plan.to_json(), "folder": config.folder, "init": config.workers.init or "", "workers": workers, "prefetch": prefetch}
    with _trainer({"make": "loaderd.cli.against:make", "args": args, "seconds": seconds}) as trainer:
        while trainer.runs(LOOK_S):
            pass
        return _round(trainer.answer(), ())


class Trainer:
    """A process that measures; what it says goes to files."""

    def __init__(self, process: subprocess.Popen[bytes], out: IO[bytes], error: IO[bytes]) -> None:
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
            raise CommandError(f"the trainer failed (exit code {self._process.returncode}):\n{said}", FAULT)
        return json.loads(next(line for line in reversed(self._out.read().splitlines()) if line.startswith(MEASURED)))


Look = tuple[float, dict[str, float], float, int, int]  # when; stages' seconds, the daemon's CPU, batches made, batches ready


def _look(picture: Mapping[str, Any], stream: str, pid: int) -> list[Look]:
    """What a daemon's picture says while its only session runs; nothing before and after."""
    sessions = [session for session in picture.get("sessions", ()) if session.get("epoch") is not None]
    if not sessions:
        return []
    slots = sessions[0].get("slots", {})
    ready = sum(slots.get(state, 0) for state in HERE)
    stages = dict(picture["streams"][stream].get("stage_s", {}))
    return [(time.monotonic(), stages, _cpu_s(pid), sessions[0].get("made", 0), ready)]


def _round(measured: dict[str, float], looks: Sequence[Look]) -> Round:
    first_s, last_s = measured.pop("begin_s"), measured.pop("end_s")
    inside = [look for look in looks if first_s <= look[0] <= last_s]
    looks = inside if len(inside) > 1 else looks
    if len(looks) < 2:
        return Round(measured, {}, 0.0, 0.0, 0.0)
    (begin_s, before, cpu_before, made_before, _), (end_s, after, cpu_after, made_after, _) = looks[0], looks[-1]
    batches = max(1, made_after - made_before)
    stages = {stage: (spent - before.get(stage, 0.0)) / batches for stage, spent in after.items()}
    spent_s = sum(after.values()) - sum(before.values())
    ready = sum(look[4] for look in looks) / len(looks)
    return Round(measured, stages, (cpu_after - cpu_before) / batches, spent_s / max(1e-9, end_s - begin_s), ready)


def _cpu_s(pid: int) -> float:
    """Seconds of CPU of all threads of a process, to the nanosecond."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def _child(module: str) -> list[str]:
    """The command line of `python -m module`, which does not outlive this process."""
    return [sys.executable, "-c", CHILD, str(os.getpid()), module]


@contextmanager
def _daemon(config: Config, socket: str) -> Iterator[subprocess.Popen[bytes]]:
    read, write = os.pipe()
    command = [*_child("loaderd"), "serve", config.path, "--socket", socket, "--ready-fd", str(write)]
    with open(f"{socket}.log", "wb") as log:
        # in a session of its own: Ctrl-C is for us alone
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(write,), start_new_session=True)
    try:
        os.close(write)
        with os.fdopen(read, encoding="utf-8", errors="replace") as pipe:
            said = pipe.read().strip()
        if not said.startswith("ready"):
            text = said.partition(": ")[2] if said.startswith("ConfigError: ") else said
            raise CommandError(f"the daemon could not start: {text or _log(socket)}", NO_START)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _trainer(asked: Mapping[str, Any]) -> Iterator[Trainer]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:  # not pipes: user code may print as much as it likes
        process = subprocess.Popen(
            [*_child("loaderd_client.bench"), json.dumps(asked)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=error,
            start_new_session=True,
        )
        try:
            yield Trainer(process, out, error)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and its workers
            process.wait()


def _log(socket: str) -> str:
    try:
        return _last(Path(f"{socket}.log").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""


def _last(text: str, lines: int = 12) -> str:
    return "\n".join(text.rstrip().splitlines()[-lines:])
