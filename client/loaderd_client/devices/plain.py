"""Devices that get their batches by an ordinary copy: the CPU, XPU, MPS.

Imported only where tensors go to one of them.
"""

from __future__ import annotations

import mmap
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from loaderd_client import torch_backend
from loaderd_client.devices.interface import Array, Mark


class DoneMark:
    """A mark behind work that is over."""

    __slots__ = ()

    def done(self) -> bool:
        """See `Mark`."""
        return True


class PlainDevice:
    """A device whose copies are over when they return. See `Device`."""

    asynchronous = False

    def __init__(self, name: str) -> None:
        """Look for the device.

        Args:
            name: As torch writes it.

        Raises:
            RuntimeError: torch has no such device here.
        """
        self._device = torch.empty(0, device=name).device
        self.name = str(self._device)

    def lock(self, memory: mmap.mmap) -> None:
        """See `Device`."""
        raise OSError(f"{self.name} copies from pageable memory")

    def unlock(self, memory: mmap.mmap) -> None:
        """See `Device`."""

    def copying(self) -> AbstractContextManager[object]:
        """See `Device`."""
        return nullcontext()

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Device`."""
        return tensor.to(self._device, copy=True)

    def mark(self) -> Mark:
        """See `Device`."""
        return DoneMark()

    def hand_over(self, mark: Mark, tensors: list[torch.Tensor]) -> None:
        """See `Device`."""

    def mark_stream(self, stream: Any = None) -> Mark:
        """See `Device`."""
        return DoneMark()

    def capturing(self) -> bool:
        """See `Device`."""
        return False

    def pinned(self, array: Array) -> torch.Tensor:
        """See `Device`. It has no use for page-locked memory."""
        return torch_backend.tensor(array.copy())

    def busy_s(self, begin: Mark, end: Mark) -> float:
        """See `Device`. Nobody can tell."""
        return 0.0
