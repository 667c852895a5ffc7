"""What can go wrong with data: a source that cannot be opened, a sample that cannot be made."""

from __future__ import annotations

import errno
import importlib
import os
import traceback as tb
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import loaderd_wire

HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
CLIENT = tuple(  # a script that is imported may have come to the client's own files
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(loaderd_wire.__file__))), name, "")
    for name in ("loaderd_client", "loaderd_wire")
)
IMPORTER = os.path.dirname(importlib.__file__) + os.sep
# what user code may raise; KeyboardInterrupt is no fault of a sample
ANYTHING = (Exception, SystemExit)
MAX_MESSAGE = 2_000  # characters
MAX_TRACEBACK = 16_000
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class SourceError(Exception):
    """The data cannot be opened or is not what was said.

    str() names path and reason in one to three lines.

    Attributes:
        traceback: Of user code that failed while it was imported or built; else "".
    """

    def __init__(self, text: str, traceback: str = "") -> None:
        super().__init__(text)
        self.traceback = traceback


class WriteFault(SourceError):
    """What is to be written cannot be; str() names the file, says why, and what to do.

    Attributes:
        full: There is no room (disk, quota, size limit).
    """

    def __init__(self, path: str, why: str, full: bool) -> None:
        what = (
            (
                f"no space left on the disk ({why}): free some and run the same command again; it "
                "continues"
            )
            if full
            else f"cannot be written: {why}"
        )
        super().__init__(f"{path}: {what}")
        self.full = full


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Whatever the system refuses in it becomes a WriteFault of `path`."""
    try:
        yield
    except OSError as error:
        raise WriteFault(path, error.strerror or str(error), error.errno in NO_ROOM) from None


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Whatever the system refuses in it becomes a SourceError of `path`."""
    try:
        yield
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from None


class SampleFault(Exception):
    """One sample could not be made.

    Attributes:
        stage: "read", "decode", "transform", "collate" or "check".
        error: A class name.
        message: What it says.
        traceback: Frames outside loaderd, as text; "" where only loaderd's own code was at work.
    """

    def __init__(self, stage: str, error: str, message: str, traceback: str = "") -> None:
        super().__init__(stage, error, message, traceback)
        self.stage = stage
        self.error = error
        self.message = message
        self.traceback = traceback

    def __str__(self) -> str:
        return f"{self.stage}: {self.error}: {self.message}"

    @classmethod
    def of(cls, stage: str, error: BaseException) -> SampleFault:
        """The fault that this exception means in this stage."""
        return cls(
            stage, type(error).__name__, _cut(_text(error), MAX_MESSAGE), user_traceback(error)
        )


def _text(error: BaseException) -> str:
    try:
        return str(error) or "(no message)"
    except Exception as second:  # noqa: BLE001 - a user's exception class may fail in its own __str__
        return f"(its message cannot be shown: {type(second).__name__})"


def _cut(text: str, most: int) -> str:
    return (
        text
        if len(text) <= most
        else text[: most - 40] + f" ... ({len(text) - most + 40} characters more)"
    )


def is_users(file: str) -> bool:
    """Whether code of this file is neither loaderd's nor what Python imports modules with."""
    return not file.startswith((HOME, *CLIENT, IMPORTER, "<frozen importlib."))


def _users(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and not is_users(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def user_traceback(error: BaseException) -> str:
    """The error as Python prints it, from the first frame that is the user's.

    Returns:
        "" if there is none, and none is told of in the error.
    """
    first = _users(error.__traceback__)
    hidden = error.__suppress_context__ or error.__context__ is None
    if first is None and error.__cause__ is None and hidden and not isinstance(error, SyntaxError):
        return ""
    parts = (part.rstrip("\n") for part in tb.format_exception(type(error), error, first, limit=50))
    # else a message of megabytes leaves no room for where it was
    text = "".join(_cut(part, MAX_MESSAGE) + "\n" for part in parts)
    return (
        text
        if len(text) <= MAX_TRACEBACK
        else text[:4_000] + "\n...\n" + text[-(MAX_TRACEBACK - 4_010) :]
    )
