"""The last quarter of an hour of throughput and waiting, for the page.

It is measured while there are trainers. Nothing is kept of older times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from loaderd.core.assessment import worst
from loaderd.core.verdict import Verdict
from loaderd.system.loop import Loop

EVERY_S = 5.0
KEPT_S = 900.0


class Point(NamedTuple):
    """One measurement.

    Attributes:
        now_s: When, by the loop's clock.
        batches_per_s: Batches a second, of all trainers together.
        wait_fraction: Part of the time that the trainer waits that waits most, in [0, 1].
    """

    now_s: float
    batches_per_s: float
    wait_fraction: float


class History:
    """Points, one every EVERY_S, as long as there are sessions."""

    def __init__(self, loop: Loop, verdicts: Callable[[], Iterable[Verdict]]) -> None:
        """Measure nothing yet.

        Args:
            loop: Calls it.
            verdicts: Returns those on all trainers.
        """
        self._loop = loop
        self._verdicts = verdicts
        self._timer: object | None = None
        self._points: deque[Point] = deque(maxlen=int(KEPT_S / EVERY_S))

    def session_attached(self) -> None:
        """A trainer has come."""
        if self._timer is None:
            self._timer = self._loop.later(EVERY_S, self._measure)

    def ages(self) -> list[tuple[float, float, float]]:
        """(seconds ago, batches a second, wait fraction) of each point, the oldest first."""
        now_s = self._loop.now_s()
        return [
            (round(now_s - at_s, 1), rate, wait)
            for at_s, rate, wait in self._points
            if now_s - at_s <= KEPT_S
        ]

    def _measure(self) -> None:
        self._timer = None
        verdicts = list(self._verdicts())
        most = worst(verdicts)
        if most is None:
            return
        rate = sum(each.batches_per_s for each in verdicts)
        self._points.append(Point(self._loop.now_s(), round(rate, 3), round(most.wait_fraction, 4)))
        self._timer = self._loop.later(EVERY_S, self._measure)
