"""What does not grow: CPU a batch over the number of samples, of epochs and of idle sessions; and
what N ranks on one daemon cost.

    python tests/bench/scale.py [--rounds 3] [--batches 400] [--plot scale.svg]

All of one figure's points take turns, round after round, on one daemon with two workers. CPU is the
daemon's, its workers' and the trainer's own, a batch of 64 small rows: what is left of a batch when
its samples cost nothing. Prints tables; `--plot` draws them (matplotlib). Asserts nothing about
time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from meter import cpu_s, table, versions

SIZES = (1_000, 1_000_000, 1_000_000_000)
EPOCHS = (0, 1_000, 1_000_000)
IDLE = (0, 10, 100)
RANKS = (1, 2, 4, 8)
CONFIG = """
[daemon]
socket = "scale.sock"
[workers]
num_workers = 2
"""
STREAM = """
[streams.n{n}]
dataset = "numbers_of:Numbers"
dataset_args = {{ n = {n} }}
batch_size = 64
shuffle = true
drop_last = true
"""
DATASET = """
import numpy as np


class Numbers:
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return {"x": np.full(64, index, np.float32), "y": index}
"""
Point = tuple[float, float, float]  # CPU in us a batch: daemon, workers, trainer
Figure = dict[int, list[Point]]


class Daemon:
    def __init__(self, folder: Path) -> None:
        (folder / "numbers_of.py").write_text(DATASET)
        config = folder / "scale.toml"
        config.write_text(CONFIG + "".join(STREAM.format(n=n) for n in SIZES))
        self.socket = str(folder / "scale.sock")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "loaderd", "serve", str(config)], stderr=subprocess.DEVNULL
        )

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(30)

    def status(self) -> dict[str, Any]:
        command = [sys.executable, "-m", "loaderd", "status", self.socket, "--json"]
        return dict(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))

    def used(self, workers: list[int]) -> tuple[float, float, float]:
        """CPU seconds so far: daemon, workers, this process."""
        return cpu_s(self.process.pid), sum(map(cpu_s, workers)), time.process_time()


def forever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def measured(daemon: Daemon, n: int, batches: int, epoch: int = 0) -> Point:
    """One trainer on the stream of n samples, from the beginning of `epoch` on."""
    from loaderd_client import Loader

    with Loader(daemon.socket, stream=f"n{n}") as loader:
        loader.set_epoch(epoch)
        taken = forever(loader)
        for _ in range(20):
            next(taken)
        workers = [one["pid"] for one in daemon.status()["workers"]]
        before = daemon.used(workers)
        for _ in range(batches):
            next(taken)
        after = daemon.used(workers)
    return tuple((b - a) / batches * 1e6 for a, b in zip(before, after, strict=True))  # type: ignore[return-value] # three of them


@contextlib.contextmanager
def others(daemon: Daemon, what: str, *args: int) -> Iterator[subprocess.Popen[str]]:
    """A process of this file that plays `what`, from when it has said that it is there until the
    end of the block.
    """
    command = [sys.executable, __file__, what, daemon.socket, *map(str, args)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "here\n", f"{what} did not come"
        yield child
    finally:
        child.stdin.close()
        child.wait(60)
        child.stdout.close()


def play_idle(socket: str, count: int) -> None:
    """`count` trainers that take one batch each and then do nothing."""
    from loaderd_client import Loader

    loaders = [Loader(socket, stream=f"n{SIZES[0]}", prefetch=1) for _ in range(count)]
    kept = [next(iter(loader)) for loader in loaders]
    print("here", flush=True)
    sys.stdin.read()
    assert len(kept) == count
    for loader in loaders:
        loader.close()


def play_rank(socket: str, rank: int, world_size: int, batches: int) -> None:
    """One rank: warms up, waits for the word, takes its batches, says so, and stays attached."""
    from loaderd_client import Loader

    with Loader(socket, stream=f"n{SIZES[1]}", rank=rank, world_size=world_size) as loader:
        taken = forever(loader)
        for _ in range(20):
            next(taken)
        print("here", flush=True)
        sys.stdin.readline()
        for _ in range(batches):
            next(taken)
        print("done", flush=True)
        sys.stdin.read()


def ranks(daemon: Daemon, count: int, batches: int) -> tuple[Point, int]:
    """(CPU a batch with `count` ranks, each a process of its own, the third figure 0; bytes of
    shared memory of all of them).
    """
    with contextlib.ExitStack() as stack:
        everybody = [
            stack.enter_context(others(daemon, "rank", rank, count, batches))
            for rank in range(count)
        ]
        status = daemon.status()
        workers = [one["pid"] for one in status["workers"]]
        before = daemon.used(workers)
        for child in everybody:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        for child in everybody:
            assert child.stdout is not None
            assert child.stdout.readline() == "done\n"
        after = daemon.used(workers)
    made = count * batches
    return ((after[0] - before[0]) / made * 1e6, (after[1] - before[1]) / made * 1e6, 0.0), status[
        "memory"
    ]["segments"]


def run(args: argparse.Namespace) -> tuple[dict[str, Figure], dict[int, int]]:
    figures: dict[str, Figure] = {"samples": {}, "epoch": {}, "idle sessions": {}, "ranks": {}}
    shared: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as name, Daemon(Path(name)) as daemon:
        measured(daemon, SIZES[0], args.batches)
        for _ in range(args.rounds):
            for n in SIZES:
                figures["samples"].setdefault(n, []).append(measured(daemon, n, args.batches))
            for epoch in EPOCHS:
                figures["epoch"].setdefault(epoch, []).append(
                    measured(daemon, SIZES[0], args.batches, epoch)
                )
            for count in IDLE:
                with others(daemon, "idle", count) if count else contextlib.nullcontext():
                    figures["idle sessions"].setdefault(count, []).append(
                        measured(daemon, SIZES[1], args.batches)
                    )
            for count in RANKS:
                point, shared[count] = ranks(daemon, count, args.batches)
                figures["ranks"].setdefault(count, []).append(point)
    return figures, shared


def medians(figure: Figure) -> dict[int, Point]:
    return {
        x: tuple(median(point[i] for point in points) for i in range(3))
        for x, points in figure.items()
    }  # type: ignore[misc]


def rows(name: str, figure: Figure, shared: dict[int, int]) -> list[list[str]]:
    found = medians(figure)
    first = next(iter(found.values()))
    out: list[list[str]] = []
    for x, (daemon, workers, trainer) in found.items():
        ratio = (daemon + workers + trainer) / sum(first)
        bytes_ = f"{shared[x] / 1e6:.2f} MB" if name == "ranks" else ""
        out.append(
            [
                f"{x:,} {name}" if name != "epoch" else f"epoch {x:,}",
                f"{daemon:.0f}",
                f"{workers:.0f}",
                f"{trainer:.0f}" if trainer else "",
                f"{ratio:.2f}x",
                bytes_,
            ]
        )
    return out


def plot(figures: dict[str, Figure], path: str) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "scale", "font.size": 9})
    from matplotlib import pyplot

    drawing, axes = pyplot.subplots(
        1, len(figures), figsize=(11, 2.8), sharey=True, layout="constrained"
    )
    for axis, (name, figure) in zip(axes, figures.items(), strict=True):
        found = medians(figure)
        places = range(len(found))
        below = [0.0] * len(found)
        for i, who in enumerate(("daemon", "workers", "trainer")):
            heights = [point[i] for point in found.values()]
            axis.bar(
                places,
                heights,
                bottom=below,
                width=0.6,
                label=who,
                color=("#31688e", "#35b779", "#fde725")[i],
            )
            below = [a + b for a, b in zip(below, heights, strict=True)]
        axis.set_xticks(places, [f"{x:,}" if x < 1000 else f"1e{len(str(x)) - 1}" for x in found])
        axis.set_xlabel(name)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("CPU, us a batch of 64")
    drawing.legend(
        *axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False
    )
    drawing.savefig(path, metadata={"Date": None})


def main() -> None:
    if sys.argv[1:2] == ["idle"]:
        return play_idle(sys.argv[2], int(sys.argv[3]))
    if sys.argv[1:2] == ["rank"]:
        return play_rank(sys.argv[2], *map(int, sys.argv[3:]))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--plot", default="")
    args = parser.parse_args()
    figures, shared = run(args)
    print(f"\nCPU a batch of 64 rows of 64 float32, in us, {args.rounds} rounds. {versions()}\n")
    head = ("what", "daemon", "workers", "trainer", "all, against the first", "shared memory")
    for name, figure in figures.items():
        print(table(head, rows(name, figure, shared)), end="\n\n")
    if args.plot:
        plot(figures, args.plot)
    return None


if __name__ == "__main__":
    main()
