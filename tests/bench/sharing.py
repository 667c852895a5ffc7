"""Trainers that share their batches beside trainers that do not, on one daemon.

    python tests/bench/sharing.py [--rounds 5] [--seconds 5] [--trainers 2 4] [--workers 2]
                                  [--data plain]

All trainers want the same photos, as training crops of 224 x 224, and take them as fast as they
come. One trainer alone, several without and several with sharing take turns, round after round.
Prints medians, the least and the most; asserts nothing about time. CPU is that of all processes
for an image that one trainer gets: it tells most where others use the machine, too.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import corpus
from meter import cpu_s, table, versions

from loaderd.cli import status
from loaderd.cli.bench import processes

LOOK_S = 0.2
BATCH = 64
CONFIG = """
[workers]
num_workers = {workers}
[streams.train]
lmdb = "{lmdb}"
batch_size = {batch}
shuffle = true
drop_last = true
[[streams.train.transforms]]
op = "random_resized_crop"
size = 224
[[streams.train.transforms]]
op = "hflip"
"""
Case = tuple[int, bool]  # trainers, whether they share
Figures = tuple[float, float, float, float]  # images/s of all; of the slowest; CPU us; hit rate


def measure(folder: Path, config: Path, case: Case, seconds: float) -> Figures:
    count, shared = case
    socket = str(folder / "s.sock")
    asked: dict[str, Any] = {
        "make": None,
        "args": {"source": socket, "stream": "train", "shared": shared},
        "seconds": seconds,
    }
    looks: list[tuple[float, float]] = []  # time, CPU of daemon and workers
    hits = [(0, 0)]
    with ExitStack() as stack:
        serve = ["serve", str(config), "--socket", socket]
        daemon = stack.enter_context(processes.daemon(serve, socket, f"{socket}.log"))
        daemon.wait_ready()
        trainers = [stack.enter_context(processes.trainer(asked)) for _ in range(count)]
        while all(trainer.runs(LOOK_S / count) for trainer in trainers):
            found = status.fetch(socket)
            workers = [worker.process.pid for worker in found.workers if worker.process]
            looks.append((time.perf_counter(), cpu_s(daemon.pid) + sum(map(cpu_s, workers))))
            hits += [(group.hits, group.told) for group in found.groups]
        for trainer in trainers:
            while trainer.runs(LOOK_S):
                pass
        answers = [trainer.answer() for trainer in trainers]
    begin_s = max(answer["begin_s"] for answer in answers)
    end_s = min(answer["end_s"] for answer in answers)
    (first_s, first), *_, (last_s, last) = [at for at in looks if begin_s <= at[0] <= end_s]
    rates = [answer["samples_s"] for answer in answers]
    own = sum(answer["cpu_s"] * answer["batches_s"] for answer in answers) / sum(rates)
    cpu_us = 1e6 * (own + (last - first) / (last_s - first_s) / sum(rates))
    had, told = hits[-1]
    return sum(rates), min(rates), cpu_us, had / told if told else 0.0


def told(values: Sequence[float], form: str) -> str:
    """Median, least and most."""
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--trainers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data", choices=("plain", "tiles"), default="plain")
    args = parser.parse_args()
    cases: list[Case] = [(1, False)]
    cases += [(count, shared) for count in args.trainers for shared in (False, True)]
    found: dict[Case, list[Figures]] = {case: [] for case in cases}
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH")))
    )
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        corpus.make(folder, "photos", corpus.COUNTS["photos"], 0)
        config = folder / "bench.toml"
        lmdb = folder / f"photos-{args.data}.lmdb"
        config.write_text(CONFIG.format(workers=args.workers, lmdb=lmdb, batch=BATCH))
        for n in range(args.rounds):
            for case in cases:
                found[case].append(measure(folder, config, case, args.seconds))
                sys.stderr.write(f"round {n + 1} {case}: {found[case][-1]}\n")
    rows = []
    for (count, shared), figures in found.items():
        all_s, least_s, cpu_us, hits = zip(*figures, strict=True)
        apart = [each[0] for each in found[count, False]]
        rows.append(
            [
                f"{count}{', sharing' if shared else ''}",
                told(all_s, ",.0f"),
                f"{median(all_s) / median(apart):.2f}x",
                told(least_s, ",.0f"),
                told(cpu_us, ",.0f"),
                f"{median(hits):.0%}" if shared else "",
            ]
        )
    print(f"{os.cpu_count()} processors, {args.rounds} rounds; {versions()}\n")
    head = ("trainers", "images/s of all", "of apart", "of the slowest", "CPU, us an image", "hits")
    print(table(head, rows))


if __name__ == "__main__":
    main()
