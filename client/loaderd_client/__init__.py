"""The client of loaderd: finished batches from a daemon, for a training loop.

`Loader` is what you need; `help(Loader)` says how to use it. The errors are here to be caught.
`normalize` turns uint8 images into float32 on the device where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from loaderd_client.batch import Batch, DictBatch, TupleBatch
from loaderd_client.loader import Loader
from loaderd_wire.errors import (
    BadSample,
    ConfigError,
    DaemonGoneError,
    LoaderdError,
    ProtocolError,
    RefusedError,
    SampleError,
    StallError,
    StreamChangedError,
    StreamFailedError,
)

if TYPE_CHECKING:
    import torch

__all__ = [
    "BadSample",
    "Batch",
    "ConfigError",
    "DaemonGoneError",
    "DictBatch",
    "Loader",
    "LoaderdError",
    "ProtocolError",
    "RefusedError",
    "SampleError",
    "StallError",
    "StreamChangedError",
    "StreamFailedError",
    "TupleBatch",
    "normalize",
]


def normalize(images: torch.Tensor, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """Scale and normalize images: (images / 255 - mean) / std.

    Args:
        images: uint8, shape (n, channels, height, width), on any device.
        mean: One number a channel, for pixels from 0 to 1.
        std: One number above 0 a channel, for pixels from 0 to 1.

    Returns:
        float32, of the same shape, on the same device and in the same memory format.

    Raises:
        ConfigError: Images of another dtype or shape, or not one number a channel.
    """
    from loaderd_client import torch_backend  # torch is not imported before it is asked for

    return torch_backend.normalize(images, mean, std)
