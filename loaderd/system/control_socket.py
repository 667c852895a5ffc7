"""The control socket: who is there, and what they say first.

Descriptors go out through it, and the end of a connection is noticed here.
"""

from __future__ import annotations

import functools
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from loaderd.system.fork_hooks import closed_in_children
from loaderd.system.listening_socket import ListeningSocket
from loaderd.system.logs import WriteLog
from loaderd.system.loop import Loop, Timer
from loaderd.system.peer_credentials import PeerCredentials, PeerGate, peer_cred, peer_pidfd
from loaderd.system.rate_limit import RateLimit
from loaderd_wire import codec
from loaderd_wire.errors import ProtocolError
from loaderd_wire.messages import Ask, Hello, Message, Rejected

MAX_SILENT = 64  # connections that have not said anything yet, or are being seen off
SILENT_S = 2.0  # how long they may
SLOW_S = 10.0  # how long an answer may wait for a reader that holds no session
MAX_IN = 1 << 20  # bytes of a first message
MAX_OUT = 8 << 20  # bytes that may wait for one reader
READ_BYTES = 1 << 16


class Peer:
    """One connection.

    `session` is whoever's it is to set (None: no session); `ended` once nothing can be said any
    longer; `on_more` is called with the second thing that it says, which nobody else may.
    """

    __slots__ = (
        "buffer",
        "cred",
        "ended",
        "finishing",
        "on_more",
        "outbox",
        "outbox_bytes",
        "pidfd",
        "session",
        "sock",
        "spoken",
        "timer",
    )

    def __init__(self, sock: socket.socket, cred: PeerCredentials) -> None:
        self.sock = sock
        self.cred = cred
        self.pidfd = -1
        self.session: int | None = None
        self.spoken = False
        self.on_more: Callable[[bytes], object] | None = None
        self.finishing = False
        self.ended = False
        self.buffer = bytearray()
        self.outbox: deque[tuple[memoryview, list[int]]] = deque()
        self.outbox_bytes = 0
        self.timer: Timer | None = None

    def __str__(self) -> str:
        return f"uid {self.cred.uid}" + (f", pid {self.cred.pid}" if self.cred.pid else "")


class ControlListener:
    """Listens on a socket and speaks with each peer.

    A context for the whole life of the daemon; `close` it.
    """

    def __init__(
        self,
        loop: Loop,
        path: str,
        *,
        gate: PeerGate,
        on_message: Callable[[Peer, Any], object],
        on_end: Callable[[Peer], object],
        log: WriteLog,
        cred: Callable[[socket.socket], PeerCredentials] = peer_cred,
        pidfd: Callable[[socket.socket], int] = peer_pidfd,
        listen: bool = True,
    ) -> None:
        """Listen.

        Args:
            loop: Calls whatever is here.
            path: Of the socket.
            gate: Who may attach.
            on_message: Called as (peer, message) with its first message, a Hello or an Ask. What
                else it ever says ends the connection.
            on_end: Called with a peer at its end, by EOF, by the death of its process, or by us;
                once for every peer whose message was passed on.
            log: Its log.
            cred: Tells who made a connection.
            pidfd: Makes a descriptor that is readable when the peer's process is dead.
            listen: False: only from `listen` on.
        """
        self._loop = loop
        self._gate = gate
        self._on_message = on_message
        self._on_end = on_end
        self._log = log
        self._cred = cred
        self._pidfd = pidfd
        self._rarely = RateLimit()
        self._silent: dict[Peer, None] = {}
        self.peers: dict[Peer, None] = {}
        self._path = path
        self._listener: ListeningSocket | None = None
        if listen:
            self.listen()
        closed_in_children(self)

    def listen(self, fd: int = -1) -> None:
        """Take connections from now on.

        Args:
            fd: As for ListeningSocket.

        Raises:
            OSError: It can't be.
        """
        self._listener = ListeningSocket(
            self._loop, self._path, self._gate.mode, on_connection=self._greet, log=self._log, fd=fd
        )

    @property
    def listener(self) -> ListeningSocket | None:
        """What takes connections; None before `listen`."""
        return self._listener

    # -- what the daemon does with a peer

    def send(self, peer: Peer, message: Message, fds: Sequence[int] = ()) -> None:
        """Say it, with copies of these descriptors, now or as soon as the peer reads.

        A peer that lets too much pile up is dropped.
        """
        if peer.ended or peer.finishing:
            return
        data = codec.frame(message)
        if peer.outbox_bytes + len(data) > MAX_OUT:
            self.drop(peer, f"does not read: {peer.outbox_bytes} bytes wait for it")
            return
        try:
            own = [os.dup(fd) for fd in fds]
        except OSError as error:
            self.drop(peer, f"no file descriptor can be passed to it: {error.strerror}")
            return
        peer.outbox.append((memoryview(data), own))
        peer.outbox_bytes += len(data)
        self._write(peer)

    def finish(self, peer: Peer) -> None:
        """Nothing more will be said: EOF to the peer once it has read all."""
        if peer.ended or peer.finishing:
            return
        peer.finishing = True
        self._silent[peer] = None
        self._arm(peer, SILENT_S if not peer.outbox else SLOW_S)
        self._write(peer)

    def reject(self, peer: Peer, error: str, text: str) -> None:
        """Say Rejected, then EOF.

        Args:
            peer: To whom.
            error: The name of a class in loaderd_wire.errors.
            text: What its message is.
        """
        self.send(peer, Rejected(error, text))
        self.finish(peer)

    def drop(self, peer: Peer, why: str = "") -> None:
        """End the connection at once. `why` goes to the log, at most once a minute a uid."""
        if why:
            more = self._rarely.ask(peer.cred.uid, self._loop.now_s())
            if more is not None:
                text = f"control socket: {peer} dropped: {why}{more}"
                self._log("warning", "peer_dropped", text, uid=peer.cred.uid)
        self._end(peer)

    def stop_listening(self) -> None:
        """No new connections; those in the backlog see EOF. The socket's file goes. Idempotent."""
        if self._listener is not None:
            self._listener.stop()

    def close(self) -> None:
        """End all connections, and listen no longer."""
        if self._listener is not None:
            self._listener.close()
        for peer in tuple(self.peers):
            self._end(peer)

    def disown(self) -> None:
        """In a forked child: close everything, say nothing to anybody."""
        for peer in self.peers:
            peer.sock.close()
        if self._listener is not None:
            self._listener.disown()

    # -- inside

    def _greet(self, sock: socket.socket) -> None:
        try:
            peer = Peer(sock, self._cred(sock))
        except OSError:
            sock.close()
            return
        if len(self._silent) >= MAX_SILENT:
            # The oldest goes: who means well says hello at once.
            self.drop(
                next(iter(self._silent)), f"more than {MAX_SILENT} connections without a hello"
            )
        self.peers[peer] = None
        self._silent[peer] = None
        self._arm(peer, SILENT_S)
        self._loop.watch(sock.fileno(), functools.partial(self._ready, peer))
        refusal = self._gate.refusal(peer.cred.uid)
        if refusal:
            more = self._rarely.ask(("refused", peer.cred.uid), self._loop.now_s())
            if more is not None:
                text = f"control socket: refused {peer}: {refusal}{more}"
                self._log("warning", "peer_refused", text, uid=peer.cred.uid)
            self.reject(peer, "RefusedError", refusal)

    def _ready(self, peer: Peer) -> None:
        if peer.outbox and not peer.ended:
            self._write(peer)
        if not peer.ended:
            self._read(peer)

    def _read(self, peer: Peer) -> None:
        try:
            data = peer.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # ECONNRESET: as dead as at its EOF
        if not data:
            self._end(peer)
        elif peer.finishing:
            return  # read and thrown away, so that our last words aren't lost to a reset
        elif peer.on_more is not None:
            peer.on_more(data)
        elif peer.spoken:
            self.drop(peer, "sent a second message")
        else:
            peer.buffer += data
            self._parse(peer)

    def _parse(self, peer: Peer) -> None:
        try:
            if (
                len(peer.buffer) >= codec.LENGTH.size
                and codec.LENGTH.unpack_from(peer.buffer)[0] > MAX_IN
            ):
                raise ProtocolError(f"a first message of more than {MAX_IN} bytes")
            message = codec.unframe(peer.buffer)
            if message is None:
                return
            if not isinstance(message, Hello | Ask) or peer.buffer:
                raise ProtocolError(
                    f"began with {type(message).__name__}" + (" and more" if peer.buffer else "")
                )
        except ProtocolError as error:
            self.drop(peer, str(error))
            return
        peer.spoken = True
        self._silent.pop(peer, None)
        self._arm(peer, None)
        peer.pidfd = self._pidfd(peer.sock)
        if peer.pidfd >= 0:
            # A child that it forked may keep the socket open after its death.
            self._loop.watch(peer.pidfd, functools.partial(self._end, peer))
        self._on_message(peer, message)

    def _write(self, peer: Peer) -> None:
        while peer.outbox:
            data, fds = peer.outbox[0]
            try:
                sent = (
                    socket.send_fds(peer.sock, [data], fds, socket.MSG_NOSIGNAL)
                    if fds
                    else peer.sock.send(data, socket.MSG_NOSIGNAL)
                )
            except BlockingIOError:
                break
            except OSError:
                self._end(peer)
                return
            _close_all(fds)
            peer.outbox_bytes -= sent
            if sent < len(data):
                peer.outbox[0] = (data[sent:], [])
            else:
                peer.outbox.popleft()
        self._loop.watch(
            peer.sock.fileno(), functools.partial(self._ready, peer), write=bool(peer.outbox)
        )
        if peer.finishing and not peer.outbox:
            try:
                peer.sock.shutdown(socket.SHUT_WR)
            except OSError:
                self._end(peer)
        elif peer.spoken and not peer.finishing and (peer.timer is None) == bool(peer.outbox):
            self._arm(peer, SLOW_S if peer.outbox and peer.session is None else None)

    def _arm(self, peer: Peer, delay_s: float | None) -> None:
        if peer.timer is not None:
            peer.timer.cancel()
            peer.timer = None
        if delay_s is not None:
            peer.timer = self._loop.later(delay_s, functools.partial(self._late, peer))

    def _late(self, peer: Peer) -> None:
        peer.timer = None
        if peer.finishing or not peer.spoken:
            self.drop(peer, "" if peer.finishing else f"no hello within {SILENT_S:.0f} s")
        elif peer.outbox and peer.session is None:
            self.drop(
                peer, f"does not read: {peer.outbox_bytes} bytes wait for it since {SLOW_S:.0f} s"
            )

    def _end(self, peer: Peer) -> None:
        if peer.ended:
            return
        peer.ended = True
        self.peers.pop(peer, None)
        self._silent.pop(peer, None)
        self._arm(peer, None)
        self._loop.unwatch(peer.sock.fileno())
        peer.sock.close()
        if peer.pidfd >= 0:
            self._loop.unwatch(peer.pidfd)
            os.close(peer.pidfd)
        for _, fds in peer.outbox:
            _close_all(fds)
        peer.outbox.clear()
        if peer.spoken:
            self._on_end(peer)


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
    fds.clear()
