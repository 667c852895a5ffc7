"""Messages with file descriptors between engine, fork server and workers.

Each pair is connected by one SEQPACKET socket pair.

A message goes out in packets of at most PACKET bytes, each behind one byte that says whether it is
the last; descriptors travel with the first. So a message may be as large as the codec allows,
whatever the kernel's limit for one packet is.
"""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from collections.abc import Sequence

from loaderd.engine.messages import ORDERS
from loaderd_wire.codec import MAX_MESSAGE
from loaderd_wire.errors import ProtocolError

PACKET = 60 << 10
MAX_FDS = 8
MORE, LAST = b"\1", b"\0"


class ChannelClosed(Exception):
    """The other side has closed the socket, or is dead."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected SEQPACKET sockets, closed on exec."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Channel:
    """One end.

    Owns the socket. `blocking=False`: for a loop; `send` never waits, what does not fit is kept and
    goes out by `flush`.

    takes_fds=False: nobody is to send us descriptors; the kernel closes those that come all the
    same.
    """

    def __init__(self, sock: socket.socket, *, blocking: bool, takes_fds: bool = True) -> None:
        self.sock = sock
        self._takes_fds = takes_fds
        sock.setblocking(blocking)
        self._buffer = memoryview(bytearray(0 if takes_fds else PACKET + 2))
        self._out: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._parts: list[bytes] = []
        self._size = 0
        self._fds: list[int] = []

    def fileno(self) -> int:
        """The socket's descriptor, which stays the channel's; -1 once it is closed."""
        return self.sock.fileno()

    @property
    def unsent(self) -> int:
        """Packets that wait for room; the owner watches for writability while there are any."""
        return len(self._out)

    def send(self, message: object, fds: Sequence[int] = ()) -> None:
        """Send a message; the caller keeps its fds.

        Raises ChannelClosed, and ProtocolError for a message that is too large.
        """
        data = ORDERS.encode(message)
        if len(data) <= PACKET and not self._out and self._sent(LAST + data, tuple(fds)):
            return
        pieces = [data[at : at + PACKET] for at in range(0, len(data), PACKET)]
        for i, piece in enumerate(pieces):
            # Of what has to wait we keep descriptors of our own: the caller may close its before
            # the packet is out.
            own = tuple(os.dup(fd) for fd in fds) if i == 0 else ()
            self._out.append(((LAST if i + 1 == len(pieces) else MORE) + piece, own))
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as it goes. Raises ChannelClosed."""
        while self._out:
            packet, fds = self._out[0]
            if not self._sent(packet, fds):
                return
            self._out.popleft()
            _close_all(fds)

    def receive(self) -> tuple[object, list[int]] | None:
        """Receive the next message and its descriptors.

        Returns:
            (message, descriptors). These are the caller's to close, and closed on exec. None: there
            is nothing (non-blocking only).

        Raises:
            ChannelClosed: At the end.
            ProtocolError: The message is malformed.
        """
        while True:
            try:
                packet, fds = self._packet()
            except BlockingIOError:
                return None
            except OSError as error:
                raise ChannelClosed(str(error)) from None
            self._fds += fds
            if not packet:
                raise ChannelClosed("the other process has closed it")
            if packet[:1] == LAST and not self._parts and not self._fds:
                return ORDERS.decode(packet[1:]), []
            self._parts.append(bytes(packet[1:]))
            self._size += len(packet) - 1
            if self._size > MAX_MESSAGE or len(self._fds) > MAX_FDS:
                raise ProtocolError(
                    f"a message of more than {MAX_MESSAGE} bytes or {MAX_FDS} descriptors"
                )
            if packet[:1] == LAST:
                data, got = b"".join(self._parts), self._fds
                self._parts, self._fds, self._size = [], [], 0
                try:
                    return ORDERS.decode(data), got
                except ProtocolError:
                    _close_all(got)
                    raise

    def close(self) -> None:
        """Close the socket and every descriptor that is still on its way in or out. Idempotent."""
        for _, fds in self._out:
            _close_all(fds)
        self._out.clear()
        _close_all(self._fds)
        self._fds = []
        self.sock.close()

    def _sent(self, packet: bytes, fds: tuple[int, ...]) -> bool:
        """False where there is no room for it. Raises ChannelClosed."""
        try:
            if fds:
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
                self.sock.sendmsg([packet], [rights], socket.MSG_NOSIGNAL)
            else:
                self.sock.send(packet, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ChannelClosed(str(error)) from None
        return True

    def _packet(self) -> tuple[bytes | memoryview, list[int]]:
        """A packet, valid until the next one, and its descriptors."""
        if not self._takes_fds:
            size = self.sock.recv_into(self._buffer)
            if size > PACKET + 1:
                raise ProtocolError("a packet did not fit")
            return self._buffer[:size], []
        room = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
        packet, ancillary, flags, _ = self.sock.recvmsg(PACKET + 1, room, socket.MSG_CMSG_CLOEXEC)
        fds = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            _close_all(fds)
            raise ProtocolError(
                "a packet or its descriptors did not fit; the limit of open files may be too low"
            )
        return packet, list(fds)


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
