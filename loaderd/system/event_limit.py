"""Not too many lines of one kind in the log."""

from __future__ import annotations

from dataclasses import dataclass

BURST, WINDOW_S = 100, 10.0  # so many lines of one event in so many seconds


@dataclass(slots=True)
class _Window:
    begin_s: float
    lines: int = 0
    left_out: int = 0


class EventLimit:
    """Counts the lines of each event in a window of time. What is too much is told afterwards."""

    def __init__(self) -> None:
        """Let everything pass at first."""
        self._windows: dict[str, _Window] = {}

    def passes(self, event: str, now_s: float) -> bool:
        """Whether one more line of an event is to be written.

        Args:
            event: Its name; there are as many as the product has.
            now_s: Now, by a clock that does not go back.
        """
        window = self._windows.get(event)
        if window is None or now_s - window.begin_s >= WINDOW_S:
            window = self._windows[event] = _Window(now_s)
        window.lines += 1
        window.left_out += window.lines > BURST
        return window.lines <= BURST

    def over(self, now_s: float) -> list[tuple[str, int]]:
        """(event, lines that were left out) of each window that is over; each is told once.

        Args:
            now_s: Now; infinity at the end of the log.
        """
        over = [name for name, it in self._windows.items() if now_s - it.begin_s >= WINDOW_S]
        windows = [(name, self._windows.pop(name).left_out) for name in over]
        return [(name, left_out) for name, left_out in windows if left_out]
