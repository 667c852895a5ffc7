"""Keras 3 on torch: `fit` takes a generator, and a callback keeps the Loader's state.

    KERAS_BACKEND=torch python client/examples/keras_fit.py client/examples/config.toml checkpoints

Stop it at any time and start it again: it takes the batches that follow the last checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import torch

from loaderd import Batch, Loader

EPOCHS = 2
SAVE_EVERY = 4  # steps


class Feed(keras.callbacks.Callback):
    """Gives out the batches, and saves.

    `fit` takes two batches before it trains the first. A checkpoint needs the state after the one
    that was trained.
    """

    model: Any

    def __init__(self, loader: Loader, folder: Path) -> None:
        super().__init__()
        self.loader, self.folder = loader, folder
        self.taken: deque[tuple[Batch, dict[str, Any]]] = deque()

    def batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for batch in self.loader:
            self.taken.append((batch, self.loader.state_dict()))
            yield batch["x"], batch["label"]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        trained, state = self.taken.popleft()
        print(f"epoch {trained.epoch} step {trained.step} samples {trained.indices.tolist()}")
        if (trained.step + 1) % SAVE_EVERY == 0:
            model = f"{trained.epoch:03}-{trained.step:06}.keras"
            self.model.save(self.folder / model)
            new = self.folder / "last.new"
            new.write_text(json.dumps({"model": model, "loader": state}))
            os.replace(new, self.folder / "last.json")  # a kill leaves the old one whole


def main(config: str, path: str) -> None:
    keras.utils.set_random_seed(0)
    folder = Path(path)
    folder.mkdir(exist_ok=True)
    with (
        Loader(config, stream="train", device="auto") as loader,
        Loader(config, stream="val", device="auto") as val,
    ):
        model: Any
        if (folder / "last.json").exists():
            saved = json.loads((folder / "last.json").read_text())
            model = keras.saving.load_model(folder / saved["model"])
            loader.load_state_dict(saved["loader"])  # the next batch is the one after it
        else:
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
        feed = Feed(loader, folder)
        for epoch in range(loader.epoch, EPOCHS):
            loader.set_epoch(epoch)  # the epoch of a loaded state keeps its place
            state: Any = loader.state_dict()
            done = state["step"] if state["epoch"] == epoch else 0  # of an epoch that goes on
            if done < len(loader):  # else the checkpoint was saved after its last step
                model.fit(
                    feed.batches(),
                    initial_epoch=epoch,
                    epochs=epoch + 1,
                    steps_per_epoch=len(loader) - done,
                    shuffle=False,
                    callbacks=[feed],
                    verbose=0,
                )
            pairs = ((batch["x"], batch["label"]) for batch in val)
            loss, accuracy = model.evaluate(pairs, steps=len(val), verbose=0)
            print(f"validation: loss {loss:.6f} accuracy {accuracy:.3f}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
