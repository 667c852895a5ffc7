"""torch, and nothing but torch: imported only when tensors are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import numpy as np
import torch

from loaderd_client.options import Normalization
from loaderd_wire.errors import ConfigError
from loaderd_wire.slices import Cursor

_torch: Any = torch  # whose stubs do not say what from_numpy takes
# The array's own memory as a tensor; the array lives as long as any view of the tensor.
tensor: Callable[[np.ndarray[Any, Any]], torch.Tensor] = _torch.from_numpy


def picture(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Images of shape (n, h, w, c) as their (n, c, h, w) view: channels_last, no copy.

    Of one image, (h, w, c), its (c, h, w) view.
    """
    return channels_first(tensor(array))


def channels_first(images: torch.Tensor) -> torch.Tensor:
    """The (n, c, h, w) view of images of shape (n, h, w, c); of one image, its (c, h, w) view."""
    return images.permute((0, 3, 1, 2) if images.ndim == 4 else (2, 0, 1))


def dtype_of(array: np.ndarray[Any, Any]) -> torch.dtype:
    """What torch calls the dtype of an array."""
    return tensor(np.empty(0, array.dtype)).dtype


def check_dtype(field: str, dtype: np.dtype[Any]) -> None:
    """Ask whether this torch knows a dtype.

    Raises:
        ConfigError: It does not; the text names the field.
    """
    try:
        torch.from_numpy(np.empty(0, dtype))  # pyright: ignore[reportUnknownMemberType] - torch's stubs
    except TypeError:
        raise ConfigError(
            f"output='torch': field {field!r} is {dtype}, which torch {torch.__version__} does "
            "not know; use output='numpy', or fields= without it"
        ) from None


def process_group() -> tuple[int, int] | None:
    """(rank, world size) of the default process group, None if there is none."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return None


def in_dataloader_worker() -> bool:
    """True inside a worker process of torch's DataLoader."""
    return torch.utils.data.get_worker_info() is not None


def profiled_next(cursor: Cursor) -> AbstractContextManager[object]:
    """A range "loaderd.next" of torch's profiler.

    Args:
        cursor: The batch, whose epoch and step are the range's arguments.
    """
    try:  # what takes arguments by name is not public, and torch has not always had it
        named = {"epoch": cursor.epoch, "step": cursor.step}
        return _torch._C._profiler._RecordFunctionFast("loaderd.next", [], named)
    except (AttributeError, TypeError):
        text = f"epoch {cursor.epoch}, step {cursor.step}"
        return _torch.profiler.record_function("loaderd.next", text)


def normalize(images: torch.Tensor, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """Scale and normalize images: (images / 255 - mean) / std.

    Args:
        images: uint8, shape (n, channels, height, width).
        mean: One number a channel.
        std: One number above 0 a channel.

    Returns:
        float32, of the same shape, on the images' own device and in their own memory format.

    Raises:
        ConfigError: Images of another dtype or shape, or not one number a channel.
    """
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise ConfigError(
            f"normalize: images must be uint8 (n, c, h, w), not {images.dtype} "
            f"{tuple(images.shape)}"
        )
    channels = images.shape[1]
    if len(mean) != channels or len(std) != channels or not all(s > 0 for s in std):
        raise ConfigError(
            f"normalize: mean={list(mean)!r} and std={list(std)!r} must have {channels} numbers "
            "each, those of std above 0"
        )
    scale, shift = _scale_and_shift(mean, std, images.device)
    return images.to(torch.float32).mul_(scale).add_(shift)


def _scale_and_shift(
    mean: Sequence[float], std: Sequence[float], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = ([1 / (255 * s) for s in std], [-m / s for m, s in zip(mean, std, strict=True)])
    scale, shift = (
        torch.tensor(each, dtype=torch.float32, device=device).view(1, -1, 1, 1) for each in numbers
    )
    return scale, shift


class Finish:
    """What becomes of uint8 images once they are on the device: `normalize`, and the dtype."""

    def __init__(self, normalize: Normalization | None, dtype: str | None) -> None:
        """Touch no device yet.

        Args:
            normalize: None: the numbers stay 0 to 255.
            dtype: "float16", "bfloat16" or "float32"; None: float32 where normalized, else uint8.
        """
        self._normalize = normalize
        self._dtype: torch.dtype | None = getattr(torch, dtype) if dtype else None
        self._constants: tuple[torch.Tensor, torch.Tensor] | None = None

    def __call__(self, images: Any) -> Any:
        """Finish the images of a batch, or each image of a list.

        Raises:
            ConfigError: They have another number of channels than `normalize`.
        """
        if isinstance(images, list):
            return [self(each[None])[0] for each in cast("list[torch.Tensor]", images)]
        if self._normalize is not None:
            images = self._normalized(images, self._normalize)
        return images if self._dtype is None else images.to(self._dtype)

    def _normalized(self, images: torch.Tensor, by: Normalization) -> torch.Tensor:
        if images.shape[1] != len(by.mean):
            return normalize(images, by.mean, by.std)  # which refuses them
        if self._constants is None:
            # sent once: a small copy from pageable memory waits for all before it on its stream
            self._constants = _scale_and_shift(by.mean, by.std, images.device)
        scale, shift = self._constants
        return images.to(torch.float32).mul_(scale).add_(shift)
