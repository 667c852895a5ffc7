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
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live

from loaderd.cli.exit_codes import FINE
from loaderd.cli.top.follower import Follower
from loaderd.cli.top.page import View, page

REDRAW_S = 1.0  # at least so often: seconds go on, and a window may have another size
ENDING = (signal.SIGTERM, signal.SIGHUP)
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

    Args:
        follower: Knows the daemon.

    Returns:
        The exit code.
    """
    console = Console(file=sys.stdout, highlight=False)
    view = View()
    signals: list[int] = []
    with (
        _noted(signals),
        Keyboard(sys.stdin.fileno()) as keyboard,
        Live(console=console, screen=True, auto_refresh=False, transient=True) as live,
    ):
        while not signals:
            size = os.get_terminal_size(sys.stdout.fileno())
            drawn = page(follower.picture, view, size.columns, size.lines, time.monotonic())
            live.update(drawn, refresh=True)
            ready, _, _ = select.select([follower.fd, *keyboard.fds], [], [], REDRAW_S)
            if follower.fd in ready:
                follower.seen()
            for key in keyboard.keys() if keyboard.fd in ready else ():
                if key == "quit":
                    return FINE
                view = view.after(key, follower.picture.status)
                if view.stack and key == "stack":
                    follower.ask_stack(view.worker)
    return SIGNALLED + signals[0]


@contextlib.contextmanager
def _noted(signals: list[int]) -> Iterator[None]:
    """Note signals that ask for the end, instead of ending at once with the terminal as it is."""
    before = {
        number: signal.signal(number, lambda number, _: signals.append(number)) for number in ENDING
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
