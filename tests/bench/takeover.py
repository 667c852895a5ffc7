"""How long a trainer stands while its daemon is upgraded: `python tests/bench/takeover.py`.

A trainer takes batches of 64 pictures. Meanwhile another daemon takes over (`serve --takeover`), or the first one is
drained and another one started. What counts is the longest `next()` behind the first one, and that the stream is byte for
byte the undisturbed one. The two ways take turns.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from loaderd_client import Loader

MODULE = """
import numpy as np

class Pictures:
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return {"image": np.random.default_rng(index).integers(0, 256, (224, 224, 3), np.uint8)}
"""
CONFIG = """
[daemon]
socket = "d.sock"
[workers]
num_workers = 2
[streams.train]
dataset = "pictures:Pictures"
batch_size = 64
shuffle = true
"""
STEPS, AT, STEP_S = 120, 20, 0.05
Way = Callable[[Path, subprocess.Popen[bytes]], subprocess.Popen[bytes]]


def serve(config: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "loaderd", "serve", str(config), "--log-level", "error", *more]
    return subprocess.Popen(command)


def take_over(config: Path, old: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    return serve(config, "--takeover")


def drain_then_serve(config: Path, old: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    old.terminate()
    old.wait()
    return serve(config)


def train(config: Path, way: Way | None) -> tuple[float, str]:
    """(the longest `next()` behind the first, digest of the batches)."""
    daemons = [serve(config)]
    taken, longest_s = hashlib.sha256(), 0.0
    try:
        with Loader(str(config.parent / "d.sock"), stream="train", output="numpy") as loader:
            batches = iter(loader)
            for step in range(STEPS):
                if way is not None and step == AT:
                    daemons.append(way(config, daemons[0]))
                begin_s = time.perf_counter()
                batch = next(batches, None)
                if batch is None:
                    batches = iter(loader)
                    batch = next(batches)
                longest_s = max(longest_s, time.perf_counter() - begin_s if step else 0.0)
                taken.update(batch["image"].data)
                time.sleep(STEP_S)
    finally:
        daemons[-1].terminate()
        for daemon in daemons:
            daemon.wait()
    return longest_s, taken.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.toml"
        config.write_text(CONFIG)
        config.with_name("pictures.py").write_text(MODULE)
        ways: dict[str, Way | None] = {
            "undisturbed": None,
            "serve --takeover": take_over,
            "drain, then serve": drain_then_serve,
        }
        stands: dict[str, list[float]] = {name: [] for name in ways}
        digests: set[str] = set()
        for _ in range(rounds):
            for name, way in ways.items():
                longest_s, digest = train(config, way)
                stands[name].append(longest_s)
                digests.add(digest)
    for name, seconds in stands.items():
        print(
            f"{name:20} longest next(): median {statistics.median(seconds):.2f} s, most {max(seconds):.2f} s"
        )
    print("the stream is", "the same" if len(digests) == 1 else "ANOTHER ONE", "in all rounds")
    return 0 if len(digests) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
