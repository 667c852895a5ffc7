"""Descriptor 2: while libraries in C work that print on it, and as a log that has a name.

What such libraries print is kept, so that it can be told with the file that it is about.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from types import TracebackType
from typing import IO

STDERR = 2
KEPT_BYTES = 1 << 20  # that a pipe is asked to keep; what is printed beyond it is lost
MAX_LINE = 300  # characters


class CapturedStderr:
    """Use it as a context manager, one at a time in a process.

    sys.stderr goes on to where it went before.
    """

    def __init__(self) -> None:
        self._before = -1  # a copy of the descriptor as it was
        self._read = -1
        self._begun = b""  # a line whose end has not come yet
        self._python: tuple[IO[str], IO[str]] | None = None  # what sys.stderr was, and is

    def __enter__(self) -> CapturedStderr:
        try:
            os.fstat(STDERR)
        except OSError:  # closed: the next file that is opened would become what libraries print on
            null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            if null != STDERR:
                os.dup2(null, STDERR)
                os.close(null)
        self._before = fcntl.fcntl(STDERR, fcntl.F_DUPFD_CLOEXEC, STDERR + 1)
        # nobody ever waits for whoever reads it
        self._read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with contextlib.suppress(OSError):
            fcntl.fcntl(write, 1031, KEPT_BYTES)  # F_SETPIPE_SZ, which Python 3.10 has no name for
        if _is_stderr(sys.stderr):
            ours = open(
                self._before,
                "w",
                buffering=1,
                encoding=sys.stderr.encoding,
                errors=sys.stderr.errors,
                closefd=False,
            )
            self._python = (sys.stderr, ours)
            sys.stderr.flush()
            sys.stderr = ours
        os.dup2(write, STDERR)
        os.close(write)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.dup2(self._before, STDERR)
        if self._python is not None:
            sys.stderr = self._python[0]
            self._python[1].close()
        os.close(self._before)
        os.close(self._read)

    def lines(self) -> list[str]:
        """The whole lines that have come since the last call, each cut to MAX_LINE characters."""
        try:
            data = os.read(self._read, KEPT_BYTES)
        except BlockingIOError:
            return []
        *whole, self._begun = (self._begun + data).split(b"\n")
        self._begun = self._begun[:MAX_LINE]
        shown = (line[:MAX_LINE].decode("utf-8", "backslashreplace").strip() for line in whole)
        return [line for line in shown if line]


def keep_named(fd: int, path: str) -> None:
    """Have a log's descriptor write into a file at `path` where its own has been removed.

    A daemon that was just leaving may have removed the log that its successor had been given.

    Args:
        fd: The descriptor.
        path: Of the log.

    Raises:
        OSError: There can be no such file.
    """
    if not os.fstat(fd).st_nlink:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        new = os.open(path, flags, 0o600)
        os.dup2(new, fd)
        os.close(new)


def _is_stderr(stream: IO[str] | None) -> bool:
    try:
        return stream is not None and stream.fileno() == STDERR
    except (OSError, ValueError):
        return False
