"""Progress of a long command on stderr.

It is a bar that redraws itself on a terminal, and a plain line now and then anywhere else.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType

from loaderd_wire.plain_text import plain

BAR = 30
DRAWN_S = 0.1  # between two drawings of the bar
SAID_S = 10.0  # between two plain lines


class ProgressLine:
    """Use as a context manager and call it with (done, total).

    `say` prints a line above the bar.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._live = sys.stderr.isatty()
        self._begin_s = time.monotonic()
        self._next_s = self._begin_s + (0.0 if self._live else SAID_S)
        self._first: int | None = None
        self._drawn = False

    def __call__(self, done: int, total: int) -> None:
        """So many are done, earlier runs included; draws every DRAWN_S, or prints every SAID_S."""
        if self._first is None:
            self._first = done  # what an earlier run had done already counts for no speed
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + (DRAWN_S if self._live else SAID_S)
        speed = (done - self._first) / max(1e-9, now_s - self._begin_s)
        left = f", {_span((total - done) / speed)} left" if speed > 0 else ""
        text = f"{done:,} of {total:,} {self._what}, {speed:,.0f}/s{left}"
        if self._live:
            filled = done * BAR // max(1, total)
            sys.stderr.write(f"\r\033[K{'█' * filled}{'░' * (BAR - filled)} {text}")
            sys.stderr.flush()
            self._drawn = True
        else:
            sys.stderr.write(f"loaderd: {text}\n")

    def say(self, line: str) -> None:
        """Print a line above the bar, which the next call draws anew."""
        self._clear()
        sys.stderr.write(f"{plain(line)}\n")
        self._next_s = 0.0 if self._live else self._next_s

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._clear()

    def _clear(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
            self._drawn = False


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
