"""How long daemons are waited for that come and go while one batch is waited for."""

from __future__ import annotations

from dataclasses import replace

from loaderd_client.wait import WaitLimits
from loaderd_wire.errors import DaemonGoneError, LoaderdError, StallError

FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 5.0


class ReconnectBudget:
    """How long the daemons after a lost one are waited for, during the wait for one batch.

    After the first loss the next daemon has the full limits. From the second loss on all of them
    together have `timeout_s` since the wait began: perhaps this batch is what ends them.

    Attributes:
        last: How the last daemon ended; "" before the first loss.
    """

    def __init__(self, now_s: float, limits: WaitLimits, where: str) -> None:
        """Begin before the first loss.

        Args:
            now_s: Time in seconds of a monotonic clock.
            limits: How long to wait.
            where: Which batch is waited for, for the user.
        """
        self._began_s = now_s
        self._limits = limits
        self._where = where
        self._count = 0
        self.last = ""

    def add(self, how: str) -> None:
        """A daemon has ended; `how` says how."""
        self._count += 1
        self.last = how

    def left(self, now_s: float) -> WaitLimits:
        """The limits for the next daemon.

        Raises:
            DaemonGoneError: No time is left.
        """
        if self._count < 2:
            return self._limits
        left_s = self._limits.timeout_s - (now_s - self._began_s)
        if left_s <= 0:
            raise DaemonGoneError(f"waited {now_s - self._began_s:.0f} s for {self._where}")
        return replace(
            self._limits, timeout_s=left_s, reconnect_s=min(left_s, self._limits.reconnect_s)
        )

    def pause_s(self, now_s: float) -> float:
        """Seconds to wait before the next one, if they die one after the other.

        Raises:
            DaemonGoneError: No time is left.
        """
        if self._count < 2:
            return 0.0
        return min(
            FIRST_PAUSE_S * 2.0 ** min(self._count - 2, 10),
            LAST_PAUSE_S,
            self.left(now_s).timeout_s,
        )

    def told(self, error: LoaderdError) -> LoaderdError:
        """The same error, with what was lost before it."""
        if self._count < 2 or not isinstance(error, (DaemonGoneError, StallError)):
            return error
        lost = (
            f"{self._count} daemons have gone while {self._where} was waited for, the last "
            f"one: {self.last}"
        )
        return type(error)(f"{lost}; {error}")
