"""The sessions of a daemon: their memory, their tokens, and the end of each."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from loaderd.core.actions import FreeSegment, GrowSegment
from loaderd.core.events import Detach, Event, GrowFailed, SegmentGrown
from loaderd.core.snapshot import SchedulerSnapshot
from loaderd.engine.base import Engine
from loaderd.server.admission import AdmittedStream, OpenedStream, sized
from loaderd.server.registered_session import RegisteredSession
from loaderd.server.segment_budget import SegmentBudget
from loaderd.server.status_report import SessionStatus
from loaderd.system import resource_limits
from loaderd.system.control_socket import ControlListener, Peer
from loaderd.system.logs import WriteLog
from loaderd.system.zmq_router import MessageRouter
from loaderd_wire.messages import Bye, Hello, Segment


class SessionRegistry:
    """All sessions, each from the moment its memory is being reserved.

    What is reserved for a session that ends before the scheduler knows of it is given back here;
    later it is the scheduler's to drop.

    Attributes:
        sessions: The clients that were admitted, by number of the session.
    """

    def __init__(
        self,
        control: ControlListener,
        messages: MessageRouter,
        budget: SegmentBudget,
        engine: Engine,
        *,
        life: str,
        step: Callable[[Event], object],
        attached: Callable[[], object],
        emptied: Callable[[], object],
        log: WriteLog,
        draw: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """Begin without sessions.

        Args:
            control: Where clients are.
            messages: Where sessions send and receive messages.
            budget: The memory of segments.
            engine: Who maps segments.
            life: Name of this life of the daemon.
            step: Hands an event to the scheduler.
            attached: Called when a session has begun.
            emptied: Called when the last session has gone.
            log: Its log.
            draw: Returns so many random bytes, for tokens.
        """
        self._control = control
        self._messages = messages
        self._budget = budget
        self._engine = engine
        self._life = life
        self._step = step
        self._attached = attached
        self._emptied = emptied
        self._log = log
        self._draw = draw
        self.sessions: dict[int, RegisteredSession] = {}
        # Numbers of sessions tell daemons apart, too: a late message of a dead one's session finds
        # nobody.
        self._last_session = int.from_bytes(draw(5), "big") << 8

    def of_stream(self, stream: str) -> list[RegisteredSession]:
        """The sessions that read a stream."""
        return [session for session in self.sessions.values() if session.hello.stream == stream]

    def register(
        self,
        peer: Peer,
        hello: Hello,
        stream: OpenedStream,
        admitted: AdmittedStream,
        warnings: tuple[str, ...],
    ) -> None:
        """Begin to reserve the memory of a client; when it is there, the client is welcomed.

        Args:
            peer: Its connection.
            hello: What it has asked for.
            stream: Where that comes from.
            admitted: What it gets.
            warnings: For its user.
        """
        self._last_session += 1
        session = RegisteredSession(self._last_session, peer, hello, stream, admitted, warnings)
        peer.session = session.session
        self.sessions[session.session] = session
        self._budget.store.reserve(
            session.session, admitted.segment, lambda fd, error: self._reserved(session, fd, error)
        )

    def gone(self, peer: Peer) -> None:
        """The peer's connection has ended; it may have had no session."""
        session = self.sessions.pop(peer.session, None) if peer.session is not None else None
        if session is None:
            return
        self._messages.forget(session.session)
        if session.growing:
            self._budget.store.free(session.growing)
        if session.attached:
            self._log(
                "info",
                "session_ended",
                f"session {session.session} ({peer}) has ended",
                **session.facts(),
            )
            self._step(Detach(session.session))
        else:
            self._budget.store.free(session.admitted.segment.segment)
        if not self.sessions:
            self._emptied()

    def close(self, reason: str) -> None:
        """Tell every client that the daemon is leaving; who is not welcomed yet sees EOF."""
        for session in tuple(self.sessions.values()):
            if session.attached:
                self._control.send(session.peer, Bye(reason))
            else:
                self._control.drop(session.peer)

    # -- what the scheduler wants

    def grow(self, action: GrowSegment) -> None:
        """A session needs a larger segment. Answer: SegmentGrown or GrowFailed, unless it ends."""
        session = self.sessions.get(action.session)
        if session is None:
            return  # its Detach is on the way
        admitted = session.admitted
        segment = sized(
            session.stream,
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
        """Nobody writes a segment any longer: give its memory back when no worker maps it."""
        segment = action.segment
        self._engine.drop_segment(segment, lambda: self._budget.store.free(segment))

    def status(self, inside: SchedulerSnapshot) -> tuple[SessionStatus, ...]:
        """Every session, with what the scheduler knows of it."""
        progress = {session.session: session for session in inside.sessions}
        return tuple(
            session.status(progress.get(session.session)) for session in self.sessions.values()
        )

    # -- inside

    def _reserved(self, session: RegisteredSession, fd: int, error: OSError | None) -> None:
        admitted, peer, hello = session.admitted, session.peer, session.hello
        if error is not None:
            self.sessions.pop(session.session, None)
            peer.session = None
            why = (
                f"{resource_limits.size(admitted.bytes)} of shared memory for stream "
                f"{hello.stream!r} could not be reserved: {error.strerror}"
            )
            self._log("error", "session_refused", why, **session.facts())
            self._control.reject(peer, "RefusedError", why)
            return
        token = self._draw(16)
        session.attached = True
        self._messages.admit(session.session, token)
        self._engine.add_segment(
            admitted.segment, hello.stream, admitted.fields, admitted.shape.batch_size, fd
        )
        self._step(session.attach())
        self._attached()
        self._log("info", "session_began", session.line(), **session.facts())
        welcome = session.welcome(token=token, daemon=self._life)
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
