"""Lightning: validation every few steps, any number of devices, and a resume in mid-epoch.

    python client/examples/lightning_fit.py client/examples/config.toml checkpoints [DEVICES]

Stop it at any time and start it again: `ckpt_path="last"` goes on with the batch that follows the
last checkpoint.
"""

from __future__ import annotations

import sys
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from loaderd import Batch, Loader

EPOCHS = 2


class Points(lightning.LightningDataModule):
    def __init__(self, config: str) -> None:
        super().__init__()
        self.config = config

    def setup(self, stage: str) -> None:
        assert self.trainer is not None
        device = self.trainer.strategy.root_device
        self.train = Loader(self.config, stream="train", device=device)
        fields = ["x", "label", "__repeated__"]
        self.val = Loader(self.config, stream="val", device=device, fields=fields)

    def train_dataloader(self) -> Loader:
        return self.train  # its state goes into every checkpoint of Lightning

    def val_dataloader(self) -> Loader:
        return self.val

    def teardown(self, stage: str) -> None:
        self.train.close()
        self.val.close()


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def training_step(self, batch: Batch, number: int) -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(self.layer(batch["x"]), batch["label"])
        print(
            f"epoch {batch.epoch} step {batch.step} samples {batch.indices.tolist()} "
            f"loss {loss.item():.6f}"
        )
        return loss

    def on_validation_epoch_start(self) -> None:
        self.counts = torch.zeros(2, device=self.device)

    def validation_step(self, batch: Batch, number: int) -> None:
        own = ~batch["__repeated__"]  # not those that another rank has, too
        hits = self.layer(batch["x"]).argmax(1) == batch["label"]
        self.counts += torch.stack([hits[own].sum(), own.sum()])

    def on_validation_epoch_end(self) -> None:
        hits, samples = self.trainer.strategy.reduce(self.counts, reduce_op="sum")
        print(f"validation of {samples:.0f} samples: {hits / samples:.3f}")

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)


def main(config: str, folder: str, devices: str = "1") -> None:
    lightning.seed_everything(0, workers=True)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        devices=int(devices),
        val_check_interval=6,  # steps
        callbacks=[ModelCheckpoint(folder, every_n_train_steps=4, save_last=True)],
        logger=False,
    )
    trainer.fit(Model(), datamodule=Points(config), ckpt_path="last")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
