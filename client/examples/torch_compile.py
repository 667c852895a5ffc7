"""A compiled step: every batch has the same shapes, so that it is compiled once.

    python client/examples/torch_compile.py client/examples/config.toml [BACKEND]

Without a C++ compiler use the backend "aot_eager", which runs the traced step without one.
"""

from __future__ import annotations

import sys

import torch

from loaderd import Loader

EPOCHS = 2


def main(config: str, backend: str = "inductor") -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @torch.compile(backend=backend, fullgraph=True)
    def loss_of(x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(x), label)

    # Without drop_last the last batch of an epoch is smaller, and the step is compiled again.
    with Loader(config, stream="train", batch_size=7, drop_last=True) as loader:
        for epoch in range(EPOCHS):
            loader.set_epoch(epoch)
            for batch in loader:
                loss = loss_of(batch["x"], batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(f"epoch {batch.epoch} step {batch.step} samples {batch.indices.tolist()}")
                torch.compiler.set_stance("fail_on_recompile")  # from the second batch on


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
