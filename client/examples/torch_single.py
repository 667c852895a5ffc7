"""One process with plain PyTorch, which goes on from its last checkpoint.

    python client/examples/torch_single.py client/examples/config.toml checkpoint.pt

Stop it at any time, also with `kill -9`, and start it again: it takes the batches that follow the
checkpoint, and ends with the same weights.
"""

from __future__ import annotations

import os
import sys

import torch

from loaderd import Loader

EPOCHS = 2
SAVE_EVERY = 4  # steps


def main(config: str, checkpoint: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with Loader(config, stream="train") as loader:  # on a GPU: device="cuda"
        if os.path.exists(checkpoint):
            saved = torch.load(checkpoint)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])  # the next batch is the one after it
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
                    torch.save(saved, f"{checkpoint}.new")
                    os.replace(f"{checkpoint}.new", checkpoint)  # a kill leaves the old one whole


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
