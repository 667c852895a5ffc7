"""PyTorch-Ignite: its Checkpoint holds the Loader's state beside those of model and trainer.

    python client/examples/ignite_engine.py client/examples/config.toml checkpoints

Stop it at any time and start it again: it takes the batches that follow the last checkpoint.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver
from ignite.metrics import Accuracy

from loaderd import Batch, Loader

EPOCHS = 2
SAVE_EVERY = 4  # steps


def main(config: str, folder: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def train(engine: Engine, batch: Batch) -> None:
        loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(
            f"epoch {batch.epoch} step {batch.step} samples {batch.indices.tolist()} "
            f"loss {loss.item():.6f}"
        )

    def predict(engine: Engine, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        own = ~batch["__repeated__"]  # not those that another rank has, too
        with torch.no_grad():
            return model(batch["x"])[own], batch["label"][own]

    trainer, evaluator = Engine(train), Engine(predict)
    Accuracy().attach(evaluator, "accuracy")
    fields = ["x", "label", "__repeated__"]
    with (
        Loader(config, stream="train", device="auto") as loader,
        Loader(config, stream="val", device="auto", fields=fields) as val,
    ):
        parts = {"trainer": trainer, "model": model, "optimizer": optimizer, "loader": loader}
        checkpoint = Checkpoint(
            parts,
            DiskSaver(folder, require_empty=False),
            global_step_transform=lambda engine, event: engine.state.iteration,
        )
        trainer.add_event_handler(Events.ITERATION_COMPLETED(every=SAVE_EVERY), checkpoint)

        @trainer.on(Events.EPOCH_COMPLETED)
        def validate(engine: Engine) -> None:
            accuracy = evaluator.run(val).metrics["accuracy"]
            print(f"validation of {len(val.dataset)} samples: {accuracy:.3f}")

        if saved := list(Path(folder).glob("*.pt")):
            Checkpoint.load_objects(parts, checkpoint=max(saved, key=os.path.getmtime))
        # The Loader counts its epochs by itself: no set_epoch.
        trainer.run(loader, max_epochs=EPOCHS)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
