"""loaderd_client: finished batches from a loaderd daemon, in a trainer that imports none of what made them."""

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
    """uint8 images (n, c, h, w) as (images / 255 - mean) / std: float32, on the tensor's own device, in its memory format.

    Raises ConfigError for other images, and where mean and std have not one number a channel.
    """
    from loaderd_client import torch_backend  # torch is not imported before it is asked for

    return torch_backend.normalize(images, mean, std)
