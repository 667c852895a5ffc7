r"""Sharded training (FSDP2) with distributed checkpoints (DCP), as torchtitan does it.

    torchrun --standalone --nproc-per-node=2 \
        client/examples/torch_fsdp2.py client/examples/config.toml checkpoints

Start it again with another number of ranks: it goes on from the last checkpoint, and each sample
still comes once.
"""

# torch documents dcp.load and dcp.save, and exports neither
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from loaderd import Loader

EPOCHS = 2
SAVE_EVERY = 4  # steps


class Training(Stateful):
    """All that a checkpoint holds."""

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: Loader
    ) -> None:
        self.model, self.optimizer, self.loader = model, optimizer, loader

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        # One text. DCP loads the entries that the new run has too: of a dict it would leave out
        # what only the old run had, and the Loader could not compare the data of both.
        loader = json.dumps(self.loader.state_dict())
        return {"model": model, "optimizer": optimizer, "loader": loader}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state_dict["model"],
            optim_state_dict=state_dict["optimizer"],
        )
        self.loader.load_state_dict(json.loads(state_dict["loader"]))


def main(config: str, folder: str) -> None:
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group()
    mesh = init_device_mesh(kind, (dist.get_world_size(),), mesh_dim_names=("dp",))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    model = model.to(kind)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh["dp"])
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    # With tensor parallelism, ranks of one "tp" group get the same batches: the mesh says who.
    with Loader(config, stream="train", mesh=mesh["dp"], device="auto") as loader:
        training = Training(model, optimizer, loader)
        saved = sorted(Path(folder).glob("*/.metadata"))  # it is written last
        if saved:
            dcp.load({"training": training}, checkpoint_id=saved[-1].parent)
        for epoch in range(loader.epoch, EPOCHS):
            loader.set_epoch(epoch)
            for batch in loader:
                loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(f"epoch {batch.epoch} step {batch.step} samples {batch.indices.tolist()}")
                if (batch.step + 1) % SAVE_EVERY == 0:
                    name = f"{batch.epoch:03}-{batch.step:06}"
                    dcp.save({"training": training}, checkpoint_id=Path(folder) / name)
    dist.barrier()  # nothing is under way when the threads of gloo are ended
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
