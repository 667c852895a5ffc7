from __future__ import annotations

from pathlib import Path

from loaderd_testing.examples import Examples

IMPORTS = ("ray.train.torch",)

# Ray's local mode trains in the ranks of torchrun, without a cluster of Ray, which would take a
# minute of processor time. It has no storage: here is one.
LOCAL = """
import os, sys
from pathlib import Path
import ray.train.v2._internal.execution.local_mode.torch as local_mode
import ray_train
from ray.train import Checkpoint

source, folder = sys.argv[1:]
saved = Path(folder)

class Stored(local_mode.LocalTrainFnUtils):
    def report(self, metrics, checkpoint=None, **others):
        if checkpoint is not None:
            saved.mkdir(exist_ok=True)
            os.rename(Path(checkpoint.path) / "saved.pt", saved / "saved.pt")
    def get_checkpoint(self):
        return Checkpoint.from_directory(folder) if saved.exists() else None

local_mode.LocalTrainFnUtils = Stored
ray_train.main(source, folder, "0")
"""


def test_two_workers_that_are_killed_go_on_from_the_checkpoint_with_their_next_batches(
    examples: Examples, tmp_path: Path
) -> None:
    (examples.folder / "ray_local.py").write_text(LOCAL)
    ranks = [examples.undisturbed(2, rank, 2) for rank in (0, 1)]
    args = ("ray_local.py", str(tmp_path / "saved"))
    with examples.held_back(ranks[0][6][2][0]):
        first = examples.start(*args, ranks=2, imports=IMPORTS)
        first.has_trained(6)
        first.kill()
    second = examples.start(*args, ranks=2, imports=IMPORTS).finished()
    for rank in (0, 1):
        assert first.steps(rank) == ranks[rank][:6]
        assert second.steps(rank) == ranks[rank][4:]  # saved after four steps
        # both lives have trained the fifth and the sixth, from the same weights
        lives = [
            [line for line in run.text(rank).splitlines() if line.startswith("epoch")]
            for run in (first, second)
        ]
        assert lives[0][4:] == lives[1][:2]
