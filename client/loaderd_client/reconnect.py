"""The daemons that went away while one batch was waited for: what they leave of the patience, and what is said of them."""

from __future__ import annotations

from dataclasses import replace

from loaderd_client.wait import WaitLimits
from loaderd_wire.errors import DaemonGoneError, LoaderdError, StallError

FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 5.0


class ReconnectBudget:
    """Of one wait, which began at now_s; the clock is handed in. last: how the last daemon went, "" before.

    One daemon may be lost, and its successor has all the time that there is. Who loses more of them at one batch has `timeout_s` for
    all together, since the wait began: perhaps it is this batch that they die of.
    """

    def __init__(self, now_s: float, limits: WaitLimits, where: str) -> None:
        self._began_s = now_s
        self._limits = limits
        self._where = where
        self._count = 0
        self.last = ""

    def add(self, how: str) -> None:
        self._count += 1
        self.last = how

    def left(self, now_s: float) -> WaitLimits:
        """What the next daemon has. Raises DaemonGoneError if that is nothing."""
        if self._count < 2:
            return self._limits
        left_s = self._limits.timeout_s - (now_s - self._began_s)
        if left_s <= 0:
            raise DaemonGoneError(f"waited {now_s - self._began_s:.0f} s for {self._where}")
        return replace(self._limits, timeout_s=left_s, reconnect_s=min(left_s, self._limits.reconnect_s))

    def pause_s(self, now_s: float) -> float:
        """How long to wait before the next one, if they die one after the other. Raises as `left`."""
        if self._count < 2:
            return 0.0
        return min(FIRST_PAUSE_S * 2.0 ** min(self._count - 2, 10), LAST_PAUSE_S, self.left(now_s).timeout_s)

    def told(self, error: LoaderdError) -> LoaderdError:
        """The same error, with what was lost before it."""
        if self._count < 2 or not isinstance(error, (DaemonGoneError, StallError)):
            return error
        lost = f"{self._count} daemons have gone while {self._where} was waited for, the last one: {self.last}"
        return type(error)(f"{lost}; {error}")
