"""The Trainer of Hugging Face's transformers: its checkpoints hold the Loader's state.

    python client/examples/transformers_trainer.py client/examples/config.toml checkpoints

Stop it at any time and start it again: it takes the batches that follow the last checkpoint.
Under torchrun each process takes its part, without a change. (On CPUs that needs
ACCELERATE_USE_CPU=true in the environment.)
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import get_last_checkpoint

from loaderd import Batch, Loader


class LoaderState(TrainerCallback, ExportableState):
    """The Loader's state becomes a part of trainer_state.json."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def state(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.loader.load_state_dict(state.stateful_callbacks["LoaderState"])


class StreamTrainer(Trainer):
    def get_train_dataloader(self) -> Any:
        return self.train_dataset  # a Loader, which needs no DataLoader around it

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return eval_dataset or self.eval_dataset

    def training_step(
        self, model: Any, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        loss = super().training_step(model, inputs, num_items_in_batch)
        batch: Batch = inputs
        print(
            f"epoch {batch.epoch} step {batch.step} samples {batch.indices.tolist()} "
            f"loss {loss.item():.6f}"
        )
        return loss


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, label), "logits": logits}


def accuracy(predicted: Any) -> dict[str, float]:
    hits = predicted.predictions.argmax(1) == predicted.label_ids
    print(f"validation of {len(hits)} samples: {hits.mean():.3f}")
    return {"accuracy": float(hits.mean())}


def main(config: str, folder: str) -> None:
    torch.manual_seed(0)
    options = TrainingArguments(
        folder,
        num_train_epochs=2,
        save_steps=4,
        eval_strategy="epoch",
        learning_rate=0.1,
        ignore_data_skip=True,  # the Loader itself goes on in mid-epoch
        report_to="none",
        disable_tqdm=True,
    )
    several = options.world_size > 1  # then the Trainer gathers what must have one size everywhere
    with (
        Loader(config, stream="train", device=options.device) as train,
        Loader(config, stream="val", device=options.device, drop_last=several) as val,
    ):
        trainer = StreamTrainer(
            Model(),
            options,
            train_dataset=train,
            eval_dataset=val,
            compute_metrics=accuracy,
            callbacks=[LoaderState(train)],
        )
        saved = get_last_checkpoint(folder) if Path(folder).exists() else None
        trainer.train(resume_from_checkpoint=saved)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
