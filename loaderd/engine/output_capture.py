"""What user code prints in a worker: read from a pipe, into the daemon's log.

It is cut into lines, and bounded.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

from loaderd.system.logs import WriteLog
from loaderd.system.loop import Loop, Timer

READ_BYTES = 64 << 10
MAX_LINE = 2_000  # bytes of a line; the rest of it is dropped
WINDOW_S = 1.0
# lines logged in a window; the others are read all the same, so that user code never waits for us,
# and counted
WINDOW_LINES = 50
LAST_BYTES = 1 << 20  # read of what a dead process left in its pipe


class OutputCapture:
    """Reads a pipe and logs its lines.

    Attributes:
        tail: The last lines, newest last.
    """

    def __init__(self, loop: Loop, fd: int, log: WriteLog, label: Callable[[], str]) -> None:
        """Begin to read.

        Args:
            loop: Calls whatever is here.
            fd: The pipe's reading end, owned from now on.
            log: Its log.
            label: Returns what stands before each line.
        """
        self._loop = loop
        self._fd = fd
        self._log = log
        self._label = label
        self._rest = b""
        self._lines = 0
        self._dropped = 0
        self._window: Timer | None = None
        self.tail: deque[str] = deque(maxlen=10)
        os.set_blocking(fd, False)
        loop.watch(fd, self._readable)

    def close(self) -> None:
        """Log what is still in the pipe, without waiting for whoever else may hold its other end.

        Idempotent.
        """
        if self._fd < 0:
            return
        self._loop.unwatch(self._fd)
        left = LAST_BYTES
        while left > 0 and (data := self._read()):
            left -= len(data)
            self._take(data)
        if self._rest:
            self._say(self._rest)
        if self._window is not None:
            self._window.cancel()
        self._end_window()
        os.close(self._fd)
        self._fd = -1

    def _readable(self) -> None:
        data = self._read()
        if data is None:
            return
        if not data:
            self._loop.unwatch(self._fd)  # nobody is left to write
            return
        self._take(data)
        if self._window is None:
            self._window = self._loop.later(WINDOW_S, self._end_window)

    def _read(self) -> bytes | None:
        """A piece; b"" at the end; None: nothing is there."""
        try:
            return os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return None

    def _take(self, data: bytes) -> None:
        # What is only counted is not cut into lines: that would take the loop many times as long.
        *lines, rest = (self._rest + data).split(b"\n", WINDOW_LINES - self._lines)
        for line in lines:
            self._say(line)
        begun = rest.rfind(b"\n") + 1
        self._dropped += rest.count(b"\n", 0, begun)
        # of a line without end no more than a line is kept
        self._rest = rest[begun : begun + MAX_LINE + 1]

    def _say(self, line: bytes) -> None:
        self._lines += 1
        text = line[:MAX_LINE].decode("utf-8", "backslashreplace").rstrip("\r") + (
            " ..." if len(line) > MAX_LINE else ""
        )
        self.tail.append(text)
        self._log("info", "output", f"{self._label()}: {text}")

    def _end_window(self) -> None:
        if self._dropped:
            text = f"{self._label()}: {self._dropped} more lines dropped"
            self._log("warning", "output", text, dropped=self._dropped)
        self._window = None
        self._lines = self._dropped = 0
