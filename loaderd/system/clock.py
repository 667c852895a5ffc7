"""The clock of the deadlines: monotonic, and it stands still while its process does."""

from __future__ import annotations

import time
from collections.abc import Callable

TURN_S = 1.0


class Clock:
    """Time as the loop lived it.

    `tick` is called once a turn, `now_s` is constant in between. However long the process was
    stopped or starved, one tick adds at most TURN_S (or the sleep that was asked for, when that is
    longer): time in which nobody looked must not count against whom we look after.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._last_s = monotonic_s()
        self.now_s = self._last_s
        self.lost_s = 0.0

    def tick(self, slept_s: float = 0.0) -> float:
        """Advance to now and return it.

        Args:
            slept_s: The sleep that the turn had asked for. What is cut off is added to `lost_s`.
        """
        real_s = self._monotonic_s()
        passed_s = max(0.0, real_s - self._last_s)
        self._last_s = real_s
        counted_s = min(passed_s, max(TURN_S, slept_s))
        self.lost_s += passed_s - counted_s
        self.now_s += counted_s
        return self.now_s
