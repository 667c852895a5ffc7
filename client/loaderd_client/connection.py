"""The two sockets of a session: the control socket, and ZeroMQ for all that is said of batches."""

from __future__ import annotations

import signal
from typing import Any

import zmq

from loaderd_client import file_limits, fork_safety
from loaderd_client.control_socket import ControlSocket
from loaderd_wire import messages as m
from loaderd_wire.codec import MAX_MESSAGE, WIRE
from loaderd_wire.errors import ProtocolError
from loaderd_wire.paths import MESSAGES

# Plain numbers: arithmetic with pyzmq's flags makes an enum member each time, which costs more than
# the call that it is for.
POLLIN, NOBLOCK = int(zmq.POLLIN), int(zmq.NOBLOCK)
FROM_DAEMON = (m.Descriptor, m.Pulse, m.Failure)
ON_CONTROL = (m.Segment, m.Bye)


class Connection:
    """Both sockets of an admitted session.

    Not for two threads at once. `close` leaves no thread, fd or message behind.

    Attributes:
        control: The control socket, whose end is the end of the session.
        lost: This process is a fork of the one that connected.
    """

    def __init__(self, path: str, control: ControlSocket, session: int, token: bytes) -> None:
        # Now, where signals wait: what a handler raises while a class is made comes out as a
        # RuntimeError.
        """Connect to the message socket.

        Args:
            path: Path of the control socket.
            control: The control socket, connected. It is closed with this.
            session: Number of the session.
            token: What lets the session in.

        Raises:
            RefusedError: Descriptors are short: libzmq would abort.
        """
        WIRE.prepare((*FROM_DAEMON, *ON_CONTROL), (m.Progress,))
        self.control = control
        self._session = session
        file_limits.require(file_limits.ZEROMQ)
        # its own: closing it ends libzmq's threads and fds with this session
        self._context = zmq.Context(io_threads=1)
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.setsockopt(zmq.LINGER, 0)
        self._dealer.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE)
        self._dealer.setsockopt(zmq.PLAIN_USERNAME, b"%d" % session)
        self._dealer.setsockopt(zmq.PLAIN_PASSWORD, token)
        self._dealer.connect(f"ipc://{path}{MESSAGES}")
        self._messages: list[tuple[Any, int]] = [(self._dealer, POLLIN)]
        self._both: list[tuple[Any, int]] = [(self._dealer, POLLIN), (control.fileno(), POLLIN)]
        self.lost = False  # in a forked child: another process's
        fork_safety.watch(self)

    def send(self, progress: m.Progress) -> None:
        """Send without ever blocking.

        What cannot be sent is dropped: any later progress says the same and more.
        """
        try:
            self._dealer.send(WIRE.encode(progress), NOBLOCK)
        except zmq.Again:
            return

    def received(self) -> list[Any]:
        """The batches, pulses and failures of this session that are here now.

        Raises:
            ProtocolError: The daemon sent something else.
        """
        messages: list[Any] = []
        # half the price of asking for EVENTS, and a tenth of zmq.Again
        while zmq.zmq_poll(self._messages, 0):
            message = WIRE.decode(self._dealer.recv(NOBLOCK))
            if not isinstance(message, FROM_DAEMON):
                raise ProtocolError(
                    f"the daemon sent {type(message).__name__} on the messages socket"
                )
            # a predecessor's, still on their way, are nobody's
            if message.session == self._session:
                messages.append(message)
        return messages

    def controlled(self) -> list[Any]:
        """The segments and farewells that are here now.

        Afterwards `control.ended` tells whether the daemon is gone.

        Raises:
            ProtocolError: The daemon sent something else.
        """
        messages = self.control.receive()
        for message in messages:
            if not isinstance(message, ON_CONTROL):
                raise ProtocolError(
                    f"the daemon sent {type(message).__name__} to an admitted session"
                )
        return messages

    def wait(self, timeout_s: float) -> bool:
        """Sleep until something arrives on either socket. True if it is the control socket."""
        ready = zmq.zmq_poll(self._both, max(1, int(timeout_s * 1000)))
        return any(which is not self._dealer for which, _ in ready)

    def close(self) -> None:
        """Close both sockets. A second call does nothing."""
        if self.lost:
            return
        self.control.close()
        self._dealer.close(0)
        # A signal would end the call, and libzmq's threads and fds would stay for ever.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._context.term()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def lose(self) -> None:
        """In a forked child: the session is the parent's, and must end with it.

        libzmq's part cannot be closed here, only forgotten.
        """
        self.lost = True
        self.control.close()
        fork_safety.forget(self._dealer, self._context)
