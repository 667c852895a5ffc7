"""A storm: a real daemon, real trainers, and faults by a plan; what came through is proven batch by
batch.

    python -m faults.storm.run --minutes 30 [--seed N]      from tests/; `make storm MINUTES=30`
    does

Two rounds. In the first everything dies, the daemon too, which a supervisor (this process) starts
again. In the second the daemon must
survive: what it has open, and its memory, are compared between the calm after a warm-up and the
calm at the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from faults.storm import inject
from faults.storm.dataset import EPOCHS, PASSED, STREAMS, lay, mark, mark_error, table
from faults.storm.faults import plan
from faults.storm.processes import alive, family, fds, rss_bytes
from faults.storm.tally import Tally
from faults.storm.trainer import REFUSED
from loaderd_client import Loader, SampleError
from loaderd_testing.daemon_harness import until

TICK_S = 0.02
PATIENCE_S = 60.0
LEFT = (0, -signal.SIGTERM)  # told to go, perhaps before it knew what to do then


def forecast(folder: Path, samples: int) -> Path:
    """A file with the marks of every batch of every (stream, rank, world_size), by epoch: pulled
    once from a daemon that nothing disturbs.
    """
    path = folder / "expected.json"
    if path.exists():  # a folder that is used again
        return path
    config = lay(folder, samples=samples, workers=2, timeout_s=30, calm=True)
    marks: dict[str, list[list[str]]] = {}
    with Loader(str(config), stream="raise", output="numpy"):
        for stream, rules in STREAMS.items():
            for rank, world in rules.claims:
                with Loader(
                    str(config),
                    stream=stream,
                    rank=rank,
                    world_size=world,
                    output="numpy",
                    prefetch=8,
                ) as loader:
                    marks[table(stream, rank, world)] = [
                        _epoch(loader, epoch) for epoch in range(EPOCHS)
                    ]
    path.write_text(json.dumps(marks))
    return path


def _epoch(loader: Loader[Any], epoch: int) -> list[str]:
    loader.set_epoch(epoch)
    batches = iter(loader)
    marks: list[str] = []
    while True:
        try:
            batch = next(batches)
            step, seen = batch.step, mark(batch)
        except SampleError as error:
            step, seen = len(marks), mark_error(epoch, len(marks), error.errors)
        except StopIteration:
            return marks + [PASSED] * (len(loader) - len(marks))
        marks += [PASSED] * (step - len(marks))
        marks.append(seen)


class Seat:
    """A place for one trainer after another.

    `since_s`: when the present one came. `away`: spans in which it was no judge of a fault.
    """

    def __init__(self, storm: Storm, number: int) -> None:
        self.storm, self.number = storm, number
        self.trainers = 0
        self.stream = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.again_s = 0.0
        self.order: dict[str, Any] = {}
        self.away: list[tuple[float, float]] = []

    def newcomer(self) -> None:
        storm, rng = self.storm, self.storm.rng
        self.trainers += 1
        name = f"trainer-{self.number}-{self.trainers}"
        # two neighbours begin with the same batches, and share them unless one wants its own
        self.stream = list(STREAMS)[(self.number // 2 + 2 * self.trainers) % len(STREAMS)]
        claims = STREAMS[self.stream].claims
        rank, world = claims[self.trainers % len(claims)]
        self.order = {
            "name": name,
            "socket": str(storm.socket),
            "stream": self.stream,
            "rank": rank,
            "world": world,
            "prefetch": rng.choice((1, 2, 4)),
            "shared": rng.random() < 0.8,
            "expected": str(storm.expected),
            "book": str(storm.folder / f"{name}.book"),
            "spans": str(storm.folder / f"{name}.spans"),
        }
        storm.tally.trainer_came(self.order, self.away)
        self.start()

    def start(self) -> None:
        self.order["seed"] = self.storm.rng.randrange(1 << 30)
        self.process = self.storm.program("faults.storm.trainer", json.dumps(self.order))

    def look(self, now_s: float) -> None:
        """Whoever has ended is followed by another; whoever was killed, or found no room, by
        itself.
        """
        if self.process is None:
            if self.again_s and now_s >= self.again_s:
                self.again_s = 0.0
                self.start()
            return
        code = self.process.poll()
        if code is None:
            return
        self.process = None
        if code in LEFT:
            self.newcomer()
        elif code == -signal.SIGKILL:
            self.start()
        elif code == REFUSED:
            self.storm.tally.refused += 1
            self.again_s = now_s + 0.5
        else:
            self.storm.tally.broken(f"{self.order['name']} ended with {code}")
            self.newcomer()

    def leave(self) -> None:
        if self.process is not None:
            self.process.terminate()


class Storm:
    """One storm in `folder`.

    seconds: of the faults in both rounds together; the calm and what comes before and after are
    beside it.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        seconds: float,
        *,
        seats: int,
        workers: int,
        samples: int,
        gap_s: float,
        timeout_s: float,
    ) -> None:
        self.folder, self.seconds, self.gap_s = folder, seconds, gap_s
        self.rng = random.Random(seed)
        self.tally = Tally(folder, workers)
        self.log = folder / "storm.log"
        self.expected = forecast(folder / "calm", samples)
        self.config = lay(
            folder / "rough", samples=samples, workers=workers, timeout_s=timeout_s, calm=False
        )
        self.socket = self.config.parent / "d.sock"
        self.workers = workers
        self.seats = [Seat(self, i) for i in range(seats)]
        self.hogs: list[subprocess.Popen[bytes]] = []
        self.daemon: subprocess.Popen[bytes] | None = None
        self.mortal = True
        self.begin = 0  # of the present daemon's part of the log
        self.seen: set[int] = set()
        self.lifts: list[tuple[float, Any]] = []

    # -- processes

    def program(self, module: str, *args: str) -> subprocess.Popen[bytes]:
        tests = Path(__file__).parents[2]
        path = os.pathsep.join(
            [str(tests), str(tests / "support"), os.environ.get("PYTHONPATH", "")]
        ).rstrip(os.pathsep)
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, *args],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path},
            )

    def serve(self) -> None:
        self.begin = self.log.stat().st_size if self.log.exists() else 0
        self.daemon = self.program("loaderd", "serve", str(self.config))
        self.tally.daemons += 1

    @property
    def serving(self) -> bool:
        """Whether the present daemon has got so far: before that it is allowed to fail, and another
        is tried.
        """
        with self.log.open("rb") as log:
            log.seek(self.begin)
            return b"ready: " in log.read()

    def ready(self) -> None:
        until("the daemon to be ready", self._is_ready, PATIENCE_S)

    def _is_ready(self) -> bool:
        self.tick()
        return self.serving and len(family(self.pid)[1]) == self.workers

    @property
    def pid(self) -> int:
        assert self.daemon is not None
        return self.daemon.pid

    def tick(self, *, trainers: bool = False) -> None:
        """One look at everything: lift what is over, start anew what ended."""
        now_s = time.monotonic()
        for lift in [lift for lift in self.lifts if lift[0] <= now_s]:
            self.lifts.remove(lift)
            lift[1]()
        assert self.daemon is not None
        templates, workers = family(self.pid)
        self.seen.update([self.pid, *templates, *workers])
        if (code := self.daemon.poll()) is not None:
            if self.mortal and not self.serving:
                self.tally.unready[code] += 1
            elif not self.mortal or code not in (0, -signal.SIGKILL):
                self.tally.broken(f"the daemon ended with {code}")
            self.serve()
        self.hogs = [hog for hog in self.hogs if hog.poll() is None]
        if trainers:
            for seat in self.seats:
                seat.look(now_s)

    # -- rounds

    def run(self) -> Tally:
        began_s = time.monotonic()
        self.serve()
        try:
            self.ready()
            for seat in self.seats:
                seat.newcomer()
            self._round(self.seconds * 0.6, daemon=True)
            self._all_leave()
            self.mortal = False
            self.ready()
            for seat in self.seats:
                seat.newcomer()
            self._round(min(60.0, self.seconds * 0.1), daemon=False)
            self._all_leave()
            before = self._calm()
            for seat in self.seats:
                seat.newcomer()
            self._round(self.seconds * 0.3, daemon=False)
            self._all_leave()
            self.tally.compare(before, self._calm())
        finally:
            self._end()
        self.tally.finish(time.monotonic() - began_s, self.seen)
        return self.tally

    def _round(self, seconds: float, *, daemon: bool) -> None:
        self._let_run(
            lambda: all(self.tally.delivered(seat.order) > 10 for seat in self.seats),
            "every trainer to be served",
        )
        begin_s = time.monotonic()
        for fault in plan(self.rng, seconds, self.gap_s, daemon=daemon):
            while time.monotonic() < begin_s + fault.at_s:
                self.tick(trainers=True)
                time.sleep(TICK_S)
            inject.strike(self, fault)
        while time.monotonic() < begin_s + seconds or self.lifts:
            self.tick(trainers=True)
            time.sleep(TICK_S)
        served = {seat.order["name"]: self.tally.delivered(seat.order) for seat in self.seats}
        self._let_run(
            lambda: all(
                self.tally.delivered(seat.order) > served.get(seat.order["name"], 0) + 10
                for seat in self.seats
            ),
            "every trainer to go on after the last fault",
        )

    def _let_run(self, condition: Any, what: str) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            self.tick(trainers=True)
            if time.monotonic() > end_s:
                self.tally.broken(f"waited {PATIENCE_S:.0f} s for {what}")
                return
            time.sleep(TICK_S)

    def _all_leave(self) -> None:
        for seat in self.seats:
            seat.leave()
        end_s = time.monotonic() + PATIENCE_S
        for seat in self.seats:
            while seat.process is not None and seat.process.poll() is None:
                self.tick()
                if time.monotonic() > end_s:
                    self.tally.broken(
                        f"{seat.order['name']} did not leave within {PATIENCE_S:.0f} s"
                    )
                    seat.process.kill()
                    seat.process.wait()
                time.sleep(TICK_S)
            if seat.process is not None and seat.process.returncode not in (*LEFT, REFUSED):
                self.tally.broken(f"{seat.order['name']} left with {seat.process.returncode}")
            seat.process, seat.again_s = None, 0.0

    def _calm(self) -> dict[str, Any]:
        """What the daemon has when nobody is there, as soon as that holds still."""
        self.ready()
        until("hogs to be gone", lambda: self.tick() or not self.hogs, PATIENCE_S)
        # a worker that hangs has it mapped until it is killed
        until("the last segment to be gone", self._no_segments, PATIENCE_S)
        was: dict[str, Any] = {}

        def still() -> bool:
            nonlocal was
            self.tick()
            time.sleep(0.3)
            templates, workers = family(self.pid)
            now = {
                "fds": fds(self.pid),
                "processes": 1 + len(templates) + len(workers),
                "files": self._files(),
                "pid": self.pid,
            }
            now["template fds"] = fds(templates[0]) if templates else {}
            now["worker memfds"] = max(
                [fds(worker).get("memfd", 0) for worker in workers], default=0
            )
            same, was = now == was, now
            return same

        with contextlib.suppress(AssertionError):
            until("the daemon to hold still", still, 15)
        return {**was, "rss": rss_bytes(self.pid)}

    def _no_segments(self) -> bool:
        self.tick()
        command = [sys.executable, "-m", "loaderd", "status", str(self.config), "--json"]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
        )
        return done.returncode == 0 and json.loads(done.stdout)["memory"]["segments"] == 0

    def _files(self) -> list[str]:
        return sorted(
            path.name
            for path in self.config.parent.iterdir()
            if not path.name.startswith(("token-", "__"))
        )

    def _end(self) -> None:
        for _, lift in self.lifts:
            lift()
        for seat in self.seats:
            if seat.process is not None:
                seat.process.kill()
                seat.process.wait()
        for hog in self.hogs:
            hog.kill()
            hog.wait()
        assert self.daemon is not None
        templates, workers = family(self.pid)
        self.seen.update([self.pid, *templates, *workers])
        self.daemon.terminate()
        try:
            code = self.daemon.wait(PATIENCE_S)
            if code != 0:
                self.tally.broken(f"the daemon ended with {code} at SIGTERM")
        except subprocess.TimeoutExpired:
            self.tally.broken("the daemon did not drain")
            self.daemon.kill()
            self.daemon.wait()
        end_s = time.monotonic() + 15
        while any(alive(pid) for pid in self.seen) and time.monotonic() < end_s:
            time.sleep(TICK_S)
