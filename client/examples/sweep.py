"""Four trials of one model with different learning rates, as four processes that share batches.

    python client/examples/sweep.py client/examples/config.toml sweep

One daemon makes each batch once for all trials that want it at about the same time. Each trial is
killed once, as on a machine that is taken away. It goes on from its checkpoint, with the batch
that comes next, and meets the others again.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing.connection import wait
from pathlib import Path

import torch

from loaderd import Loader

RATES = (0.5, 0.1, 0.02, 0.004)
EPOCHS = 2
SAVE_EVERY = 4  # steps
KILLED_AFTER = 6  # steps


def main(config: str, folder: str) -> None:
    Path(folder).mkdir(exist_ok=True)
    fork = multiprocessing.get_context("fork")  # torch is imported once
    running = {
        rate: fork.Process(target=trial, args=(config, Path(folder), rate)) for rate in RATES
    }
    for process in running.values():
        process.start()
    while running:
        wait([process.sentinel for process in running.values()])
        for rate, process in list(running.items()):
            if process.exitcode == -signal.SIGKILL:
                running[rate] = fork.Process(target=trial, args=(config, Path(folder), rate))
                running[rate].start()
            elif process.exitcode is not None:
                del running[rate]


def trial(config: str, folder: Path, rate: float) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    checkpoint, new = folder / f"{rate}.pt", folder / f"{rate}.new"
    killed = checkpoint.exists()
    with (
        Loader(config, stream="train", shared=True) as loader,
        open(folder / f"{rate}.log", "a", buffering=1) as log,
    ):
        if killed:
            saved = torch.load(checkpoint)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
        last = 0.0
        for epoch in range(loader.epoch, EPOCHS):
            loader.set_epoch(epoch)
            for batch in loader:
                loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                last = loss.item()
                print(
                    f"epoch {batch.epoch} step {batch.step} samples {batch.indices.tolist()} "
                    f"loss {last:.6f}",
                    file=log,
                )
                if (batch.step + 1) % SAVE_EVERY == 0:
                    saved = {
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "loader": loader.state_dict(),
                    }
                    torch.save(saved, new)
                    os.replace(new, checkpoint)
                if not killed and batch.step + 1 == KILLED_AFTER:
                    os.kill(os.getpid(), signal.SIGKILL)
        if loader.stats()["batches"] == 0:
            print(f"learning rate {rate}: had ended before")
            return
        hits = hit_rate(config)
        print(f"learning rate {rate}: loss {last:.6f}; {hits:.0%} of the batches were made already")


def hit_rate(config: str) -> float:
    """The part of the batches that had been made for another trial when one was told of them."""
    command = [sys.executable, "-m", "loaderd", "status", "--json", config]
    status = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    (group,) = status["groups"]
    return group["hits"] / group["told"]


if __name__ == "__main__":
    main(*sys.argv[1:])
