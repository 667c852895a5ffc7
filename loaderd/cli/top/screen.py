"""The terminal of `loaderd top`: what is typed, and what is drawn when."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live

from loaderd.cli.exit_codes import FINE
from loaderd.cli.top.follower import Follower
from loaderd.cli.top.page import View, page

REDRAW_S = 1.0  # at least so often: seconds go on, and a window may have another size
ENDING = (signal.SIGTERM, signal.SIGHUP)
PAUSING = (signal.SIGTSTP, signal.SIGCONT)  # the terminal is somebody else's meanwhile
SIGNALLED = 128  # an exit code above it is that of a signal
KEYS = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "k": "up",
    "j": "down",
    "\r": "stack",
    "\n": "stack",
    "\x1b": "back",
    "s": "sort",
    "q": "quit",
}


class Keyboard:
    """Keys as they are typed. The terminal is as before when it is left."""

    def __init__(self, fd: int) -> None:
        """Change nothing yet.

        Args:
            fd: What is typed into; where it is no terminal, there are no keys.
        """
        self.fd = fd
        self._before: list[Any] | None = None

    def __enter__(self) -> Keyboard:
        if os.isatty(self.fd):
            self._before = termios.tcgetattr(self.fd)
            tty.setcbreak(self.fd)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            with contextlib.suppress(termios.error):  # the terminal has gone
                termios.tcsetattr(self.fd, termios.TCSADRAIN, self._before)

    @property
    def fds(self) -> list[int]:
        """What to wait for."""
        return [self.fd] if self._before is not None else []

    def keys(self) -> list[str]:
        """Names of the keys that were typed; "quit" at the end of the input."""
        try:
            typed = os.read(self.fd, 1024).decode("utf-8", "replace")
        except OSError:  # the terminal has gone
            typed = ""
        found: list[str] = []
        rest = typed
        while rest:
            key = next((key for key in KEYS if rest.startswith(key)), "")
            if key:
                found.append(KEYS[key])
            rest = rest[len(key) or 1 :]
        return found if typed else ["quit"]


def show(follower: Follower) -> int:
    """Draw the page until the user leaves it, or a signal asks for the end.

    A signal that stops it, as Ctrl-Z sends, finds the terminal as it was before. When it goes on,
    it draws again.

    Args:
        follower: Knows the daemon.

    Returns:
        The exit code.
    """
    view = View()
    with _Signals() as signals:
        while True:
            view = _draw(follower, view, signals)
            if view is None:
                return FINE
            if ending := [number for number in signals.noted if number in ENDING]:
                return SIGNALLED + ending[0]
            signals.pause()


def _draw(follower: Follower, view: View, signals: _Signals) -> View | None:
    """Draw until a signal comes. Returns what is wanted then, None if the user has left."""
    console = Console(file=sys.stdout, highlight=False)
    with (
        Keyboard(sys.stdin.fileno()) as keyboard,
        Live(console=console, screen=True, auto_refresh=False, transient=True) as live,
    ):
        while not signals.noted:
            size = os.get_terminal_size(sys.stdout.fileno())
            drawn = page(follower.picture, view, size.columns, size.lines, time.monotonic())
            live.update(drawn, refresh=True)
            watched = [follower.fd, signals.fd, *keyboard.fds]
            ready, _, _ = select.select(watched, [], [], REDRAW_S)
            if follower.fd in ready:
                follower.seen()
            for key in keyboard.keys() if keyboard.fd in ready else ():
                if key == "quit":
                    return None
                view = view.after(key, follower.picture.status)
                if view.stack and key == "stack":
                    follower.ask_stack(view.worker)
    return view


class _Signals:
    """Notes signals that end or stop it, which would leave the terminal as it is then.

    Use as a context manager.

    Attributes:
        noted: Their numbers, the first one first.
        fd: Readable as soon as there are any.
    """

    def __init__(self) -> None:
        self.noted: list[int] = []
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        for number in (*ENDING, *PAUSING):
            if signal.getsignal(number) is not signal.SIG_IGN or number in ENDING:
                self._before[number] = signal.signal(number, self._note)
        self._woken_before = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._woken_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.fd)
        os.close(self._write_fd)

    def pause(self) -> None:
        """Stop, if a signal has asked for that, until another one lets it go on."""
        if signal.SIGTSTP in self.noted:
            signal.signal(signal.SIGTSTP, self._before[signal.SIGTSTP])
            signal.raise_signal(signal.SIGTSTP)  # this thread stops before it returns
            signal.signal(signal.SIGTSTP, self._note)
        self.noted = [number for number in self.noted if number in ENDING]
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)

    def _note(self, number: int, frame: object) -> None:
        self.noted.append(number)
