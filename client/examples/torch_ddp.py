r"""Data-parallel training (DDP): torchrun starts all ranks again when one dies, and they resume.

    torchrun --standalone --nproc-per-node=2 --max-restarts=3 \
        client/examples/torch_ddp.py client/examples/config.toml checkpoint.pt

All ranks of a host share one daemon, which outlives a restart if `loaderd serve` has started it.
On CPUs (gloo) a restart needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the environment: torch 2.13
otherwise looks for the ranks of the first start.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from loaderd import Loader

EPOCHS = 2
SAVE_EVERY = 4  # steps


def main(config: str, checkpoint: str) -> None:
    dist.init_process_group()  # NCCL for GPUs, gloo for CPUs
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 3).to(device))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    # Rank and world size come from torch.distributed: no sampler is needed. The stream should have
    # on_error = "replace": an error on one rank leaves the others waiting in their collective.
    with Loader(config, stream="train", device=device) as loader:
        if os.path.exists(checkpoint):
            saved = torch.load(checkpoint, map_location=device)
            model.module.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])  # it is the same on every rank
        for epoch in range(loader.epoch, EPOCHS):
            loader.set_epoch(epoch)
            for batch in loader:
                loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(
                    f"epoch {batch.epoch} step {batch.step} samples {batch.indices.tolist()} "
                    f"loss {loss.item():.6f}"
                )
                if (batch.step + 1) % SAVE_EVERY == 0 and dist.get_rank() == 0:
                    saved = {
                        "model": model.module.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "loader": loader.state_dict(),
                    }
                    torch.save(saved, f"{checkpoint}.new")
                    os.replace(f"{checkpoint}.new", checkpoint)
    dist.barrier()  # nothing is under way when the threads of gloo are ended
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
