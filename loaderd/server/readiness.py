"""Whoever started this daemon and waits on a pipe.

It is told once how the start went, and may leave before that.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from loaderd.system.loop import Loop

MOST_BYTES = 32 << 10  # a pipe takes more at once, so nobody waits for its reader


class ReadinessPipe:
    """A pipe that says once how the start of the daemon went."""

    def __init__(self, loop: Loop, fd: int | None) -> None:
        """Say nothing yet.

        Args:
            loop: Calls whatever is here.
            fd: The pipe's writing end, ours from now on; None if nobody waits.
        """
        self._loop = loop
        self._fd = fd
        if fd is not None:
            os.set_inheritable(fd, False)

    @property
    def waits(self) -> bool:
        """Somebody waits, and has not been told yet how the start went."""
        return self._fd is not None

    def watch(self, left: Callable[[], object]) -> None:
        """Watch whether somebody still reads the pipe.

        Args:
            left: Called when nobody does any more, unless that has been told how the start went.
        """

        def unread() -> None:
            self.tell("")
            left()

        if self._fd is not None:
            # of a pipe without a reader the kernel tells anyway
            self._loop.watch(self._fd, unread, read=False)

    def tell(self, text: str) -> None:
        """Once: "ready", the lines that say why not, or "" where there is nothing to say."""
        fd, self._fd = self._fd, None
        if fd is not None:
            self._loop.unwatch(fd)
            with suppress(OSError):  # it may be gone
                os.write(fd, text.encode("utf-8", "backslashreplace")[:MOST_BYTES])
            os.close(fd)
