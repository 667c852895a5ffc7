"""The sessions of a daemon: their memory, their tokens, and the end of each."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from loaderd.core.actions import FreeSegment, GrowSegment
from loaderd.core.events import Detach, Event, GrowFailed, SegmentGrown
from loaderd.core.snapshot import SchedulerSnapshot
from loaderd.engine.base import Engine
from loaderd.server.admission import SPARE_SLOTS, AdmittedStream, OpenedStream
from loaderd.server.registered_session import RegisteredSession
from loaderd.server.reserved_memory import ReservedMemory
from loaderd.server.segment_budget import SegmentBudget
from loaderd.server.status_report import SessionStatus
from loaderd.system import resource_limits
from loaderd.system.control_socket import ControlListener, Peer
from loaderd.system.logs import WriteLog
from loaderd.system.zmq_router import MessageRouter
from loaderd_wire.messages import Bye, Hello, Segment, Welcome


class SessionRegistry:
    """All sessions, each from the moment its memory is being reserved.

    What is reserved for a session that ends before the scheduler knows of it is given back here;
    later it is the scheduler's to drop.

    Attributes:
        sessions: The clients that were admitted, by number of the session.
        memories: Where their batches lie, by number of the session or group.
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
        self.memories: dict[int, ReservedMemory] = {}
        # Numbers of sessions tell daemons apart, too: a late message of a dead one's session finds
        # nobody.
        self._last_number = int.from_bytes(draw(5), "big") << 8

    def of_stream(self, stream: str) -> list[RegisteredSession]:
        """The sessions that read a stream."""
        return [session for session in self.sessions.values() if session.hello.stream == stream]

    def group_for(self, stream: str, admitted: AdmittedStream) -> ReservedMemory | None:
        """The memory of those with whom a new session could share its batches, if there are any."""
        same = (each for each in self.memories.values() if each.suits(stream, admitted))
        return next((each for each in same if not self._why_full(each, admitted)), None)

    def why_apart(self, stream: str, admitted: AdmittedStream) -> str:
        """A warning, if a new session shares with nobody because others have too few slots."""
        same = [each for each in self.memories.values() if each.suits(stream, admitted)]
        full = [self._why_full(each, admitted) for each in same]
        if not full or not all(full):
            return ""
        return (
            f"stream {stream!r}: this trainer shares its batches with no other yet: those that ask "
            f"for the same have {full[0]}"
        )

    def register(
        self,
        peer: Peer,
        hello: Hello,
        stream: OpenedStream,
        admitted: AdmittedStream,
        warnings: tuple[str, ...],
        memory: ReservedMemory | None,
    ) -> None:
        """Give a client the memory of its group, or begin to reserve some.

        When it is there, the client is welcomed.

        Args:
            peer: Its connection.
            hello: What it has asked for.
            stream: Where that comes from.
            admitted: What it gets.
            warnings: For its user.
            memory: That of those with whom it shares its batches, if there are any (`group_for`).
        """
        if new := memory is None:
            memory = ReservedMemory(
                self._number(), hello.stream, stream, admitted, admitted.segment
            )
            self.memories[memory.owner] = memory
        number = self._number() if memory.group else memory.owner
        session = RegisteredSession(number, peer, hello, stream, admitted, warnings, memory)
        peer.session = number
        self.sessions[number] = session
        memory.sessions.append(number)
        if new:
            self._budget.store.reserve(
                memory.owner, memory.segment, lambda fd, error: self._reserved(memory, fd, error)
            )
        elif memory.attached:
            self._begin([session])

    def gone(self, peer: Peer) -> None:
        """The peer's connection has ended; it may have had no session."""
        session = self.sessions.pop(peer.session, None) if peer.session is not None else None
        if session is None:
            return
        self._messages.forget(session.session)
        memory = session.memory
        memory.sessions.remove(session.session)
        if not memory.sessions:
            del self.memories[memory.owner]
            if memory.growing:
                self._budget.store.free(memory.growing)
            if not memory.attached:
                self._budget.store.free(memory.segment.segment)
        if session.attached:
            self._log(
                "info",
                "session_ended",
                f"session {session.session} ({peer}) has ended",
                **session.facts(),
            )
            self._step(Detach(session.session))
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
        """A session or group needs a larger segment.

        Answer: SegmentGrown or GrowFailed, unless it ends.
        """
        memory = self.memories.get(action.session)
        if memory is None:
            return  # its Detach is on the way
        segment = memory.larger(
            action.slots,
            self._budget.number(),
            tail_row_bytes=action.tail_row_bytes,
            body_bytes=action.body_bytes,
        )
        what, shared = f"a larger segment for stream {memory.name!r}", memory.group > 0
        why = self._budget.shortage(what, segment, 0, shared=shared)
        if why:
            self._step(GrowFailed(memory.owner, why))
            return
        memory.growing = segment.segment
        self._budget.store.reserve(
            memory.owner, segment, lambda fd, error: self._grown(memory, segment, fd, error)
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

    def _why_full(self, memory: ReservedMemory, admitted: AdmittedStream) -> str:
        """Why a group has no slots for one more session, and what to change; "" if it has."""
        slots, trainers, most = memory.segment.slots, len(memory.sessions), admitted.prefetch
        if most + SPARE_SLOTS > slots:
            return (
                f"{slots} slots, too few for prefetch = {most}; give them the same prefetch, or "
                f"the stream share_window = {most}"
            )
        larger = memory.for_one_more()
        if larger is None or not self._budget.shortage("", larger, 0):
            return ""
        return (
            f"{slots} slots for {trainers} trainers, and there is no memory for more; raise "
            "[daemon] memory"
        )

    def _number(self) -> int:
        """Of a session or a group. No number is used twice."""
        self._last_number += 1
        return self._last_number

    def _reserved(self, memory: ReservedMemory, fd: int, error: OSError | None) -> None:
        sessions = [self.sessions[number] for number in memory.sessions]
        if error is None:
            self._begin(sessions, fd)
            return
        del self.memories[memory.owner]
        why = (
            f"{resource_limits.size(memory.bytes)} of shared memory for stream "
            f"{memory.name!r} could not be reserved: {error.strerror}"
        )
        for session in sessions:
            del self.sessions[session.session]
            session.peer.session = None
        for session in sessions:
            self._log("error", "session_refused", why, **session.facts())
            self._control.reject(session.peer, "RefusedError", why)

    def _begin(self, sessions: list[RegisteredSession], fd: int = -1) -> None:
        """Welcome sessions whose memory is there, and tell the scheduler of them.

        To welcome one may show that it has gone. Only once all are welcomed may their memory grow.

        Args:
            sessions: Of one memory.
            fd: The memory, if workers do not have it yet.
        """
        for session in sessions:
            token = self._draw(16)
            self._messages.admit(session.session, token)
            self._hand_over(session, session.welcome(token=token, daemon=self._life))
        for session in sessions:
            if session.session not in self.sessions:
                continue
            if not session.memory.attached:
                session.memory.attached = True
                self._add_to_engine(session.memory, fd)
            session.attached = True
            self._step(session.attach())
            self._attached()
            self._log("info", "session_began", session.line(), **session.facts())

    def _grown(
        self, memory: ReservedMemory, segment: Segment, fd: int, error: OSError | None
    ) -> None:
        memory.growing = 0
        if error is not None:
            self._step(
                GrowFailed(
                    memory.owner,
                    f"{resource_limits.size(segment.slots * segment.slot_bytes)} could not be "
                    f"reserved: {error.strerror}",
                )
            )
            return
        memory.segment = segment
        self._add_to_engine(memory, fd)
        for session in [self.sessions[number] for number in memory.sessions]:
            self._hand_over(session, segment)
        self._step(SegmentGrown(memory.owner, segment))

    def _add_to_engine(self, memory: ReservedMemory, fd: int) -> None:
        admitted = memory.admitted
        self._engine.add_segment(
            memory.segment, memory.name, admitted.fields, admitted.shape.batch_size, fd
        )

    def _hand_over(self, session: RegisteredSession, message: Welcome | Segment) -> None:
        """Tell it of a segment, whose descriptor goes with that."""
        memory = session.memory
        with self._budget.store.lent(memory.segment.segment, writable=not memory.group) as fd:
            self._control.send(session.peer, message, (fd,))
