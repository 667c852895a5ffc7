"""How long a daemon is waited for by one handshake, and what is said meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from loaderd_client.log import warn
from loaderd_client.wait import Wait, WaitLimits
from loaderd_wire.errors import LoaderdError


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why there is no session yet.

    Attributes:
        text: What is waited for, for the user.
        error: What is raised when the time is over.
    """

    text: str
    error: type[LoaderdError]


class HandshakeWait:
    """The two clocks of a handshake: since it began, and since a daemon was last heard starting."""

    def __init__(self, limits: WaitLimits) -> None:
        """Begin to wait."""
        self._limits = limits
        self._wait = Wait(time.monotonic(), limits)
        self._alone = Wait(time.monotonic(), limits)

    def resume(self) -> None:
        """What passed since the last `turn` was no waiting."""
        for wait in (self._wait, self._alone):
            wait.resume(time.monotonic())

    def turn(self) -> None:
        """What passed since the last `turn` or `resume` was waiting."""
        for wait in (self._wait, self._alone):
            wait.turn(time.monotonic())

    def use(self, work: Callable[[], object]) -> None:
        """Do some work. What it takes counts as no waiting; all that came before it does."""
        self.turn()
        work()
        self.resume()

    def heard_starting(self) -> None:
        """A daemon says that it starts: if it goes, its successor has all of `reconnect_s`."""
        self._alone = Wait(time.monotonic(), self._limits)

    def check(self, obstacle: Obstacle) -> None:
        """Go on waiting for a daemon that is there, for `timeout_s` in all.

        Raises:
            LoaderdError: The obstacle's error; the time is over.
        """
        self._check(obstacle, self._limits.timeout_s)

    def check_alone(self, obstacle: Obstacle) -> None:
        """Go on waiting for any daemon to come, for `reconnect_s`.

        Raises:
            LoaderdError: The obstacle's error; the time is over.
        """
        self._alone.turn(time.monotonic())
        over = self._alone.over(self._limits.reconnect_s)
        limit_s = 0.0 if over else max(self._limits.timeout_s, self._limits.reconnect_s)
        self._check(obstacle, limit_s)

    def pause_s(self) -> float:
        """Seconds to sleep at most before the next look."""
        return self._wait.unpinged_pause_s(self._limits.timeout_s)

    def _check(self, obstacle: Obstacle, limit_s: float) -> None:
        self._wait.turn(time.monotonic())
        if self._wait.over(limit_s):
            raise obstacle.error(f"waited {self._wait.waited_s:.0f} s: {obstacle.text}")
        if self._wait.warning_due():
            warn("waiting for %.0f s: %s", self._wait.waited_s, obstacle.text)
