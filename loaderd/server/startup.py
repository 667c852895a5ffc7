"""What a daemon, or a stream, that is not ready waits for.

Clients and `status` are told whenever they ask, and the log when it takes long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from loaderd.system.logs import WriteLog
from loaderd.system.loop import Loop, Timer
from loaderd_wire.hints import few

FIRST_S = 5.0  # until the first line in the log; the next ones when the wait has doubled
SHOWN = 4  # of those that are not ready


class StartupReporter:
    """Silent until something is waited for."""

    def __init__(self, loop: Loop, doing: Callable[[], list[str]], log: WriteLog) -> None:
        """Wait for nothing yet.

        Args:
            loop: Calls whatever is here.
            doing: Returns a line for each process that is not ready.
            log: Its log.
        """
        self._loop = loop
        self._doing = doing
        self._log = log
        self._since_s = 0.0
        self._timer: Timer | None = None
        self._what = ""

    def opens(self, streams: Iterable[str]) -> None:
        """These streams are waited for."""
        self.waits_for("opening " + few([f"stream {name!r}" for name in sorted(streams)]))

    def waits_for(self, what: str) -> None:
        """What is being done from now on; the wait itself goes on if it had begun."""
        self._what = what
        if self._timer is None:
            self._since_s = self._loop.now_s()
            self._timer = self._loop.later(FIRST_S, self._say)

    def end(self) -> None:
        """Nothing is waited for any longer. Idempotent."""
        self._what = ""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def text(self) -> str:
        """What is being done, and by whom, on one line; "" while nothing is waited for."""
        return "; ".join([self._what, *self._doing()[:SHOWN]]) if self._what else ""

    def _say(self) -> None:
        waited_s = self._loop.now_s() - self._since_s
        self._timer = self._loop.later(waited_s, self._say)
        text = f"not ready after {waited_s:.0f} s: {self.text()}"
        self._log("info", "not_ready", text, seconds=round(waited_s))
