"""A device whose copies run late: when each is made is drawn, and it takes the bytes of then.

A slot that is given back too early is written to by the daemon meanwhile, and the copy is torn.
"""

from __future__ import annotations

import ctypes
import mmap
import random
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from loaderd_client.devices.interface import Mark

_torch: Any = torch


class LateStream:
    """Copies that are queued, and how many of them were queued and made so far."""

    def __init__(self) -> None:
        self.queued = 0
        self.made = 0
        self._copies: deque[tuple[torch.Tensor, torch.Tensor]] = deque()

    def queue(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self._copies.append((source, target))
        self.queued += 1

    def sources(self) -> list[int]:
        """Addresses that are still to be read."""
        return [source.data_ptr() for source, _ in self._copies]

    def run(self, copies: int) -> None:
        for _ in range(min(copies, len(self._copies))):
            source, target = self._copies.popleft()
            target.copy_(source)
            self.made += 1


class LateMark:
    """All copies of a stream that were queued when it was made."""

    def __init__(self, device: LateDevice, stream: LateStream) -> None:
        self._device = device
        self._stream = stream
        self._behind = stream.queued

    def done(self) -> bool:
        self._device.turn()
        return self._stream.made >= self._behind


class LateDevice:
    """See `Device`. Its tensors are of torch's CPU, and are filled late.

    Attributes:
        own: The Loader's stream.
        current: The trainer's.
        locked: Addresses that are page-locked.
        handed: Batches that were handed over.
        graph: The trainer captures a graph.
        refuses: Why memory cannot be page-locked; "" if it can.
    """

    asynchronous = True
    name = "cuda:0"

    def __init__(self, seed: int = 0, chance: float = 0.2) -> None:
        """Nothing is queued.

        Args:
            seed: Of what is drawn.
            chance: That a copy runs, each time that the device is asked for anything.
        """
        self.own, self.current = LateStream(), LateStream()
        self.locked: list[range] = []
        self.handed = 0
        self.graph = False
        self.refuses = ""
        self._draw = random.Random(seed)
        self._chance = chance

    def turn(self) -> None:
        """Some time passes."""
        assert not self.graph, "something was asked while a graph was captured"
        for stream in (self.own, self.current):
            while self._draw.random() < self._chance:
                stream.run(1)

    def finish(self) -> None:
        """All copies are made."""
        for stream in (self.own, self.current):
            stream.run(stream.queued)

    def lock(self, memory: mmap.mmap) -> None:
        if self.refuses:
            raise OSError(self.refuses)
        self.locked.append(_range(memory))

    def unlock(self, memory: mmap.mmap) -> None:
        addresses = _range(memory)
        for stream in (self.own, self.current):
            assert not any(source in addresses for source in stream.sources()), "under a copy"
        self.locked.remove(addresses)

    @contextmanager
    def copying(self) -> Generator[None]:
        yield

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        self.turn()
        return self._queued(self.own, tensor)

    def mark(self) -> Mark:
        return LateMark(self, self.own)

    def hand_over(self, mark: Mark, tensors: list[torch.Tensor]) -> None:
        self.handed += 1

    def mark_stream(self, stream: LateStream | None = None) -> Mark:
        return LateMark(self, self.current if stream is None else stream)

    def capturing(self) -> bool:
        return self.graph

    def pinned(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array.copy())

    def busy_s(self, begin: Mark, end: Mark) -> float:
        return 0.001

    def copy_from(self, tensor: torch.Tensor, stream: LateStream | None = None) -> torch.Tensor:
        """What a trainer's own `tensor.to("cuda", non_blocking=True)` does."""
        return self._queued(self.current if stream is None else stream, tensor)

    def _queued(self, stream: LateStream, tensor: torch.Tensor) -> torch.Tensor:
        target = torch.empty_like(tensor)
        stream.queue(tensor, target)
        return target


def _range(memory: mmap.mmap) -> range:
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return range(begin, begin + len(memory))
