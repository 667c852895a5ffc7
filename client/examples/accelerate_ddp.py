r"""Hugging Face Accelerate: any number of processes, and a resume from `save_state`.

    accelerate launch --num-processes=2 \
        client/examples/accelerate_ddp.py client/examples/config.toml checkpoints

Without a GPU add `--cpu`: otherwise Accelerate trains in each process for itself.
`prepare` passes a Loader through as it is: ranks and device are the Loader's own arguments.
`skip_first_batches` is for a DataLoader; a Loader's state knows its place.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator

from loaderd import Loader

EPOCHS = 2
SAVE_EVERY = 4  # steps


def main(config: str, folder: str) -> None:
    accelerator = Accelerator()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    fields = ["x", "label", "__repeated__"]
    # Rank and world size come from torch.distributed, which Accelerator has initialised.
    with (
        Loader(config, stream="train", device=accelerator.device) as loader,
        Loader(config, stream="val", device=accelerator.device, fields=fields) as val,
    ):
        model, optimizer = accelerator.prepare(model, optimizer)
        accelerator.register_for_checkpointing(loader)  # save_state and load_state take it along
        if saved := sorted(Path(folder).glob("[!.]*")):
            accelerator.load_state(str(saved[-1]))  # the next batch is the one after it
        for epoch in range(loader.epoch, EPOCHS):
            loader.set_epoch(epoch)  # the epoch of a loaded state keeps its place
            for batch in loader:
                loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["label"])
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                print(
                    f"epoch {batch.epoch} step {batch.step} samples {batch.indices.tolist()} "
                    f"loss {loss.item():.6f}"
                )
                if (batch.step + 1) % SAVE_EVERY == 0:
                    save(accelerator, Path(folder), f"{batch.epoch:03}-{batch.step:06}")
            validate(accelerator, model, val)
    accelerator.end_training()


def save(accelerator: Accelerator, folder: Path, name: str) -> None:
    accelerator.save_state(str(folder / f".{name}"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (folder / f".{name}").rename(folder / name)  # a kill leaves no half of one


def validate(accelerator: Accelerator, model: torch.nn.Module, val: Loader) -> None:
    counts = torch.zeros(2, device=accelerator.device)
    with torch.no_grad():
        for batch in val:
            own = ~batch["__repeated__"]  # not those that another rank has, too
            hits = model(batch["x"]).argmax(1) == batch["label"]
            counts += torch.stack([hits[own].sum(), own.sum()])
    # Not gather_for_metrics, which cuts what a DataLoader of Accelerate has repeated, and wants
    # batches of one size on all ranks.
    hits, samples = accelerator.reduce(counts)
    accelerator.print(f"validation of {samples:.0f} samples: {hits / samples:.3f}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
