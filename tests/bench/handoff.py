"""How finished batches reach the trainer: 64 x 3 x 224 x 224 uint8, beside torch's DataLoader, in one run.

    python tests/bench/handoff.py [--rounds 3] [--seconds 4] [--workers 2]

Prints a table; asserts nothing about time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from corpus import database
from meter import cpu_s, faults, row, table, versions, wait_s

BATCH, PREFETCH = 64, 4
CONFIG = """
[daemon]
socket = "bench.sock"
[workers]
num_workers = {workers}
[streams.train]
lmdb = "{lmdb}"
batch_size = 64
shuffle = true
drop_last = true
"""


def forever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def touch(batch: Any) -> None:
    """Read a byte of every page, as any use of the data would."""
    flat = batch["x"].numpy().reshape(-1).view(np.uint8)
    int(flat[::4096].sum())


def throughput(batches: Iterator[Any], seconds: float) -> tuple[float, float]:
    """(batches a second, this process's CPU in us a batch), every page of every batch touched."""
    for _ in range(16):
        touch(next(batches))
    n, begin, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() < begin + seconds:
        touch(next(batches))
        n += 1
    return n / (time.perf_counter() - begin), (time.process_time() - cpu) / n * 1e6


def ready(batches: Iterator[Any], rounds: int, pause_s: float) -> tuple[float, float]:
    """(p50 in us of next() on batches that are ready, called back to back; page faults a batch in the steady state)."""
    times: list[float] = []
    for _ in range(12):
        next(batches)
    before = faults()
    for _ in range(rounds):
        wait_s(pause_s)
        for _ in range(PREFETCH - 1):
            begin = time.perf_counter()
            next(batches)
            times.append(time.perf_counter() - begin)
    return float(np.percentile(times, 50)) * 1e6, (faults() - before) / len(times)


class Daemon:
    def __init__(self, folder: Path, lmdb: Path, workers: int) -> None:
        config = folder / "bench.toml"
        config.write_text(CONFIG.format(workers=workers, lmdb=lmdb))
        self.socket = folder / "bench.sock"
        self.process = subprocess.Popen([sys.executable, "-m", "loaderd", "serve", str(config)], stderr=subprocess.DEVNULL)

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(30)


def one_round(daemon: Daemon, lmdb: Path, args: argparse.Namespace, out: dict[str, list[float]]) -> None:
    from loaderd_client import Loader

    with Loader(str(daemon.socket), stream="train", prefetch=PREFETCH) as loader:
        batches = forever(loader)
        next(batches)
        cpu, made = cpu_s(daemon.process.pid), loader.stats()["batches"]
        rate, mine = throughput(batches, args.seconds)
        out["loaderd"].append(rate)
        out["daemon CPU"].append((cpu_s(daemon.process.pid) - cpu) / (loader.stats()["batches"] - made) * 1e6)
        out["loaderd trainer CPU"].append(mine)
        p50, minor = ready(batches, 30, 0.15)
        out["next"].append(p50)
        out["page faults"].append(minor)
        cpu, made = time.process_time(), loader.stats()["batches"]
        for _ in range(300):
            next(batches)
        out["client CPU, data untouched"].append((time.process_time() - cpu) / (loader.stats()["batches"] - made) * 1e6)

    loader = torch_loader(lmdb, args.workers)
    batches = forever(loader)
    rate, mine = throughput(batches, args.seconds)
    out["torch"].append(rate)
    out["torch trainer CPU"].append(mine)
    out["torch next"].append(ready(batches, 10, 0.3)[0])
    del batches, loader


class Mapped:
    """The same samples as a map-style dataset, as a DataLoader's user would read them."""

    def __init__(self, lmdb: str) -> None:
        self.lmdb, self.source = lmdb, None

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.source is None:
            from loaderd.data.plan import StreamPlan
            from loaderd.data.recipe import Recipe
            from loaderd.data.source import Source

            plan = StreamPlan("bench", lmdb=self.lmdb)
            self.source = Recipe(plan, Source(plan))
        return dict(self.source.make(index, 0, 0, lambda stage: None))


def torch_loader(lmdb: Path, workers: int) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(Mapped(str(lmdb)), batch_size=BATCH, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    names = (
        "loaderd",
        "torch",
        "daemon CPU",
        "loaderd trainer CPU",
        "torch trainer CPU",
        "next",
        "torch next",
        "page faults",
        "client CPU, data untouched",
    )
    out: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lmdb = database(folder, "u8")
        with Daemon(folder, lmdb, args.workers) as daemon:
            for _ in range(args.rounds):
                one_round(daemon, lmdb, args, out)
    print(f"\n64 x 3 x 224 x 224 uint8, {args.workers} workers, {args.rounds} rounds. {versions()}\n")
    rows = [
        row("batches/s, loaderd", out["loaderd"], "", out["torch"]),
        row("batches/s, DataLoader", out["torch"], ""),
        row("trainer CPU a batch, data touched, loaderd", out["loaderd trainer CPU"], "us", out["torch trainer CPU"]),
        row("trainer CPU a batch, data touched, DataLoader", out["torch trainer CPU"], "us"),
        row("client CPU a batch, data untouched", out["client CPU, data untouched"], "us"),
        row("next() p50 on a ready batch, loaderd", out["next"], "us", out["torch next"]),
        row("next() p50 on a ready batch, DataLoader", out["torch next"], "us"),
        row("page faults a batch in the trainer", out["page faults"], ""),
        row("daemon CPU a batch", out["daemon CPU"], "us"),
    ]
    print(table(("what", "median", "spread", "ratio"), rows))


if __name__ == "__main__":
    main()
