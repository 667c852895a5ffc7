"""The unix socket on which a session lives: framed messages, some with file descriptors."""

from __future__ import annotations

import array
import contextlib
import errno
import os
import select
import socket
from collections import deque
from typing import Any

from loaderd_wire.codec import frame, unframe
from loaderd_wire.errors import ProtocolError, RefusedError, by_handler
from loaderd_wire.messages import Message

MAX_FDS = 8
RECEIVE_BYTES = 64 << 10
# EAGAIN: the queue of connections is full
NOBODY = (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN, errno.ECONNRESET)


class ControlSocket:
    """A connected control socket. All its fds are closed on exec; after `close` nothing is left.

    Attributes:
        ended: The peer is gone, or this is closed.
        unread: Messages that were received and that nobody has taken yet.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._buffer = bytearray()
        self._fds: deque[int] = deque()
        self.ended = False
        self.unread: list[Any] = []  # messages that `receive` gives once more

    @classmethod
    def connect(cls, path: str) -> ControlSocket | None:
        """Connect to a daemon.

        Args:
            path: Path of its socket.

        Returns:
            The socket, or None if nobody listens there now.

        Raises:
            RefusedError: This user may not connect there.
        """
        connected = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        try:
            connected.connect(path)
        except OSError as error:
            connected.close()
            if by_handler(error):
                raise
            if error.errno in NOBODY:
                return None
            if error.errno in (errno.EACCES, errno.EPERM):
                raise RefusedError(
                    f"uid {os.geteuid()} may not connect to {path}: {error.strerror}; the "
                    "daemon's [daemon] allow_uids must name it, "
                    "and its folder must be passable"
                ) from None
            raise RefusedError(f"cannot connect to {path}: {error.strerror}") from None
        except BaseException:
            connected.close()
            raise
        return cls(connected)

    def fileno(self) -> int:
        """Its file descriptor, for a poller."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send a message whole. A peer that is gone or does not read ends the socket."""
        data = frame(message)
        try:
            while data:
                data = data[self._socket.send(data, socket.MSG_NOSIGNAL) :]
        except OSError as error:  # also a full buffer: a hello is far smaller than one
            if by_handler(error):
                raise
            self.ended = True

    def wait(self, timeout_s: float) -> bool:
        """True once there is something to receive."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    @property
    def hung_up(self) -> bool:
        """Whether the peer is gone, even if messages of it have not been received yet."""
        if self.ended:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return bool(poll.poll(0))

    def receive(self) -> list[Any]:
        """The messages that are here now. Afterwards `ended` tells whether the peer is gone.

        Raises:
            ProtocolError: What came is no message.
        """
        while not self.ended:
            try:
                data, ancillary, flags, _ = self._socket.recvmsg(
                    RECEIVE_BYTES, socket.CMSG_SPACE(MAX_FDS * 4), socket.MSG_CMSG_CLOEXEC
                )
            except OSError as error:
                if by_handler(error):
                    raise
                if isinstance(error, BlockingIOError):
                    break
                self.ended = True
                break
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds = array.array("i")
                    fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
                    self._fds.extend(fds)
            if flags & socket.MSG_CTRUNC:
                raise ProtocolError(
                    "a file descriptor from the daemon did not arrive: is this process out of "
                    "file descriptors (ulimit -n)?"
                )
            if not data:
                self.ended = True
            self._buffer += data
        messages, self.unread = self.unread, []
        while (message := unframe(self._buffer)) is not None:
            messages.append(message)
        return messages

    def take_fd(self) -> int:
        """Take the file descriptor that came beside the oldest message that has one.

        The caller closes it.

        Raises:
            ProtocolError: None has come.
        """
        if not self._fds:
            raise ProtocolError("a segment came without its memory")
        return self._fds.popleft()

    def shut(self) -> None:
        """End the connection for both sides, from any thread: whoever waits on it wakes up."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket, and file descriptors that nobody has taken."""
        self.ended = True
        self._socket.close()
        while self._fds:
            with contextlib.suppress(OSError):
                os.close(self._fds.popleft())
