"""What copies batches to a device, as the rest of the client sees it. Nothing here knows torch."""

from __future__ import annotations

import mmap
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

Array: TypeAlias = Any  # numpy.ndarray
Tensor: TypeAlias = Any  # torch.Tensor, which this file does not import
Stream: TypeAlias = Any  # of the device's framework, as torch.cuda.Stream


class Mark(Protocol):
    """A point in the work of a device."""

    def done(self) -> bool:
        """Whether all work up to here is over. Never waits."""
        ...


class Device(Protocol):
    """A device, with a stream of the Loader's own for copies.

    `cuda.CudaDevice` is the one for NVIDIA and AMD. The tests have one that copies late.

    Attributes:
        name: As torch writes it: "cuda:0".
        asynchronous: Copies go on after `send` has returned: the source must stay as it is until a
            mark that was set behind them is done. False: `send` has copied when it returns.
    """

    name: str
    asynchronous: bool

    def lock(self, memory: mmap.mmap) -> None:
        """Page-lock memory, in place, so that copies run at the speed of the link.

        Raises:
            OSError: It cannot be; the text says why.
        """

    def unlock(self, memory: mmap.mmap) -> None:
        """Undo `lock`."""

    def copying(self) -> AbstractContextManager[object]:
        """What runs inside is queued on the Loader's own stream."""
        ...

    def send(self, tensor: Tensor) -> Tensor:
        """Begin to copy a CPU tensor; inside `copying`.

        Returns:
            The new tensor on the device, of the same shape, strides and dtype.
        """
        ...

    def mark(self) -> Mark:
        """A point behind all that was queued on the Loader's own stream; inside `copying`."""
        ...

    def hand_over(self, mark: Mark, tensors: list[Tensor]) -> None:
        """Have the caller's current stream wait for a mark before it reads the tensors.

        The memory of the tensors is not used again before that stream has used them.
        """

    def mark_stream(self, stream: Stream | None = None) -> Mark:
        """A point behind all that was queued on a stream; None: on the caller's current one."""
        ...

    def capturing(self) -> bool:
        """The caller's current stream captures a graph: nothing may be recorded or asked."""
        ...

    def pinned(self, array: Array) -> Tensor:
        """A copy of an array in page-locked memory of torch's own.

        Args:
            array: It may be one that cannot be written to.
        """
        ...

    def busy_s(self, begin: Mark, end: Mark) -> float:
        """Seconds that the device took from one mark to another; both are done."""
        ...


class Uses:
    """What a device still does with the slot of a batch in page-locked memory.

    Attributes:
        streams: Streams that read the slot, as the user says.
        marks: Points behind copies from the slot.
    """

    __slots__ = ("_device", "marks", "streams")

    def __init__(self, device: Device) -> None:
        self._device = device
        self.streams: list[Stream] = []
        self.marks: list[Mark] = []

    def record_stream(self, stream: Stream) -> None:
        """The slot is read by work on this stream."""
        if stream not in self.streams:
            self.streams.append(stream)

    def copied(self) -> None:
        """Copies from the slot were just queued on the current stream."""
        if not self._device.capturing():
            self.marks.append(self._device.mark_stream())
