"""Clients as they come and go: from a Hello to a session with memory and a token, larger segments,
and the end of it all.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence

from loaderd.core.actions import FreeSegment, GrowSegment, StreamBroken
from loaderd.core.events import Detach, Event, GrowFailed, SegmentGrown
from loaderd.core.snapshot import SchedulerSnapshot
from loaderd.engine.base import Engine
from loaderd.server import rank_agreement
from loaderd.server.admission import AdmittedStream, OpenedStream, admit, check_known, sized
from loaderd.server.registered_session import RegisteredSession
from loaderd.server.segment_budget import SegmentBudget
from loaderd.server.source_changes import SourceChanges, data_changed
from loaderd.server.status_report import SessionStatus
from loaderd.server.waiting_clients import WaitingClients
from loaderd.system import file_limits, resource_limits
from loaderd.system.control_socket import ControlListener, Peer
from loaderd.system.loop import Loop
from loaderd.system.rate_limit import RateLimit
from loaderd.system.zmq_router import MessageRouter
from loaderd_wire.errors import (
    ConfigError,
    LoaderdError,
    RefusedError,
    StreamChangedError,
    from_name,
)
from loaderd_wire.messages import Bye, Hello, Segment, Starting

MAX_NAMED = 32  # different refusals that the log tells within a minute
MAX_REFUSAL = 4000  # characters: it may quote what the client said
LONG_RESERVATION = 256 << 20  # bytes; a client that waits for more is told what for

Log = Callable[[str, str], object]


class SessionRegistry:
    """All sessions. Before `open` clients are told to wait; after `close` nobody comes in.

    Attributes:
        most: Sessions that the file descriptors suffice for.
        sessions: The clients that were admitted, by number of the session.
        broken: Name of each stream that has ended on a fault -> name of the error, text.
    """

    def __init__(
        self,
        loop: Loop,
        control: ControlListener,
        messages: MessageRouter,
        budget: SegmentBudget,
        engine: Engine,
        *,
        config_path: str,
        names: Sequence[str],
        wanted: Callable[[str], object],
        progress: Callable[[], str],
        life: str,
        most: int,
        step: Callable[[Event], object],
        emptied: Callable[[], object],
        outdated: Callable[[str], object] | None,
        log: Log,
        draw: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """Begin without sessions.

        Args:
            loop: The daemon's loop.
            control: Where clients say Hello.
            messages: Where sessions send and receive messages.
            budget: The memory of segments.
            engine: Who maps segments.
            config_path: The config file; "" for none.
            names: Of all streams.
            wanted: Called with the name of a stream that somebody asks for and that has not been
                opened, or is to be opened anew: its data has changed, and those who had begun with
                it are gone. `opened` or `not_opened` answers.
            progress: Returns what clients that wait are told.
            life: Name of this life of the daemon.
            most: Sessions that the file descriptors suffice for.
            step: Hands an event to the scheduler.
            emptied: Called when the last session has gone.
            outdated: Called with the reason when somebody comes, nobody else is here, and the
                config file or code that was imported has changed: whoever comes gets another
                daemon. None: the daemon goes on.
            log: (level, text).
            draw: Returns so many random bytes, for tokens.
        """
        self._loop = loop
        self._control = control
        self._messages = messages
        self._budget = budget
        self._engine = engine
        self._config_path = config_path
        self._names = names
        self._wanted = wanted
        self._life = life
        self._step = step
        self._emptied = emptied
        self._outdated = outdated
        self._changes = SourceChanges(config_path, engine.edited)
        self._log = log
        self._draw = draw
        self.most = most
        self._rarely = RateLimit(max_keys=MAX_NAMED)
        self.sessions: dict[int, RegisteredSession] = {}
        self.broken: dict[str, tuple[str, str]] = {}
        self._waiting = WaitingClients(loop, control, progress)
        self._streams: Mapping[str, OpenedStream] | None = None
        # Numbers of sessions tell daemons apart, too: a late message of a dead one's session finds
        # nobody.
        self._last_session = int.from_bytes(draw(5), "big") << 8

    def open(self, streams: Mapping[str, OpenedStream]) -> None:
        """From now on clients are admitted, first of all those that have waited.

        streams: that have been opened; it grows.
        """
        self._streams = streams
        for peer, hello in self._waiting.take(None):
            self.hello(peer, hello)

    def opened(self, stream: str) -> None:
        """One that was wanted."""
        self.broken.pop(stream, None)
        for peer, hello in self._waiting.take(stream):
            self.hello(peer, hello)

    def not_opened(self, stream: str, error: LoaderdError) -> None:
        """One that was wanted cannot be had now.

        The next client that asks for it has it tried again.
        """
        for peer, _ in self._waiting.take(stream):
            self._refuse(peer, error)

    def close(self, reason: str) -> None:
        """Tell every client that the daemon is leaving.

        Who waits to be admitted sees EOF and starts over.
        """
        for peer in self._waiting.peers:
            self._control.drop(peer)
        for session in tuple(self.sessions.values()):
            if session.attached:
                self._control.send(session.peer, Bye(reason))
            else:
                self._control.drop(session.peer)

    # -- what clients do

    def hello(self, peer: Peer, hello: Hello) -> None:
        """A client asks to be admitted."""
        if self._streams is None:
            self._waiting.add(peer, hello)
            return
        why = (
            self._changes.why_outdated()
            if self._outdated and hello.config and not self.sessions
            else ""
        )
        if self._outdated and why:
            self._outdated(why)
            self._control.drop(peer)  # it starts over
            return
        short = file_limits.shortage(file_limits.A_SESSION)
        if short and hello.order:
            self._control.drop(peer)  # it has had a session, and comes again
            return
        try:
            if short:
                raise RefusedError(short)
            check_known(hello, self._names, self._config_path)
            if hello.stream not in self._streams or self._is_of_the_past(hello.stream):
                self._wanted(hello.stream)
                self._waiting.add(peer, hello)
                return
            admitted = self._admit(hello, self._streams[hello.stream])
        except LoaderdError as error:
            self._refuse(peer, error)
            return
        self._register(peer, hello, admitted)

    def gone(self, peer: Peer) -> None:
        """The peer's connection has ended."""
        self._waiting.forget(peer)
        session = self.sessions.pop(peer.session, None) if peer.session is not None else None
        if session is None:
            return
        self._messages.forget(session.session)
        if session.growing:
            self._budget.store.free(session.growing)
        if session.attached:
            self._log("info", f"session {session.session} ({peer}) has ended")
            self._step(Detach(session.session))
        else:
            self._budget.store.free(session.admitted.segment.segment)
        if not self.sessions:
            self._emptied()

    # -- what the scheduler wants

    def grow(self, action: GrowSegment) -> None:
        session = self.sessions.get(action.session)
        if session is None or self._streams is None:
            return  # its Detach is on the way
        stream, admitted = self._streams[session.hello.stream], session.admitted
        segment = sized(
            stream,
            admitted.fields,
            admitted.shape.batch_size,
            action.slots,
            self._budget.number(),
            tail_row_bytes=action.tail_row_bytes,
            body_bytes=action.body_bytes,
        )
        why = self._budget.shortage(
            f"a larger segment for stream {session.hello.stream!r}", segment, 0
        )
        if why:
            self._step(GrowFailed(session.session, why))
            return
        session.growing = segment.segment
        self._budget.store.reserve(
            session.session, segment, lambda fd, error: self._grown(session, segment, fd, error)
        )

    def drop(self, action: FreeSegment) -> None:
        segment = action.segment
        self._engine.drop_segment(segment, lambda: self._budget.store.free(segment))

    def stream_broken(self, action: StreamBroken) -> None:
        self.broken[action.stream] = (action.error, action.text)
        self._log("error", f"stream {action.stream!r} has ended: {action.error}: {action.text}")

    @property
    def all_broken(self) -> bool:
        return len(self.broken) == len(self._names)

    def status(self, inside: SchedulerSnapshot) -> tuple[SessionStatus, ...]:
        """Every session, with what the scheduler knows of it."""
        progress = {session.session: session for session in inside.sessions}
        return tuple(
            session.status(progress.get(session.session)) for session in self.sessions.values()
        )

    # -- inside

    def _is_of_the_past(self, stream: str) -> bool:
        """Its data has changed since it was opened, and nobody is here any longer who began with
        what it was.
        """
        assert self._streams is not None
        if any(session.hello.stream == stream for session in self.sessions.values()):
            return False
        return self.broken.get(stream, ("", ""))[0] == StreamChangedError.__name__ or data_changed(
            self._streams[stream]
        )

    def _register(self, peer: Peer, hello: Hello, admitted: AdmittedStream) -> None:
        """Begin to reserve the memory of a client that may have it."""
        if admitted.bytes > LONG_RESERVATION:
            self._control.send(
                peer, Starting(f"reserving {resource_limits.size(admitted.bytes)} of shared memory")
            )
        if peer.ended:
            return  # found out just now, and nothing has been made for it yet
        warnings = self._warnings(hello.stream, admitted)
        self._last_session += 1
        session = RegisteredSession(self._last_session, peer, hello, admitted, warnings)
        peer.session = session.session
        self.sessions[session.session] = session
        self._budget.store.reserve(
            session.session, admitted.segment, lambda fd, error: self._reserved(session, fd, error)
        )

    def _warnings(self, stream: str, admitted: AdmittedStream) -> tuple[str, ...]:
        """What the user of a new session has to know."""
        assert self._streams is not None
        others = [
            other.admitted for other in self.sessions.values() if other.hello.stream == stream
        ]
        unlike = rank_agreement.disagreement(stream, admitted, others)
        if unlike:
            self._log("warning", unlike)
        old_code = (
            self._changes.old_code(shared=bool(self._outdated and self.sessions))
            if self._streams[stream].facts.code
            else ""
        )
        return tuple(text for text in (old_code, unlike) if text)

    def _admit(self, hello: Hello, stream: OpenedStream) -> AdmittedStream:
        """Raises LoaderdError."""
        try:
            admitted = admit(hello, stream, self._budget.number())
        except (ValueError, OverflowError) as error:
            raise (
                error
                if isinstance(error, LoaderdError)
                else ConfigError(f"stream {hello.stream!r}: {error}")
            ) from None
        if hello.stream in self.broken:
            raise from_name(*self.broken[hello.stream])
        if len(self.sessions) >= self.most:
            raise RefusedError(
                f"{len(self.sessions)} sessions are open, which is all that RLIMIT_NOFILE allows; "
                "raise the hard limit (ulimit -Hn)"
            )
        # A client that comes back to a successor still pins memory of the old one with the batch
        # that it holds: had it to wait until that fits into the ceiling beside the new segment, it
        # would wait for itself. The system's own limits still count.
        held = 0 if hello.order else hello.held_bytes
        why = self._budget.shortage(f"stream {hello.stream!r}", admitted.segment, held)
        if why:
            raise RefusedError(why)
        return admitted

    def _reserved(self, session: RegisteredSession, fd: int, error: OSError | None) -> None:
        admitted, peer, hello = session.admitted, session.peer, session.hello
        if error is not None:
            self.sessions.pop(session.session, None)
            peer.session = None
            why = (
                f"{resource_limits.size(admitted.bytes)} of shared memory for stream "
                f"{hello.stream!r} could not be reserved: {error.strerror}"
            )
            self._log("error", why)
            self._control.reject(peer, "RefusedError", why)
            return
        assert self._streams is not None
        stream, token = self._streams[hello.stream], self._draw(16)
        session.attached = True
        self._messages.admit(session.session, token)
        self._engine.add_segment(
            admitted.segment, hello.stream, admitted.fields, admitted.shape.batch_size, fd
        )
        self._step(session.attach())
        self._log("info", session.line())
        welcome = session.welcome(stream, token=token, daemon=self._life)
        self._control.send(peer, welcome, (fd,))

    def _grown(
        self, session: RegisteredSession, segment: Segment, fd: int, error: OSError | None
    ) -> None:
        session.growing = 0
        if error is not None:
            self._step(
                GrowFailed(
                    session.session,
                    f"{resource_limits.size(segment.slots * segment.slot_bytes)} could not be "
                    f"reserved: {error.strerror}",
                )
            )
            return
        self._engine.add_segment(
            segment,
            session.hello.stream,
            session.admitted.fields,
            session.admitted.shape.batch_size,
            fd,
        )
        self._control.send(session.peer, segment, (fd,))
        self._step(SegmentGrown(session.session, segment))

    def _refuse(self, peer: Peer, error: LoaderdError) -> None:
        text = str(error) if len(str(error)) <= MAX_REFUSAL else f"{str(error)[:MAX_REFUSAL]} ..."
        more = self._rarely.ask(text, self._loop.now_s())
        if more is not None:
            self._log("warning", f"client ({peer}) refused: {text}{more}")
        self._control.reject(peer, type(error).__name__, text)
