"""A user's script, never run: `test_types.py` compares what mypy and pyright say of it with the
comments.

`# is T` behind a `reveal_type` is what it must reveal, `# error` ends a line that must be refused;
each other line must pass.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

import loaderd
from loaderd import Loader as SameLoader
from loaderd_client import Batch, ConfigError, Loader, SampleError, normalize

if TYPE_CHECKING:
    from typing_extensions import reveal_type

loader = Loader(
    "config.toml", stream="train", batch_size=32, fields=["image", "label"], prefetch=8, device=None
)
reveal_type(loader)  # is Loader[DictBatch[Tensor]]
reveal_type(SameLoader("config.toml"))  # is Loader[DictBatch[Tensor]]

# What next() gives, and what it knows of itself
batch = next(iter(loader))
reveal_type(batch)  # is DictBatch[Tensor]
reveal_type(batch["image"])  # is Tensor
reveal_type(batch.epoch)  # is int
reveal_type(batch.step)  # is int
reveal_type(batch.rows)  # is int
places: "npt.NDArray[np.int64]" = batch.indices
reveal_type(batch.sample_keys)  # is list[str]
reveal_type(batch.errors[0].stage)  # is str
print(batch.row)  # error
batch[0]  # error

# Other outputs
with Loader("d.sock", "train", output="numpy") as arrays:
    for made in arrays:
        reveal_type(made["image"])  # is ndarray
        made["image"].to("cuda")  # error
for image, _label in Loader("d.sock", "train", as_tuple=True):
    reveal_type(image)  # is Tensor
pairs = Loader("d.sock", "train", as_tuple=True, output="numpy")
reveal_type(next(iter(pairs)))  # is TupleBatch[ndarray]


def step(batch: Batch) -> torch.Tensor:
    return normalize(batch["image"], (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))


def epoch(loader: Loader) -> int:
    reveal_type(next(iter(loader)))  # is DictBatch[Tensor]
    return sum(batch.rows for batch in loader)


step(batch)
step(next(iter(arrays)))  # error
epoch(loader)
epoch(arrays)  # error

# Arguments
Loader("config.toml", batch_size="32")  # error
Loader("config.toml", batchsize=32)  # error
Loader("config.toml", num_workers=4)  # error
Loader("config.toml", output="jax")  # error
Loader("config.toml", fields="image")  # error
Loader("config.toml", device=1)  # error
Loader(stream="train")  # error

# What else a Loader has
reveal_type(len(loader))  # is int
reveal_type(len(loader.dataset))  # is int
reveal_type(loader.classes)  # is tuple[str, ...]
reveal_type(loader.state_dict())  # is dict[str, Any]
reveal_type(loader.stats()["waited_s"])  # is float
loader.stats()["waited"]  # error
loader.load_state_dict(loader.state_dict())
loader.set_epoch("3")  # error
loader.set_epoc(3)  # error
loader.batch_size = 3  # error
loader.batchsize = 3  # error
print(loaderd.Loadr)  # error

try:
    next(iter(loader))
except SampleError as error:
    reveal_type(error.errors[0].index)  # is int
except (ConfigError, loaderd.StallError):
    pass
