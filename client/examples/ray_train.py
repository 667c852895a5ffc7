"""Ray Train: checkpoints hold the Loader's state, and Ray starts dead workers again from the last.

    python client/examples/ray_train.py client/examples/config.toml results [WORKERS]

The workers of a node share one daemon. Give a path that is there on every node: that of the config,
or that of the socket of a `loaderd serve` on each. Started again, it goes on from `results`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray.train.torch
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from loaderd import Loader

EPOCHS = 2
SAVE_EVERY = 4  # steps


def train(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    device = ray.train.torch.get_device()
    model = ray.train.torch.prepare_model(torch.nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    # Rank and world size come from torch.distributed, which Ray has initialised.
    # A Loader needs no prepare_data_loader.
    with Loader(settings["source"], stream="train", device=device) as loader:
        if checkpoint := ray.train.get_checkpoint():
            with checkpoint.as_directory() as folder:
                saved = torch.load(Path(folder) / "saved.pt", map_location=device)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])  # it is the same on every rank
        for epoch in range(loader.epoch, EPOCHS):
            loader.set_epoch(epoch)  # the epoch of a loaded state keeps its place
            for batch in loader:
                loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(
                    f"epoch {batch.epoch} step {batch.step} samples {batch.indices.tolist()} "
                    f"loss {loss.item():.6f}"
                )
                if (batch.step + 1) % SAVE_EVERY == 0:
                    saved = {
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "loader": loader.state_dict(),
                    }
                    report(saved, {"epoch": batch.epoch, "step": batch.step, "loss": loss.item()})


def report(saved: dict[str, Any], metrics: dict[str, Any]) -> None:
    """Called by all workers; the first one has the checkpoint."""
    if ray.train.get_context().get_world_rank() > 0:
        ray.train.report(metrics)
        return
    with TemporaryDirectory() as folder:
        torch.save(saved, Path(folder) / "saved.pt")
        ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))


def main(source: str, folder: str, workers: str = "2") -> None:
    trainer = TorchTrainer(
        train,
        train_loop_config={"source": os.path.abspath(source)},
        scaling_config=ScalingConfig(num_workers=int(workers), use_gpu=torch.cuda.is_available()),
        run_config=RunConfig(
            name="points",
            storage_path=os.path.abspath(folder),
            failure_config=FailureConfig(max_failures=3),
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
