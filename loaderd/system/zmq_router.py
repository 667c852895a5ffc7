"""ZeroMQ, the daemon's side.

Progress comes in, descriptors go out, through a bounded outbox per session.

Who is not admitted never becomes a peer: a handshake needs the session's number and token (PLAIN),
which the control socket gave. What does not even begin such a handshake is dropped by libzmq's own
thread: garbage, other mechanisms, and peers of ZMTP 1 and 2.
"""

from __future__ import annotations

import contextlib
import hmac
import os
from collections import deque
from collections.abc import Callable

import zmq

from loaderd.system.logs import WriteLog
from loaderd.system.loop import Loop
from loaderd.system.rate_limit import RateLimit
from loaderd_wire import paths
from loaderd_wire.codec import WIRE
from loaderd_wire.errors import ProtocolError
from loaderd_wire.messages import Descriptor, Failure, Progress, Pulse

MAX_IN = 1 << 20  # bytes of a Progress
# messages that may wait for one session; what is dropped beyond is announced anew when the client
# asks
MAX_OUT = 256
HIGH_WATER = 128  # messages in ZeroMQ's own queue, a peer
RECEIVES = 64  # in one turn
HANDSHAKE_MS = 2000
BACKLOG = 512  # connections that wait to be accepted
ZAP = "inproc://zeromq.zap.01"  # where libzmq asks who may come in: rfc.zeromq.org/spec/27
# Plain numbers: arithmetic with pyzmq's flags makes an enum member each time, which costs more than
# the call that it is for.
NOBLOCK, MORE, POLLIN = map(int, (zmq.NOBLOCK, zmq.NOBLOCK | zmq.SNDMORE, zmq.POLLIN))


class _Route:
    """Where a session's messages go.

    Attributes:
        token: What it has to show.
        peer: Its present routing id; None before its first Progress and after it was lost.
        outbox: Messages that libzmq has not taken yet.
    """

    __slots__ = ("outbox", "peer", "token")

    def __init__(self, token: bytes) -> None:
        self.token = token
        self.peer: bytes | None = None
        self.outbox: deque[bytes] = deque()


class MessageRouter:
    """The ROUTER of the daemon."""

    def __init__(
        self,
        loop: Loop,
        path: str,
        *,
        mode: int,
        uids: tuple[int, ...],
        on_progress: Callable[[int, Progress], object],
        log: WriteLog,
        bind: bool = True,
    ) -> None:
        """Bind the socket.

        Args:
            loop: Calls whatever is here.
            path: Of the socket.
            mode: Of the socket's file.
            uids: Who may connect at all, by the kernel's word; () for whoever the mode lets in.
            on_progress: Called as (session, progress): well-formed, and said by that session. Of
                several that have piled up in one plan only the last, unless one asks for something.
            log: Its log.
            bind: False: only `bind` does it.

        Raises:
            OSError: It can't be bound.
        """
        self._loop = loop
        self._on_progress = on_progress
        self._log = log
        self._routes: dict[int, _Route] = {}
        self._blocked: dict[int, None] = {}
        self._news: dict[int, Progress] = {}
        self._rarely = RateLimit()
        self._sent = False  # in this turn
        self.garbage = 0
        self.path = path
        self._mode = mode
        self._file: tuple[int, int] | None = None  # what was bound: device, inode
        self._context = zmq.Context(io_threads=1)
        self._zap = self._context.socket(zmq.REP)
        self._socket = self._context.socket(zmq.ROUTER)
        try:
            self._open(uids)
            if bind:
                self.bind()
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._fd = int(self._socket.getsockopt(zmq.FD))
        self._asked = [(self._socket, POLLIN)]
        # The descriptor is edge-triggered: it only wakes the loop, `_pump` then asks before each
        # sleep what there is.
        loop.watch(self._fd, _nothing)
        loop.before_sleep(self._pump)
        self._zap_fd = int(self._zap.getsockopt(zmq.FD))
        loop.watch(self._zap_fd, self._authenticate)

    def _open(self, uids: tuple[int, ...]) -> None:
        self._zap.bind(ZAP)
        router = self._socket
        router.setsockopt(zmq.PLAIN_SERVER, 1)
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # else what can't be sent is dropped in silence
        router.setsockopt(zmq.MAXMSGSIZE, MAX_IN)
        router.setsockopt(zmq.SNDHWM, HIGH_WATER)
        router.setsockopt(zmq.RCVHWM, HIGH_WATER)
        router.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        router.setsockopt(zmq.BACKLOG, BACKLOG)
        for uid in uids:
            router.setsockopt(zmq.IPC_FILTER_UID, uid)

    def bind(self) -> None:
        """Be found at the path, in place of whoever is found there now.

        Raises:
            OSError: It can't be.
        """
        old = os.umask(0o177)
        try:
            self._socket.bind(f"ipc://{self.path}")
        except zmq.ZMQError as error:
            raise OSError(error.errno, f"ZeroMQ: {error.strerror}", self.path) from None
        finally:
            os.umask(old)
        os.chmod(self.path, self._mode)
        found = os.stat(self.path)
        self._file = found.st_dev, found.st_ino

    def set_aside(self) -> None:
        """Another may be found at the path from now on; `take_back` undoes that.

        Raises:
            OSError: The file can't have a second name.
        """
        self.sweep_aside()
        os.link(self.path, self._aside)

    def sweep_aside(self) -> None:
        """Remove what a daemon that is dead had set aside."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._aside)

    def take_back(self) -> None:
        """After `set_aside`: be found at the path again."""
        with contextlib.suppress(FileNotFoundError):
            os.replace(self._aside, self.path)  # does nothing where both are names of one file
        self._unlink(self._aside)

    @property
    def _aside(self) -> str:
        return self.path.removesuffix(paths.MESSAGES) + paths.ASIDE

    def _unlink(self, path: str) -> None:
        """Remove the file, if it is ours: ZeroMQ leaves it."""
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(path)
            if (found.st_dev, found.st_ino) == self._file:
                os.unlink(path)

    def admit(self, session: int, token: bytes) -> None:
        """From now on whoever has this token may connect, and speaks for this session."""
        self._routes[session] = _Route(token)

    def forget(self, session: int) -> None:
        """Nothing more to or from it. Idempotent."""
        self._routes.pop(session, None)
        self._blocked.pop(session, None)

    @property
    def waiting(self) -> bool:
        """Whether anything waits in an outbox."""
        return bool(self._blocked)

    def send(self, session: int, message: Descriptor | Pulse | Failure) -> None:
        """Send it, or keep it while the peer's queue is full.

        Lost without a route: the client will ask for it again.
        """
        route = self._routes.get(session)
        if route is None or route.peer is None:
            return
        try:
            data = WIRE.encode(message)
        except ProtocolError as error:
            self._log("error", "fault", f"session {session}: {error}", session=session)
            data = WIRE.encode(
                Failure(
                    session,
                    "StreamFailedError",
                    f"the daemon could not encode its message: {error}",
                )
            )
        out = not route.outbox and self._put(route, data)
        if not out and route.peer is not None and len(route.outbox) < MAX_OUT:
            route.outbox.append(data)
            self._blocked[session] = None

    def close(self) -> None:
        """Stop listening; the socket's file is gone when this returns."""
        if not self._socket.closed:
            self._loop.unwatch(self._fd)
            self._loop.unwatch(self._zap_fd)
            self._context.destroy(linger=0)
            self._unlink(self.path)
            self._unlink(self._aside)

    # -- inside

    def _authenticate(self) -> None:
        """Answer libzmq, which asks about each peer that has shown a name and a password.

        It waits HANDSHAKE_MS for that.
        """
        for _ in range(RECEIVES):
            if self._zap.closed:
                return
            try:
                version, request, _domain, _address, _routing_id, mechanism, *shown = (
                    self._zap.recv_multipart(NOBLOCK)
                )
            except zmq.Again:
                return  # whatever comes next wakes the loop
            session = self._who(*shown) if mechanism == b"PLAIN" and len(shown) == 2 else None
            answer = [b"400", b"", b""] if session is None else [b"200", b"", b"%d" % session]
            self._zap.send_multipart([version, request, *answer, b""])
        self._loop.soon(self._authenticate)

    def _who(self, name: bytes, password: bytes) -> int | None:
        """The session whose number and token these are."""
        route = self._routes.get(int(name)) if name.isdigit() else None
        if route is None:
            return None  # perhaps a session that has just ended: its client will see the EOF
        if hmac.compare_digest(route.token, password):
            return int(name)
        self._ignored(int(name), "a wrong token")
        return None

    def _ignored(self, session: int, why: str) -> None:
        self.garbage += 1
        more = self._rarely.ask(session, self._loop.now_s())
        if more is not None:
            self._log(
                "warning",
                "message_ignored",
                f"messages socket: ignored a message for session {session}: {why}{more}",
                session=session,
            )

    def _pump(self) -> bool:
        """Take in what has arrived, and what could not be sent before, try again.

        True if there may be more.
        """
        if self._socket.closed:
            return False
        if self._blocked:
            for session in tuple(self._blocked):
                self._flush(session)
        self._sent = False
        all_of_it = self._collect()
        if self._news:
            news, self._news = self._news, {}
            for session, progress in news.items():
                self._on_progress(session, progress)
        if all_of_it and not self._sent:
            # nothing was asked of the socket since it said that there is no more: a new arrival
            # wakes the loop
            return False
        # What has arrived meanwhile may have lost its edge to a send.
        return not self._socket.closed and self._readable()

    def _readable(self) -> bool:
        return bool(zmq.zmq_poll(self._asked, 0))  # half the price of asking for EVENTS

    def _collect(self) -> bool:
        """Receive into `_news`, which has the latest of each session: a Progress is absolute.

        True if that was all there is.
        """
        for _ in range(RECEIVES):
            if not self._readable():
                return True
            peer = self._socket.recv(NOBLOCK)
            # behind a peer's routing id there is always something
            frame = self._socket.recv(NOBLOCK, copy=False)
            frames = [frame.bytes]
            while frame.more:
                frame = self._socket.recv(NOBLOCK, copy=False)
                frames.append(frame.bytes)
            progress = self._understood(peer, int(frame.get("User-Id")), frames)
            if progress is None:
                continue
            before = self._news.pop(progress.session, None)
            if before is not None and (before.ping or before.again or before.plan != progress.plan):
                self._on_progress(before.session, before)
            self._news[progress.session] = progress
        return False

    def _understood(self, peer: bytes, session: int, frames: list[bytes]) -> Progress | None:
        """A Progress of the session that this peer was let in for; None for anything else.

        The route of that session is known from now on.
        """
        route = self._routes.get(session)
        if route is None:
            return None  # a session that has just ended: its client will see the EOF
        try:
            if len(frames) != 1:
                raise ProtocolError(f"{len(frames)} frames")
            progress = WIRE.decode(frames[0])
            if not isinstance(progress, Progress):
                raise ProtocolError(
                    f"{type(progress).__name__} is not a message that a client may send here"
                )
            if progress.session != session:
                raise ProtocolError(f"it names session {progress.session}")
        except ProtocolError as error:
            self._ignored(session, str(error))
            return None
        if route.peer != peer:
            # The client's new socket: what waits was meant for the old one, and will be asked for
            # again.
            route.peer = peer
            route.outbox.clear()
        return progress

    def _flush(self, session: int) -> None:
        route = self._routes[session]
        while route.outbox and self._put(route, route.outbox[0]):
            route.outbox.popleft()
        if not route.outbox:
            del self._blocked[session]

    def _put(self, route: _Route, data: bytes) -> bool:
        """Hand a message to libzmq.

        Returns:
            False if the peer's queue is full or (then `route.peer` is None) the peer is gone.
        """
        assert route.peer is not None
        self._sent = True
        try:
            # full or gone is found out here; what follows the first frame is always taken
            self._socket.send(route.peer, MORE)
            self._socket.send(data, NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            route.peer = None
            route.outbox.clear()
            return False
        return True


def _nothing() -> None:
    pass
