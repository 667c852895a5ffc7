"""The stacks of a process, which it writes into a file when it gets a signal."""

from __future__ import annotations

import os
from collections.abc import Callable

from loaderd.system import processes
from loaderd.system.loop import Loop, Timer

# from one look for what was asked for to the next, until it does not grow
LOOKS_S = (0.05, 0.1, 0.15, 0.3, 0.5)


class StackDump:
    """Owns the file of one process, and the timer of whoever waits for what is written into it.

    Attributes:
        fd: The file, a memfd; -1 once it is closed.
        asked_s: When the stacks were last asked for; None: never.
    """

    def __init__(self, loop: Loop, fd: int, max_bytes: int) -> None:
        """Take over the file.

        Args:
            loop: The loop that waits.
            fd: The file. It is closed with this object.
            max_bytes: As much of the stacks is read.
        """
        self._loop = loop
        self.fd = fd
        self._max_bytes = max_bytes
        self.asked_s: float | None = None
        self._begins = 0  # where what the process writes next begins
        self._timer: Timer | None = None

    def ask(self, pid: int, pidfd: int) -> bool:
        """Have the process write its stacks. What it wrote before is forgotten.

        Args:
            pid: Its process id.
            pidfd: Its pidfd.

        Returns:
            False if it can't do that yet: then the signal would kill it, and is not sent.
        """
        if not processes.catches(pid, processes.DUMP_SIGNAL):
            return False
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)
        self._begins, self.asked_s = 0, self._loop.now_s()
        processes.send_signal(pidfd, processes.DUMP_SIGNAL)
        return True

    def text(self) -> str:
        """What it has written; "" if that is nothing."""
        return self._bytes().decode("utf-8", "replace")

    def await_text(self, then: Callable[[str], object]) -> None:
        """Call then(text) once, when what was asked for is there or takes too long."""
        self._look(then, LOOKS_S, "")

    def forget(self) -> None:
        """What it has written so far is not returned any longer."""
        self._begins += len(self._bytes())

    def remember(self) -> None:
        """All that it has written since it was asked is returned again."""
        self._begins = 0

    def close(self) -> None:
        """Close the file. Nobody is called any longer. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _bytes(self) -> bytes:
        return os.pread(self.fd, self._max_bytes, self._begins) if self.fd >= 0 else b""

    def _look(self, then: Callable[[str], object], pauses_s: tuple[float, ...], last: str) -> None:
        def look() -> None:
            stack = self.text()
            if pauses_s[1:] and (not stack or stack != last):
                self._look(then, pauses_s[1:], stack)
            else:
                then(stack)

        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.later(pauses_s[0], look)
