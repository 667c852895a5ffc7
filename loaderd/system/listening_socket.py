"""A listening unix socket in the loop, which also bears a process without free descriptors."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable

from loaderd.system.logs import WriteLog
from loaderd.system.loop import Loop
from loaderd.system.rate_limit import RateLimit

ACCEPTS = 32  # in one turn
BACKLOG = 512


class ListeningSocket:
    """Takes connections until `stop`.

    Out of descriptors it closes each connection at once, with the help of a spare descriptor: left
    in the backlog it would wake the loop for ever.
    """

    def __init__(
        self,
        loop: Loop,
        path: str,
        mode: int,
        *,
        on_connection: Callable[[socket.socket], object],
        log: WriteLog,
        fd: int = -1,
    ) -> None:
        """Listen.

        Args:
            loop: Calls whatever is here.
            path: Of the socket's file.
            mode: Of that file.
            on_connection: Called with each connection, which doesn't block and is the callee's.
            log: Its log.
            fd: Of another process's socket that listens at the path, ours from now on; -1: a new
                one is made.

        Raises:
            OSError: It can't listen.
        """
        self._loop = loop
        self._path = path
        self._on_connection = on_connection
        self._log = log
        self._rarely = RateLimit()
        self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._lent = False
        self._socket: socket.socket | None = self._listen(mode, fd)

    @property
    def fd(self) -> int:
        """Descriptor of the socket, for a successor; -1 after `stop`."""
        return -1 if self._socket is None else self._socket.fileno()

    def lend(self) -> None:
        """Take no connections: whoever has a copy of `fd` does, and the file is its."""
        if self._socket is not None:
            self._lent = True
            self._loop.unwatch(self._socket.fileno())

    def take_back(self) -> None:
        """Nobody else takes connections: go on."""
        if self._socket is not None:
            self._lent = False
            self._loop.watch(self._socket.fileno(), self._accept)

    def stop(self) -> None:
        """No new connections; those in the backlog see EOF. The socket's file goes. Idempotent."""
        if self._socket is not None:
            self._loop.unwatch(self._socket.fileno())
            # a cleaner of temporary folders may have been here
            with contextlib.suppress(FileNotFoundError):
                if not self._lent:
                    os.unlink(self._path)
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        """As `stop`; and the spare descriptor is given back."""
        self.stop()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def disown(self) -> None:
        """In a forked child: close the descriptor, touch nothing that the parent shares."""
        if self._socket is not None:
            self._socket.close()

    def _listen(self, mode: int, fd: int) -> socket.socket:
        kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        listener = (
            socket.socket(socket.AF_UNIX, kind)
            if fd < 0
            else socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=fd)
        )
        try:
            if fd < 0:
                old = os.umask(0o177)  # nobody else gets in before the mode is what it shall be
                try:
                    listener.bind(self._path)
                finally:
                    os.umask(old)
            os.chmod(self._path, mode)
            listener.setblocking(False)
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
        self._loop.watch(listener.fileno(), self._accept)
        return listener

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            if self._socket is None:
                return
            try:
                sock, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._turn_away(self._socket)
                return  # ECONNABORTED and the like: gone before we came
            sock.setblocking(False)
            self._on_connection(sock)

    def _turn_away(self, listener: socket.socket) -> None:
        """Take a connection with the spare descriptor, and close it."""
        if self._spare >= 0:
            os.close(self._spare)
        with contextlib.suppress(OSError):
            listener.accept()[0].close()
        try:
            self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._spare = -1
        more = self._rarely.ask("descriptors", self._loop.now_s())
        if more is not None:
            self._log(
                "error",
                "no_descriptors",
                "out of file descriptors: a connection was closed at once; raise "
                f"RLIMIT_NOFILE{more}",
            )
