"""A whole daemon with a made-up pool, as a process of its own: `python served.py SETTINGS_AS_JSON`.

A line on stdin lets streams open.

What a stream does is in its name: "late" opens when stdin says so, "broken" does not open, "heals"
does at the second try, "grows" outgrows its first segment, "unready" has workers that cannot boot,
"stuck" never finishes a job, "bad" has a bad sample in each batch, "crash" is a fault of the daemon itself.
With the setting `dies` it is killed: "before module.Class.method", or "after", at its first call. `stay_s` is how long it
stays when it has handed over, `patience_s` how long a successor waits.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from loaderd.config.load import Config
from loaderd.config.schema import DaemonConfig, WorkersConfig
from loaderd.config.stream import StreamConfig
from loaderd.core.events import Event, WorkerDied, WorkerDone, WorkerPoll, WorkerReady
from loaderd.core.events import WorkerObservation as SeenWorker
from loaderd.core.jobs import BadRow, Done, Job
from loaderd.engine.base import EngineStatus, ForkServerStatus
from loaderd.engine.messages import OpenError, StreamInfo
from loaderd.server import handover, takeover
from loaderd.server.daemon import Daemon
from loaderd.server.start_options import StartOptions
from loaderd.system.loop import Loop
from loaderd_wire.errors import BadSample
from loaderd_wire.messages import Segment
from loaderd_wire.slots import FieldSpec

SPECS = (FieldSpec("x", "|u1", (1000,)), FieldSpec("y", "<i8", ()))
SAMPLES = 100
BAD = BadSample(7, "seven", 0, "decode", "ImageError", "damaged")


class FakePool:
    def __init__(
        self,
        loop: Loop,
        streams: Sequence[StreamConfig],
        config: WorkersConfig,
        *,
        emit: Callable[[Event], object],
        **_: Any,
    ) -> None:
        self.loop, self.emit = loop, emit
        self.unready = any(plan.name == "unready" for plan in streams)
        self.segments: dict[int, Segment] = {}
        self.jobs: dict[int, Job] = {}
        self.late: list[Callable[[], object]] = []
        self.tried: set[str] = set()
        loop.watch(0, self.told)

    def told(self) -> None:
        if not sys.stdin.buffer.raw.read(100):  # type: ignore[attr-defined]  # stdin is a pipe here
            self.loop.unwatch(0)
        for call in self.late:
            call()
        self.late.clear()

    def edited(self) -> list[str]:
        return []

    def open(self, stream: str, done: Callable[[StreamInfo | OpenError], None]) -> None:
        facts = StreamInfo(
            stream=stream,
            total=SAMPLES,
            samples=SAMPLES,
            identity="the data",
            layout="made-up",
            keys="index",
            classes=("a", "b"),
            specs=SPECS,
            sample_specs=SPECS,
            form="dict",
            state="",
            collated=False,
            tail_row_bytes=64,
            body_bytes=0,
            jpeg_extension="not used",
            warnings=("mind the gap",),
        )
        broken = stream == "broken" or (stream == "heals" and stream not in self.tried)
        self.tried.add(stream)
        answer = OpenError(stream, "data", "/no/such/db: not there", "") if broken else facts
        if stream == "late":
            self.late.append(lambda: done(answer))
        else:
            self.loop.soon(lambda: done(answer))

    def start(self, worker: int, delay_s: float, remote: bool = False) -> None:
        seen = SeenWorker(worker, 0, "", False, 0)
        event = (
            WorkerDied(worker, True, "exit code 1", seen, "", "Traceback: no")
            if self.unready
            else WorkerReady(worker)
        )
        self.loop.later(delay_s, lambda: self.emit(event))

    def send(self, worker: int, job: Job) -> None:
        if job.stream == "crash":
            raise RuntimeError("a fault of ours")
        if job.stream == "stuck":
            self.jobs[worker] = job
            return
        needs = (
            1000
            if job.stream == "grows" and self.segments[job.segment].tail_row_bytes < 1000
            else 0
        )
        bad = (BadRow(job.first, True, BAD),) if job.stream == "bad" else ()
        done = Done(job.job, bad, (), 0, 0, 0.0, 0.0, 0.0, 0.0, needs_tail=needs)
        self.loop.soon(lambda: self.emit(WorkerDone(worker, done)))

    def kill(self, worker: int, why: str) -> None: ...

    def doing(self) -> list[str]:
        return []

    def dump(self, worker: int) -> None: ...

    def retire(self, worker: int) -> None: ...

    def add_segment(
        self, segment: Segment, stream: str, fields: tuple[FieldSpec, ...], rows: int, fd: int
    ) -> None:
        self.segments[segment.segment] = segment

    def drop_segment(self, segment: int, done: Callable[[], object]) -> None:
        del self.segments[segment]
        done()

    def look(self) -> WorkerPoll:
        return WorkerPoll(tuple(SeenWorker(worker, 0, "", False, 0) for worker in self.jobs))

    def status(self) -> EngineStatus:
        return EngineStatus(ForkServerStatus(0, True, False))

    def close(self) -> None:
        self.loop.unwatch(0)


def let_die(when: str, where: str) -> None:
    module, name, method = where.rsplit(".", 2)
    owner = getattr(importlib.import_module(module), name)
    original = getattr(owner, method)

    def dies(*args: Any, **more: Any) -> None:
        if when == "after":
            original(*args, **more)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, method, dies)


def main() -> int:
    given = json.loads(sys.argv[1])
    if "dies" in given:
        let_die(*given.pop("dies").split())
    seed = given.pop("seed", 7)
    takeover.PATIENCE_S = given.pop("patience_s", takeover.PATIENCE_S)
    handover.STAY_S = given.pop("stay_s", handover.STAY_S)
    names = given.pop("streams")
    given["allow_uids"] = tuple(given.get("allow_uids", ()))
    plans = tuple(
        StreamConfig(name, dataset="made:Up", batch_size=8, shuffle=1, seed=seed) for name in names
    )
    path, default_socket = given.pop("config_path", ""), given.pop("default_socket", False)
    parts = [
        {each.name: given.pop(each.name) for each in fields(of) if each.name in given}
        for of in (DaemonConfig, WorkersConfig)
    ]
    config = Config(
        path, "", default_socket, DaemonConfig(**parts[0]), WorkersConfig(**parts[1]), plans
    )
    return Daemon(config, StartOptions(**given), make_engine=FakePool).run()


if __name__ == "__main__":
    sys.exit(main())
