"""JAX: arrays instead of tensors, without torch; one process for each host.

    python client/examples/jax_train.py client/examples/config.toml checkpoint.npz

Stop it at any time and start it again: it takes the batches that follow the last checkpoint.
"""

from __future__ import annotations

import json
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np

from loaderd import Loader

EPOCHS = 2
SAVE_EVERY = 4  # steps
Weights = dict[str, jax.Array]


def loss_of(weights: Weights, x: jax.Array, label: jax.Array) -> jax.Array:
    logits = jax.nn.log_softmax(x @ weights["w"] + weights["b"])
    return -jnp.take_along_axis(logits, label[:, None], axis=1).mean()


@jax.jit
def step(weights: Weights, x: jax.Array, label: jax.Array) -> tuple[Weights, jax.Array]:
    loss, slopes = jax.value_and_grad(loss_of)(weights, x, label)
    return jax.tree.map(lambda weight, slope: weight - 0.1 * slope, weights, slopes), loss


def main(config: str, checkpoint: str) -> None:
    # With several hosts jax.distributed.initialize() comes first, and each host is a rank. Its
    # batch is its part of the global one: jax.make_array_from_process_local_data(sharding, x).
    with Loader(
        config,
        stream="train",
        output="numpy",
        drop_last=True,  # a smaller last batch is compiled anew
        rank=jax.process_index(),
        world_size=jax.process_count(),
    ) as loader:
        weights = {"w": jnp.zeros((4, 3)), "b": jnp.zeros(3)}
        if os.path.exists(checkpoint):
            saved = np.load(checkpoint)
            weights = {name: jnp.asarray(saved[name]) for name in weights}
            loader.load_state_dict(json.loads(str(saved["loader"])))  # goes on behind it
        for epoch in range(loader.epoch, EPOCHS):
            loader.set_epoch(epoch)  # the epoch of a loaded state keeps its place
            for batch in loader:
                # JAX knows dict, but not its subclass Batch. On a CPU it may use the batch's memory
                # in place, and keeps it: do not write into the batch from here on.
                on_device = jax.device_put(dict(batch))
                weights, loss = step(weights, on_device["x"], on_device["label"])
                print(
                    f"epoch {batch.epoch} step {batch.step} samples {batch.indices.tolist()} "
                    f"loss {loss:.6f}"
                )
                if (batch.step + 1) % SAVE_EVERY == 0:
                    state = json.dumps(loader.state_dict())
                    np.savez(f"{checkpoint}.new.npz", loader=state, **weights)
                    os.replace(f"{checkpoint}.new.npz", checkpoint)  # a kill leaves the old one


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
