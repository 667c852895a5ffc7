"""Counts of durations, by how long they were."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

# upper ends of the classes, in seconds; the last class has none
BOUNDS_S = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class Durations:
    """What a Histogram has counted.

    Attributes:
        bounds_s: Upper ends of the classes, in seconds; the last class has none.
        counts: Number of durations in each class.
        sum_s: Seconds of all together.
    """

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    sum_s: float


class Histogram:
    """Counts durations in the classes of BOUNDS_S."""

    __slots__ = ("_counts", "_sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count a duration.

        Args:
            seconds: How long it was.
            times: How often.
        """
        self._counts[bisect_left(BOUNDS_S, seconds)] += times
        self._sum_s += seconds * times

    def durations(self) -> Durations:
        """What was counted."""
        return Durations(BOUNDS_S, tuple(self._counts), self._sum_s)
