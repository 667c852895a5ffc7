"""What it costs a worker to seed the global generators for rows of a map-style dataset: time a row,
by what its code draws from.

    python tests/bench/seeding.py [--rounds 9] [--only WORD] [--unwatched]

Samples are two small arrays (a small tensor with torch). Runs in this process, as a worker runs its
jobs; prints one JSON line: us of CPU and of wall by round.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from loaderd.config.stream import StreamConfig
from loaderd.core.jobs import Job, JobKind
from loaderd.worker import generator_watch
from loaderd.worker.job_runner import JobRunner
from loaderd.worker.streams import OpenStreams
from loaderd_wire.slots import slot_layout

ROWS, JOBS = 128, 40  # of a job, of a round


class Drawing:
    """Sample i: {"x": float32[16], "y": i}. draw: what of is drawn from."""

    def __init__(self, draw: str) -> None:
        self._draw = {
            "nothing": lambda: 0.0,
            "random": random.random,
            "numpy": np.random.random,
            "both": self._both,
            "torch": self._torch,
        }[draw]
        self._data = np.zeros((1024, 16), np.float32)

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self._data[index] + self._draw(), "y": index}

    def _both(self) -> float:
        return random.random() + np.random.random()

    def _torch(self) -> float:
        import torch

        return float(torch.rand(()))


class Line:
    """A line of the scoreboard that nobody looks at."""

    def stamp(self, job: int, row: int, stage: int, candidate: int = 0) -> None: ...

    def importing(self, on: bool) -> None: ...

    def name(self, row: int, key: str) -> None: ...

    def idle(self) -> None: ...


def runner(draw: str) -> JobRunner:
    """Of one stream, with a slot in this process's memory."""
    from loaderd.worker.probe import probe

    plan = StreamConfig(
        draw, dataset="seeding:Drawing", dataset_args={"draw": draw}, batch_size=ROWS
    )
    open_streams = OpenStreams([plan], 0, 1)
    imported: Any = SimpleNamespace(look=lambda: None, all=lambda: ())
    found: Any = probe(draw, open_streams, Line(), plan, imported)
    fields = found.specs
    arrays = [(field, np.zeros((ROWS, *field.shape), field.dtype)) for field in fields]
    indices = np.zeros(ROWS, np.int64)
    slot: Any = SimpleNamespace(
        fields=fields,
        arrays=lambda: arrays,
        indices=lambda: indices,
        layout=slot_layout(fields, ROWS),
    )
    mapped: Any = SimpleNamespace(layout=SimpleNamespace(rows=ROWS), slot=lambda number: slot)
    return JobRunner(open_streams, {1: mapped}, Line())


def row_us(made: JobRunner, draw: str, epoch: int) -> tuple[float, float]:
    """(CPU, wall) time of a row."""
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    for job in range(JOBS):
        made.run(Job(job + 1, JobKind.FILL, draw, 1, 0, 7, epoch, job * ROWS % 1024, ROWS, 0, ROWS))
    taken = time.process_time() - cpu_s, time.perf_counter() - wall_s
    return taken[0] / (JOBS * ROWS) * 1e6, taken[1] / (JOBS * ROWS) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="what has this word in its name")
    parser.add_argument("--unwatched", action="store_true", help="seed every sample from the start")
    args = parser.parse_args()
    if not args.unwatched:
        generator_watch.install()
    sys.modules["seeding"] = sys.modules["__main__"]
    told = {}
    # torch last: all samples are seeded for it once it is loaded
    for draw in ("nothing", "random", "numpy", "both", "torch"):
        if args.only in draw:
            made = runner(draw)
            row_us(made, draw, 0)
            told[draw] = [
                [round(us, 2) for us in row_us(made, draw, epoch)] for epoch in range(args.rounds)
            ]
    print(json.dumps(told))


if __name__ == "__main__":
    main()
