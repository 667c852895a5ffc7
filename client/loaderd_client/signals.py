"""Signals wait while something runs that an exception from one of their handlers would break.

Such as the import of torch, or a session that is half made.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

ACTION_BYTES = 512  # more than the struct sigaction of any C library

_libc = ctypes.CDLL(None)


class Held:
    """While it is entered, no signal handler written in Python runs.

    Those whose signals came run right after it, and what they raise comes out there. In another
    thread than the main one, where no such handler ever runs, it does nothing.

    The kernel's own record of a handler is put back as it was: another library may have its
    function there.
    """

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._pid = os.getpid()
        self._over = False
        self._came: list[int] = []
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._replaced: list[tuple[int, Any]] = []  # signal, the kernel's record

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        try:
            for number in signal.valid_signals():
                handler = signal.getsignal(number)
                if callable(handler):
                    record = ctypes.create_string_buffer(ACTION_BYTES)
                    _libc.sigaction(int(number), None, record)
                    self._handlers[number] = handler
                    self._replaced.append((number, record))
                    signal.signal(number, self._note)
        except BaseException:  # of a handler that has not been replaced yet
            self._end()
            raise

    def __exit__(self, *_: object) -> None:
        self._end()

    def _note(self, number: int, frame: FrameType | None) -> None:
        # a child that another thread has forked meanwhile never gets to the end
        if self._over or os.getpid() != self._pid:
            self._handlers[number](number, frame)
        else:
            self._meet(number, frame)

    def _meet(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)

    def _end(self) -> None:
        self._over = True  # from here on a handler may raise at any point
        try:
            self._put_back()
        finally:
            try:
                self._put_back()  # it may have kept the first call from beginning
            finally:
                self._tell()

    def _put_back(self) -> None:
        try:
            while self._replaced:
                number, record = self._replaced[-1]
                # else somebody has set another one meanwhile
                if signal.getsignal(number) == self._note:
                    signal.signal(number, self._handlers[number])
                    _libc.sigaction(int(number), record, None)
                self._replaced.pop()
        finally:
            if self._replaced:
                self._put_back()

    def _tell(self) -> None:
        try:
            while self._came:
                signal.raise_signal(self._came.pop(0))
        finally:
            if self._came:
                self._tell()


class Carried(BaseException):
    """What a handler has raised, past every `except Exception`."""

    def __init__(self, error: Exception) -> None:
        """Carry this error."""
        super().__init__(error)
        self.error = error


class Unswallowed(Held):
    """While it is entered, an Exception of a handler ends the block as a `Carried`.

    So it does where code below, such as logging, prints every Exception and goes on. Handlers run
    at once. A `Carried` may come out of `__enter__` and of `__exit__`, too.
    """

    def _meet(self, number: int, frame: FrameType | None) -> None:
        try:
            self._handlers[number](number, frame)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is carried out
            self._end()  # here, for the next one may keep __exit__ from it
            raise Carried(error) from None
