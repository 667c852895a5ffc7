"""Whether a trainer that gets what the verdict asks for gets what it promises.

    python tests/bench/prediction.py [SECONDS]

A trainer that computes for a while for each batch, and samples that take a while: first with one
worker, then with as many as the verdict of that run asks for. The samples sleep, so that it does not
matter how many processors there are.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from loaderd.cli import status
from loaderd.core.verdict import Verdict
from loaderd_client import Loader

MODULE = """
import time
import numpy as np

class Rows:
    def __init__(self, sleep):
        self.sleep, self.row = sleep, np.zeros(1000, np.uint8)
    def __len__(self):
        return 1_000_000
    def __getitem__(self, index):
        time.sleep(self.sleep)
        return {"x": self.row}
"""
CONFIG = """
[daemon]
socket = "d.sock"
[workers]
num_workers = %d
[streams.train]
dataset = "mine:Rows"
dataset_args = {sleep = %f}
batch_size = 8
"""
LOADS = ((0.005, 0.03), (0.01, 0.025), (0.02, 0.05))  # seconds of a sample, seconds of a step


def judged(folder: Path, workers: int, sample_s: float, own_s: float, seconds: float) -> Verdict:
    """What is said of the trainer after so many seconds."""
    config = folder / "config.toml"
    config.write_text(CONFIG % (workers, sample_s))
    with Loader(str(config), output="numpy") as loader:
        batches = iter(loader)
        next(batches)
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            next(batches)
            time.sleep(own_s)
        found = status.fetch(str(folder / "d.sock")).verdict
    assert found is not None
    return found


def main(seconds: float) -> None:
    print(
        f"{'sample':>8} {'step':>8} {'workers':>8} {'waits':>6} {'batches/s':>10}   promised  ratio"
    )
    for sample_s, own_s in LOADS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "mine.py").write_text(MODULE)
            workers, promised = 1, 0.0
            for _ in range(2):
                made = judged(folder, workers, sample_s, own_s, seconds)
                line = (
                    f"{sample_s * 1e3:6.0f}ms {own_s * 1e3:6.0f}ms {workers:8} "
                    f"{made.wait_fraction:6.0%} {made.batches_per_s:10.1f}"
                )
                if promised:
                    line += f" {promised:10.1f} {made.batches_per_s / promised:6.2f}"
                print(line)
                promised = made.demand_per_s or 0.0
                workers = int(made.setting.partition(" = ")[2] or workers)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 8.0)
