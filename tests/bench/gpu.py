"""Batches on a GPU: the bytes are right whatever the GPU is doing, and what a batch costs.

    python tests/bench/gpu.py [--rounds 3] [--batches 200]

Needs a GPU. The proofs come first, and end the run with an error: copies behind a stream that is
held up (torch.cuda._sleep), a trainer's own copies on two streams, a CUDA graph that is captured
and replayed in the loop, and a daemon that is killed under copies. Then the figures, each of the
ways in turn, medians: GB/s of the copies, microseconds of the training thread a batch, and the part
of a step of a small network in which the GPU waits. Beside torch's DataLoader with page-locked
batches and 8 workers.

`--device cpu` runs the same loops without what only a GPU has: it checks the script.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from meter import table, versions

from loaderd import Loader

ROWS = 64
SIDE = 224
SAMPLES = 6400
CONFIG = f"""
[daemon]
socket = "gpu.sock"
exit_when_idle_s = 5
[streams.train]
dataset = "gpu_pictures:Pictures"
dataset_args = {{ n = {SAMPLES}, side = {SIDE} }}
batch_size = {ROWS}
shuffle = true
drop_last = true
"""
DATASET = """
import numpy as np


class Pictures:
    def __init__(self, n, side):
        self.n, self.side = n, side

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return {"x": np.full((self.side, self.side, 3), index % 251, np.uint8), "y": index}
"""
_cuda: Any = torch.cuda  # whose stubs leave half of it untyped


def check(batch: Any, x: torch.Tensor) -> None:
    """Every byte of every row is its index, modulo 251."""
    wanted = torch.from_numpy(batch.indices % 251).to(torch.uint8).to(x.device)
    same = (x.reshape(len(wanted), -1) == wanted[:, None]).all()
    if not bool(same):
        raise SystemExit(f"torn bytes in epoch {batch.epoch}, step {batch.step}")


# Proofs


def held_up(config: str, device: str) -> int:
    """The Loader copies, while the stream of the training is held up again and again."""
    count = 0
    with Loader(config, device=device, prefetch=2) as loader:
        for batch in loader:
            if device != "cpu":
                _cuda._sleep(20_000_000)
            check(batch, batch["x"])
            count += 1
    return count


def own_copies(config: str, device: str) -> int:
    """The training copies by itself, on two streams that are held up, and drops the batch at once."""
    streams: list[Any] = [None, None] if device == "cpu" else [_cuda.Stream(), _cuda.Stream()]
    kept: list[tuple[Any, torch.Tensor]] = []
    count = 0
    with Loader(config, pin_memory=True, prefetch=2) as loader:
        for batch in loader:
            stream = streams[count % 2]
            if stream is None:
                moved = batch["x"].clone()
            else:
                with _cuda.stream(stream):
                    _cuda._sleep(20_000_000)
                    moved = batch["x"].to(device, non_blocking=True)
                batch.record_stream(stream)
            kept.append((_Facts(batch), moved))
            del batch
            count += 1
            if len(kept) == 8:
                _synchronize(device)
                for facts, x in kept:
                    check(facts, x)
                kept.clear()
    return count


def graphs(config: str, device: str) -> int:
    """A graph is captured between two batches, and replayed on each batch after it."""
    if device == "cpu":
        return 0
    still = torch.zeros((ROWS, SIDE, SIDE, 3), dtype=torch.uint8, device=device)
    doubled = torch.zeros_like(still)
    graph: Any = None
    count = 0
    with Loader(config, device=device) as loader:
        for batch in loader:
            if graph is None:
                graph = _cuda.CUDAGraph()
                with _cuda.graph(graph):
                    torch.add(still, still, out=doubled)
            still.copy_(batch["x"])
            graph.replay()
            check(batch, still)
            if not torch.equal(doubled, batch["x"] + batch["x"]):
                raise SystemExit(f"a graph saw other bytes in step {batch.step}")
            count += 1
    return count


def killed(config: str, device: str) -> int:
    """The daemon is killed under copies, three times."""
    count = 0
    with Loader(config, device=device) as loader:
        for batch in loader:
            count += 1
            if count in (5, 20, 50):
                if device != "cpu":
                    _cuda._sleep(50_000_000)
                os.kill(_daemon(config), signal.SIGKILL)
            check(batch, batch["x"])
    return count


# Figures


def ours(config: str, device: str, batches: int, **options: Any) -> dict[str, float]:
    with Loader(config, device=device, **options) as loader:
        figures = _steps(_endless(loader), device, batches, lambda batch: batch["x"])
        figures["GB/s"] = loader.stats()["device_gb_per_s"]
    return figures


def by_hand(config: str, device: str, batches: int, **options: Any) -> dict[str, float]:
    with Loader(config, **options) as loader:
        return _steps(
            _endless(loader),
            device,
            batches,
            lambda batch: batch.to(device, non_blocking=True)["x"],
        )


def dataloader(folder: str, device: str, batches: int) -> dict[str, float]:
    sys.path.insert(0, folder)
    loader: Any = torch.utils.data.DataLoader(
        import_module("gpu_pictures").Pictures(SAMPLES, SIDE),
        batch_size=ROWS,
        shuffle=True,
        drop_last=True,
        num_workers=8,
        pin_memory=device != "cpu",
        persistent_workers=True,
    )
    return _steps(
        _endless(loader), device, batches, lambda batch: batch["x"].to(device, non_blocking=True)
    )


def _steps(
    batches: Iterator[Any], device: str, count: int, move: Callable[[Any], torch.Tensor]
) -> dict[str, float]:
    """Train a small network for so many batches."""
    torch.manual_seed(0)
    model: Any = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 7, stride=4), torch.nn.ReLU(), torch.nn.Conv2d(64, 128, 3, stride=2)
    ).to(device)
    began_s = thread_s = busy_ms = 0.0
    for number in range(count + 10):
        if number == 10:  # warm
            _synchronize(device)
            began_s, thread_s, busy_ms = time.perf_counter(), 0.0, 0.0
        before_s = time.perf_counter()
        x = move(next(batches))
        thread_s += time.perf_counter() - before_s
        marks = [_cuda.Event(enable_timing=True) for _ in range(2)] if device != "cpu" else []
        if marks:
            marks[0].record()
        model(x.permute(0, 3, 1, 2).float()).mean().backward()
        if marks:
            marks[1].record()
            marks[1].synchronize()
            busy_ms += marks[0].elapsed_time(marks[1])
    _synchronize(device)
    whole_s = time.perf_counter() - began_s
    return {
        "batches/s": count / whole_s,
        "thread us": thread_s / count * 1e6,
        "GPU waits %": 100 * (1 - busy_ms / 1000 / whole_s) if busy_ms else float("nan"),
    }


class _Facts:
    def __init__(self, batch: Any) -> None:
        self.epoch, self.step, self.indices = batch.epoch, batch.step, np.array(batch.indices)


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def _synchronize(device: str) -> None:
    if device != "cpu":
        _cuda.synchronize()


def _daemon(config: str) -> int:
    """The daemon's pid."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"serve" in words and config.encode() in words:
                return int(entry.name)
    raise SystemExit("there is no daemon to kill")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--device", default="cuda")
    asked = parser.parse_args()
    if asked.device != "cpu" and not torch.cuda.is_available():
        raise SystemExit("torch finds no GPU here; --device cpu checks the script")
    with tempfile.TemporaryDirectory() as folder:
        config = str(Path(folder, "gpu.toml"))
        Path(config).write_text(CONFIG)
        Path(folder, "gpu_pictures.py").write_text(DATASET)
        for proof in (held_up, own_copies, graphs, killed):
            print(f"{proof.__name__}: {proof(config, asked.device)} batches, every byte right")
        ways: dict[str, Callable[[], dict[str, float]]] = {
            "DataLoader, 8 workers": lambda: dataloader(folder, asked.device, asked.batches),
            "loaderd, device=": lambda: ours(config, asked.device, asked.batches),
            "loaderd, pin_memory=True": lambda: by_hand(
                config, asked.device, asked.batches, pin_memory=True
            ),
            "loaderd, pageable": lambda: by_hand(config, asked.device, asked.batches),
        }
        found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for _ in range(asked.rounds):
            for way, measure in ways.items():
                found[way].append(measure())
    names = ["batches/s", "thread us", "GPU waits %", "GB/s"]
    print(versions())
    print(
        table(
            ["way", *names],
            [
                [way, *(f"{median(r.get(n, float('nan')) for r in rounds):.1f}" for n in names)]
                for way, rounds in found.items()
            ],
        )
    )


if __name__ == "__main__":
    main()
