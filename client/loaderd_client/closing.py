"""What ends the waits of a Loader that is closed: by another thread, or by a signal's handler in the middle of a call."""

from __future__ import annotations

import contextlib
import threading


class Closing:
    """done: it is closed. Waits on a socket are ended by whoever closes: by shutting the socket down."""

    def __init__(self) -> None:
        self.done = False
        self._bell = threading.Lock()  # no Event: to set one in a signal's handler that interrupts its wait would block for ever
        self._bell.acquire()

    def ring(self) -> None:
        self.done = True
        with contextlib.suppress(RuntimeError):  # it has rung already
            self._bell.release()

    def sleep(self, seconds: float) -> None:
        """Until then, or until it rings."""
        if not self.done and seconds > 0:
            self._bell.acquire(timeout=seconds)
