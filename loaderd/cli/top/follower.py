"""Follows a daemon: asks for its status again and again, and notices where another one answers."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass, replace

from loaderd.cli import control_client, status
from loaderd.cli.exit_codes import CommandError
from loaderd.server.status_report import DaemonStatus
from loaderd_wire.messages import Rejected


@dataclass(frozen=True, slots=True)
class DaemonPicture:
    """What is known of the daemon.

    Attributes:
        status: Its latest status.
        at_s: When that came, by time.monotonic.
        trouble: Why there is none since; "" if there is.
        note: What else the user is to know; "" if nothing.
    """

    status: DaemonStatus
    at_s: float
    trouble: str = ""
    note: str = ""


class Follower:
    """Asks in a thread, so that a daemon that does not answer holds up nobody.

    Use as a context manager.

    Attributes:
        picture: The latest.
        fd: Readable after each new picture, until `seen` is called.
    """

    def __init__(self, path: str, picture: DaemonPicture, interval_s: float) -> None:
        """Begin.

        Args:
            path: Of the daemon's socket.
            picture: What is known by now.
            interval_s: Seconds between two questions.
        """
        self.picture = picture
        self._path = path
        self._interval_s = interval_s
        self._wanted: int | None = None  # a worker whose stack is to be taken
        self._changed = threading.Condition()
        self._stopped = False
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="loaderd-top", daemon=True)

    def __enter__(self) -> Follower:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            os.close(self.fd)
            os.close(self._write_fd)

    def ask_stack(self, worker: int) -> None:
        """Have a worker's stack taken; a later status has it."""
        with self._changed:
            self._wanted = worker
            self._changed.notify_all()

    def wait(self, old: DaemonPicture) -> None:
        """Until there is another picture than `old`."""
        with self._changed:
            self._changed.wait_for(lambda: self.picture is not old)

    def seen(self) -> None:
        """Wait for the next picture on `fd` from now on."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._stopped or self._wanted is not None, self._interval_s
                )
                if self._stopped:
                    return
                wanted, self._wanted = self._wanted, None
            picture = self._next(wanted)
            with self._changed:
                if self._stopped:
                    return
                self.picture = picture
                self._changed.notify_all()
                with contextlib.suppress(BlockingIOError):  # many are not seen yet
                    os.write(self._write_fd, b".")

    def _next(self, wanted: int | None) -> DaemonPicture:
        old = self.picture
        try:
            note = "" if wanted is None else self._take_stack(wanted)
            found = status.fetch(self._path)
        except CommandError as error:
            return replace(old, trouble=str(error).split("\n")[0])
        now_s = time.monotonic()
        if old.status.pid and found.pid and found.pid != old.status.pid:
            note = f"the daemon was restarted: pid {old.status.pid} is now {found.pid}"
        return DaemonPicture(found, now_s, note=note or old.note)

    def _take_stack(self, worker: int) -> str:
        """Ask for it. Returns why that can't be done, or ""."""
        with control_client.ControlConnection(self._path, f"stack {worker}") as line:
            for message in line.messages():
                if isinstance(message, Rejected):
                    return message.text
        return ""
