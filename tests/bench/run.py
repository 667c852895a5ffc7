"""loaderd beside torch's DataLoader, all workloads in one run: `make bench`, or

    python tests/bench/run.py [--rounds 3] [--seconds 1.2] [--only WORD] [--json FILE] [--small]

In each round both sides of every workload are measured once, in turn; figures are medians over the
rounds, with the least and the most. The ratio says how many times better loaderd is. Prints a
table; asserts nothing about time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import corpus
from meter import family, pss_mb, table, versions
from workloads import FIGURES, KEYS, WORKLOADS, Figure, Way, Workload

from loaderd.cli.bench import processes

LOOK_S = 0.25
LEAST_S = 2.5  # of a trainer that pauses: two epochs at least
HERE = Path(__file__).parent
CONFIG = """
[workers]
num_workers = {workers}
[streams.train]
lmdb = "{lmdb}"
batch_size = {batch_size}
shuffle = true
drop_last = true
{more}
"""
CROP = """
[[streams.train.transforms]]
op = "random_resized_crop"
size = 224
[[streams.train.transforms]]
op = "hflip"
"""
FLOAT = """
[[streams.train.transforms]]
op = "normalize"
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]
[[streams.train.transforms]]
op = "to_chw"
"""


Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Site:
    """Where the data lies, how many samples there are of each kind, the most keys that a dataset
    has, and how long a measurement lasts; one of a trainer that pauses lasts two epochs at least.
    """

    folder: Path
    counts: dict[str, int]
    most_keys: int
    seconds: float
    least_s: float

    @property
    def socket(self) -> str:
        return str(self.folder / "s.sock")

    def config(self, work: Workload, way: Way) -> str:
        more = ""
        if way.data == "named":
            more += (
                f'layout = "corpus:Named"\nlayout_args = {{ count = {self.counts[work.kind]}, '
                f"total = {min(way.keys, self.most_keys)} }}\n"
            )
        if work.kind == "photos":
            more += CROP + (FLOAT if work.out == "f32" else "")
        lmdb = self.folder / (
            f"{work.kind}.lmdb" if way.data == "named" else f"{work.kind}-{way.data}.lmdb"
        )
        path = self.folder / "bench.toml"
        path.write_text(
            CONFIG.format(workers=work.workers, lmdb=lmdb, batch_size=work.batch_size, more=more)
        )
        return str(path)

    def asked(
        self, work: Workload, make: str | None, args: dict[str, Any], begins: bool = False
    ) -> dict[str, Any]:
        """What a trainer is told. begins: the first batch is all that is wanted."""
        seconds = 0.0 if begins else max(self.seconds, self.least_s if work.pause_s else 0.0)
        how = {
            "seconds": seconds,
            "busy_s": work.busy_s,
            "pause_s": work.pause_s,
            "since_s": time.monotonic(),
        }
        return {"make": make, "args": args, **how}

    def dataloader(self, work: Workload) -> Figures:
        args = {
            "kind": work.kind,
            "path": str(self.folder / f"{work.kind}.lmdb"),
            "count": self.counts[work.kind],
            "out": work.out,
            "batch_size": work.batch_size,
            "workers": work.workers,
            "keys": min(work.keys, self.most_keys),
        }
        with processes.trainer(self.asked(work, "corpus:dataloader", args)) as trainer:
            return _watched(work, trainer, None)

    def loaderd(self, work: Workload, way: Way) -> Figures:
        """Raises CommandError with what the daemon says if it can't serve."""
        config, args = self.config(work, way), {"source": self.socket, "stream": "train"}
        # the clock starts before the daemon does
        begins = None if way.up else self.asked(work, None, args, begins=True)
        serve = ["serve", config, "--socket", self.socket]
        with processes.daemon(serve, self.socket, f"{self.socket}.log") as daemon:
            if way.up:
                daemon.wait_ready()
            with processes.trainer(begins or self.asked(work, None, args)) as trainer:
                return _watched(work, trainer, daemon if way.up else None)


def _watched(
    work: Workload, trainer: processes.TrainerProcess, daemon: processes.DaemonProcess | None
) -> Figures:
    """What a trainer measures, and what its processes and the daemon's look like meanwhile."""
    looks: list[processes.CpuReading] = []
    memory = 0.0
    while trainer.runs(LOOK_S):
        if "pss_mb" in work.figures:
            memory = max(memory, pss_mb(family([trainer.pid, *([daemon.pid] if daemon else ())])))
        if daemon is not None:
            looks += daemon.look("train")
    made = processes.summed(trainer.answer(), looks)
    return {**made.trainer, "all_s": made.all_s, "pss_mb": memory}


def told(figure: Figure, values: Sequence[float]) -> str:
    """Median, least and most."""
    shown = [
        f"{value * figure.scale:{figure.form}}"
        for value in (median(values), min(values), max(values))
    ]
    return f"{shown[0]} ({shown[1]} to {shown[2]})" if len(values) > 1 else shown[0]


def lines(
    work: Workload, theirs: Sequence[Figures], ours: Sequence[Sequence[Figures]]
) -> list[list[str]]:
    """A row for each figure of each way: workload, what, DataLoader, loaderd, ratio."""
    out = []
    for way, runs in zip(work.ways, ours, strict=True):
        for name in work.figures:
            figure, a, b = FIGURES[name], [run[name] for run in theirs], [run[name] for run in runs]
            if figure.lacks and not (all(a) and all(b)):
                continue
            ratio = (
                median(b) / median(a)
                if figure.more and any(a)
                else median(a) / median(b)
                if any(b)
                else 0.0
            )
            title = f"{work.title}: {way.name}" if way.name else work.title
            out.append([title, figure.text, told(figure, a), told(figure, b), times(ratio)])
    return out


def times(ratio: float) -> str:
    return f"{ratio:.2f}x" if 0 < ratio < 100 else f"{ratio:,.0f}x" if ratio else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.2, help="of each measurement")
    parser.add_argument("--only", default="", metavar="WORD", help="workloads whose title has it")
    parser.add_argument("--json", metavar="FILE", help="every single figure, too")
    parser.add_argument(
        "--small", action="store_true", help="little data: whether it works, not how fast"
    )
    args = parser.parse_args()
    works = [work for work in WORKLOADS if args.only in work.title]
    sys.path.insert(0, str(HERE))
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(HERE), os.environ.get("PYTHONPATH")))
    )
    theirs: list[list[Figures]] = [[] for _ in works]
    ours: list[list[list[Figures]]] = [[[] for _ in work.ways] for work in works]
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder, small = Path(name), args.small
        site = Site(
            folder,
            corpus.SMALL if small else corpus.COUNTS,
            1000 if small else KEYS,
            args.seconds,
            0.0 if small else LEAST_S,
        )
        for kind in dict.fromkeys(work.kind for work in works):
            say(f"making {site.counts[kind]} samples: {kind}")
            corpus.make(
                site.folder,
                kind,
                site.counts[kind],
                min(site.most_keys, max(w.keys for w in works if w.kind == kind)),
            )
        for n in range(args.rounds):
            for at, work in enumerate(works):
                if n and work.once:
                    continue
                say(f"round {n + 1} of {args.rounds}: {work.title}")
                theirs[at].append(site.dataloader(work))
                for way, runs in zip(work.ways, ours[at], strict=True):
                    runs.append(site.loaderd(work, way))
    print(
        f"{os.cpu_count()} processors, {args.rounds} rounds; median (least to most). {versions()}\n"
    )
    rows = [row for at, work in enumerate(works) for row in lines(work, theirs[at], ours[at])]
    print(table(("workload", "what", "DataLoader", "loaderd", "ratio"), rows))
    if args.json:
        every = {
            work.title: {"dataloader": theirs[at], "loaderd": ours[at]}
            for at, work in enumerate(works)
        }
        Path(args.json).write_text(json.dumps(every, indent=1))


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    main()
