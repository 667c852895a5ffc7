"""CUDA, and ROCm, which goes the same way: every call of torch.cuda that the client makes.

Imported only where batches go to such a device. No thread and no finalizer comes here.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Generator
from typing import Any

import torch

from loaderd_client import torch_backend
from loaderd_client.devices.interface import Array, Mark

_torch: Any = torch  # whose stubs leave half of torch.cuda untyped
_PORTABLE = 1  # cudaHostRegisterPortable: page-locked for every context of the process


def available() -> bool:
    """Whether there is a device, and a torch that was built for it."""
    return torch.cuda.is_available()


def devices() -> int:
    """How many there are."""
    return torch.cuda.device_count()


def current() -> int:
    """Number of the current device."""
    return torch.cuda.current_device()


class CudaMark:
    """An event that has been recorded."""

    __slots__ = ("event",)

    def __init__(self, stream: Any) -> None:
        self.event: Any = _torch.cuda.Event(enable_timing=True)
        self.event.record(stream)

    def done(self) -> bool:
        """See `Mark`."""
        return bool(self.event.query())


class CudaDevice:
    """A CUDA device. See `Device`."""

    asynchronous = True

    def __init__(self, index: int) -> None:
        """Make the stream for copies.

        Args:
            index: Number of the device.
        """
        self.name = f"cuda:{index}"
        self._device = torch.device("cuda", index)
        self._stream: Any = _torch.cuda.Stream(device=self._device)

    def lock(self, memory: mmap.mmap) -> None:
        """See `Device`. The memory stays where it is: there is no second buffer."""
        with torch.cuda.device(self._device):
            code = int(
                _torch.cuda.cudart().cudaHostRegister(_address(memory), len(memory), _PORTABLE)
            )
            if code:
                _clear_error(self._device)
                raise OSError(f"cudaHostRegister of {len(memory)} bytes failed with error {code}")

    def unlock(self, memory: mmap.mmap) -> None:
        """See `Device`. An error is left alone: the process loses nothing by it."""
        with torch.cuda.device(self._device):
            _torch.cuda.cudart().cudaHostUnregister(_address(memory))

    @contextlib.contextmanager
    def copying(self) -> Generator[None]:
        """See `Device`."""
        with _torch.cuda.stream(self._stream):
            yield

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Device`."""
        return tensor.to(self._device, non_blocking=True, copy=True)

    def mark(self) -> Mark:
        """See `Device`."""
        return CudaMark(self._stream)

    def hand_over(self, mark: Mark, tensors: list[torch.Tensor]) -> None:
        """See `Device`."""
        assert isinstance(mark, CudaMark)
        current = _torch.cuda.current_stream(self._device)
        current.wait_event(mark.event)
        for tensor in tensors:
            tensor.record_stream(current)

    def mark_stream(self, stream: Any = None) -> Mark:
        """See `Device`."""
        if stream is None:
            stream = _torch.cuda.current_stream(self._device)
        return CudaMark(stream)

    def capturing(self) -> bool:
        """See `Device`."""
        return bool(_torch.cuda.is_current_stream_capturing())

    def pinned(self, array: Array) -> torch.Tensor:
        """See `Device`. torch's allocator keeps the block until copies from it are done."""
        copy = torch.empty(array.shape, dtype=torch_backend.dtype_of(array), pin_memory=True)
        copy.numpy()[...] = array
        return copy

    def busy_s(self, begin: Mark, end: Mark) -> float:
        """See `Device`."""
        assert isinstance(begin, CudaMark)
        assert isinstance(end, CudaMark)
        return float(begin.event.elapsed_time(end.event)) / 1000


def _clear_error(device: torch.device) -> None:
    """The driver keeps an error until somebody asks for it: the next launch of a kernel does."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device=device).add_(1)


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
