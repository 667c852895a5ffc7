"""A connection to the daemon that serves a socket, in the loop of the one that is to follow it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from loaderd.system.fork_hooks import closed_in_children
from loaderd.system.loop import Loop
from loaderd_wire import codec
from loaderd_wire.errors import ProtocolError
from loaderd_wire.messages import Ask

READ_BYTES = 1 << 16
MOST_FDS = 2
SERVES = b"\0"  # what a successor says when it serves


class Predecessor:
    """Says what is asked, and hears what is answered until the end of the connection."""

    def __init__(
        self,
        loop: Loop,
        path: str,
        ask: Ask,
        *,
        heard: Callable[[Any, list[int]], object],
        ended: Callable[[], object],
    ) -> None:
        """Connect.

        Args:
            loop: Calls whatever is here.
            path: Of the socket.
            ask: What is said first.
            heard: Called with each message and the descriptors that have come so far, which are
                the callee's.
            ended: Called once, when the daemon has closed the connection or is dead; not after
                `close`.

        Raises:
            OSError: Nobody takes connections there.
        """
        self._loop = loop
        self._heard = heard
        self._ended = ended
        self._buffer = bytearray()
        self._fds: list[int] = []
        self._socket = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        try:
            self._socket.connect(path)
            self._socket.sendall(codec.frame(ask))
        except BaseException:
            self._socket.close()
            raise
        loop.watch(self._socket.fileno(), self._read)
        closed_in_children(self)

    def say(self) -> None:
        """Say SERVES: `Peer.on_more` there. If it is gone, `ended` will be called."""
        try:
            self._socket.send(SERVES, socket.MSG_NOSIGNAL)
        except OSError:
            return

    def close(self) -> None:
        """End the connection. Idempotent."""
        if self._socket.fileno() >= 0:
            self._loop.unwatch(self._socket.fileno())
            self.disown()

    def disown(self) -> None:
        """In a forked child: close the descriptors."""
        self._socket.close()
        for fd in self._fds:
            os.close(fd)
        self._fds = []

    def _read(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(
                self._socket, READ_BYTES, MOST_FDS, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        self._fds += fds
        self._buffer += data
        try:
            while data and (message := codec.unframe(self._buffer)) is not None:
                passed, self._fds = self._fds, []
                self._heard(message, passed)
                if self._socket.fileno() < 0:
                    return
        except ProtocolError:
            data = b""
        if not data:
            self.close()
            self._ended()
