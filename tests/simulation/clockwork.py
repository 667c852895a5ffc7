"""Fake time: what is to happen, in order; and the diary that a failure prints."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any

DIARY = 120  # lines that a failure shows


class Broken(AssertionError):
    """A promise that did not hold in this world."""


class Clockwork:
    """A heap of calls by time; equal times in the order of asking.

    `chance` is the only source of randomness of a world.
    """

    def __init__(self, seed: int, aloud: bool = False) -> None:
        self.seed = seed
        self.seeder = random.Random(seed)
        self.now = 0.0
        self.events = 0
        self._aloud = aloud
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._diary: deque[tuple[float, str, tuple[Any, ...]]] = deque(maxlen=DIARY)

    def after(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay, self._count, call, args))

    def turn(self) -> bool:
        """Let the next thing happen; False if there is nothing left."""
        if not self._heap:
            return False
        self.now, _, call, args = heapq.heappop(self._heap)
        self.events += 1
        call(*args)
        return True

    def write(self, line: str, *args: Any) -> None:
        """A line of the diary; `args` fill its {} only when it is read."""
        if self._aloud:
            print(f"{self.now:9.3f}  {line.format(*args)}")
        self._diary.append((self.now, line, args))

    def diary(self) -> str:
        return "\n".join(f"{at:9.3f}  {line.format(*args)}" for at, line, args in self._diary)
