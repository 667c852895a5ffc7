"""Ends the waits of a Loader that another thread or a signal handler closes."""

from __future__ import annotations

import contextlib
import threading


class Closing:
    """Tells who waits without a socket that the Loader is closed.

    Who closes ends waits on a socket by shutting it down.

    Attributes:
        done: The Loader is closed.
    """

    def __init__(self) -> None:
        self.done = False
        # Held until the Loader is closed. No Event: to set one in a signal handler that interrupts
        # its wait would block for ever.
        self._open = threading.Lock()
        self._open.acquire()

    def close(self) -> None:
        """Close; a second call does nothing."""
        self.done = True
        with contextlib.suppress(RuntimeError):  # released already
            self._open.release()

    def sleep(self, seconds: float) -> None:
        """Sleep so long, or until the Loader is closed."""
        if not self.done and seconds > 0:
            self._open.acquire(timeout=seconds)
