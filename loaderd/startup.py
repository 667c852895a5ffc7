"""What a daemon that is not ready waits for: told to clients at once, and to the log when it takes long."""

from __future__ import annotations

from collections.abc import Callable

from loaderd.drivers.loop import Loop, Timer

LOOK_S = 1.0
SHOWN = 4  # of those that are not ready
FIRST_S = 5.0  # a line in the log, then each time the wait has doubled


class Startup:
    """From `begin` to `end`. doing(): a line for each of those that are not ready, perhaps none. tell(text): for clients that wait."""

    def __init__(self, loop: Loop, doing: Callable[[], list[str]], tell: Callable[[str], object], log: Callable[..., object]) -> None:
        self._loop = loop
        self._doing = doing
        self._tell = tell
        self._log = log
        self._timer: Timer | None = None
        self._what = ""
        self._since_s = self._said_s = 0.0

    def begin(self, what: str) -> None:
        """This is what is being done from now on."""
        if self._timer is None:
            self._since_s = self._said_s = self._loop.now_s()
            self._timer = self._loop.later(LOOK_S, self._look)
        self._what = what
        self._tell(what)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = self._loop.later(LOOK_S, self._look)
        text = "; ".join([self._what, *self._doing()[:SHOWN]])
        self._tell(text)
        now_s = self._loop.now_s()
        if now_s - self._since_s >= max(FIRST_S, 2 * (self._said_s - self._since_s)):
            self._said_s = now_s
            self._log("info", f"not ready after {now_s - self._since_s:.0f} s: {text}")
