"""What a daemon, or a stream, that is not ready waits for: for clients and `status` whenever they ask, and for the log when it takes long."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from loaderd.system.loop import Loop
from loaderd_wire.hints import few

FIRST_S = 5.0  # until the first line in the log; the next ones when the wait has doubled
SHOWN = 4  # of those that are not ready


class StartupReporter:
    """From now until `end`. what: is being done. doing(): a line for each of those that are not ready."""

    def __init__(self, loop: Loop, doing: Callable[[], list[str]], log: Callable[[str, str], object]) -> None:
        self._loop = loop
        self._doing = doing
        self._log = log
        self._since_s = loop.now_s()
        self._timer = loop.later(FIRST_S, self._say)
        self.what = ""

    def opens(self, streams: Iterable[str]) -> None:
        self.what = "opening " + few([f"stream {name!r}" for name in sorted(streams)])

    def text(self) -> str:
        """What is being done, and by whom, on one line."""
        return "; ".join([self.what, *self._doing()[:SHOWN]])

    def end(self) -> None:
        self._timer.cancel()

    def _say(self) -> None:
        waited_s = self._loop.now_s() - self._since_s
        self._timer = self._loop.later(waited_s, self._say)
        self._log("info", f"not ready after {waited_s:.0f} s: {self.text()}")
