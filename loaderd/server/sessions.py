"""Clients as they come and go: from a Hello to a session with memory and a token, larger segments,
and the end of it all.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loaderd.core.actions import FreeSegment, GrowSegment, StreamBroken
from loaderd.core.events import Attach, Detach, Event, GrowFailed, SegmentGrown
from loaderd.core.snapshot import SchedulerSnapshot, SessionSnapshot
from loaderd.engine.base import Engine
from loaderd.server.admission import AdmittedStream, OpenedStream, admit, check_known, sized
from loaderd.server.status_report import SessionStatus
from loaderd.server.waiting_clients import WaitingClients
from loaderd.system import file_limits, resource_limits
from loaderd.system.control_socket import ControlListener, Peer
from loaderd.system.loop import Loop
from loaderd.system.memfd import SegmentStore
from loaderd.system.rate_limit import RateLimit
from loaderd.system.zmq_router import MessageRouter
from loaderd_wire.errors import (
    ConfigError,
    LoaderdError,
    RefusedError,
    StreamChangedError,
    from_name,
)
from loaderd_wire.messages import Bye, Hello, Segment, Starting, Welcome

MAX_NAMED = 32  # different refusals that the log tells within a minute
SHOWN = 5  # files in one line
MAX_REFUSAL = 4000  # characters: it may quote what the client said
LONG_RESERVATION = 256 << 20  # bytes; a client that waits for more is told what for

Log = Callable[[str, str], object]


@dataclass(slots=True)
class PendingSession:
    """A session, from the moment its memory is being reserved.

    warnings: for its user. attached: the scheduler knows of it.
    """

    session: int
    peer: Peer
    hello: Hello
    admitted: AdmittedStream
    warnings: tuple[str, ...]
    attached: bool = False
    growing: int = 0


class SessionRegistry:
    """All sessions. Before `open` clients are told to wait; after `close` nobody comes in.

    names: of all streams. wanted(name): called when somebody asks for one that has not been opened,
    or is to be opened anew, since its data changed and those who had begun with it are gone;
    `opened` or `not_opened` answers. progress(): what clients that wait are told.
    memory: ceiling of all segments, bytes. most: sessions that the descriptors suffice for. rooms:
    the system's limits, as
    `budget.rooms`. step: hands an event to the scheduler. emptied: called when the last session has
    gone. outdated(why): called when somebody comes, and nobody else is here, after the config file,
    or code that was imported, was written to: whoever comes gets another daemon then. draw: so many
    random bytes, for tokens.
    """

    def __init__(
        self,
        loop: Loop,
        control: ControlListener,
        messages: MessageRouter,
        segments: SegmentStore,
        engine: Engine,
        *,
        config_path: str,
        names: Sequence[str],
        wanted: Callable[[str], object],
        progress: Callable[[], str],
        life: str,
        memory: int,
        most: int,
        step: Callable[[Event], object],
        emptied: Callable[[], object],
        outdated: Callable[[str], object] | None,
        log: Log,
        rooms: Callable[[], list[resource_limits.Room]] = resource_limits.rooms,
        draw: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._loop = loop
        self._control = control
        self._messages = messages
        self._segments = segments
        self._engine = engine
        self._config_path = config_path
        self._names = names
        self._wanted = wanted
        self._life = life
        self._step = step
        self._emptied = emptied
        self._outdated = outdated
        self._config = _bytes_of(config_path)
        self._log = log
        self._rooms = rooms
        self._draw = draw
        self.memory = memory
        self.most = most
        self._rarely = RateLimit(max_keys=MAX_NAMED)
        self.pendings: dict[int, PendingSession] = {}
        self.broken: dict[str, tuple[str, str]] = {}
        self._waiting = WaitingClients(loop, control, progress)
        self._streams: Mapping[str, OpenedStream] | None = None
        # Numbers of sessions tell daemons apart, too: a late message of a dead one's session finds
        # nobody.
        self._sessions = int.from_bytes(draw(5), "big") << 8
        self._last_segment = 0

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
        for pending in tuple(self.pendings.values()):
            if pending.attached:
                self._control.send(pending.peer, Bye(reason))
            else:
                self._control.drop(pending.peer)

    # -- what clients do

    def hello(self, peer: Peer, hello: Hello) -> None:
        if self._streams is None:
            self._waiting.add(peer, hello)
            return
        edited = self._engine.edited()
        if self._outdated and hello.config and not self.pendings:
            why = (
                "the config file has changed"
                if _bytes_of(self._config_path) != self._config
                else _edited(edited)
                if edited
                else ""
            )
            if why:
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
        if admitted.bytes > LONG_RESERVATION:
            self._control.send(
                peer, Starting(f"reserving {resource_limits.size(admitted.bytes)} of shared memory")
            )
        if peer.ended:
            return  # found out just now, and nothing has been made for it yet
        self._sessions += 1
        warnings = (
            (self._old_code(edited),) if edited and self._streams[hello.stream].facts.code else ()
        )
        unlike = _unlike(
            hello.stream,
            admitted,
            [
                other.admitted
                for other in self.pendings.values()
                if other.hello.stream == hello.stream
            ],
        )
        if unlike:
            self._log("warning", unlike)
            warnings += (unlike,)
        pending = PendingSession(self._sessions, peer, hello, admitted, warnings)
        peer.session = pending.session
        self.pendings[pending.session] = pending
        self._segments.reserve(
            pending.session, admitted.segment, lambda fd, error: self._reserved(pending, fd, error)
        )

    def gone(self, peer: Peer) -> None:
        """The peer's connection has ended."""
        self._waiting.forget(peer)
        pending = self.pendings.pop(peer.session, None) if peer.session is not None else None
        if pending is None:
            return
        self._messages.forget(pending.session)
        if pending.growing:
            self._segments.free(pending.growing)
        if pending.attached:
            self._log("info", f"session {pending.session} ({peer}) has ended")
            self._step(Detach(pending.session))
        else:
            self._segments.free(pending.admitted.segment.segment)
        if not self.pendings:
            self._emptied()

    # -- what the scheduler wants

    def grow(self, action: GrowSegment) -> None:
        pending = self.pendings.get(action.session)
        if pending is None or self._streams is None:
            return  # its Detach is on the way
        stream, admitted = self._streams[pending.hello.stream], pending.admitted
        self._last_segment += 1
        segment = sized(
            stream,
            admitted.fields,
            admitted.shape.batch_size,
            action.slots,
            self._last_segment,
            tail_row_bytes=action.tail_row_bytes,
            body_bytes=action.body_bytes,
        )
        why = self._shortage(f"a larger segment for stream {pending.hello.stream!r}", segment, 0)
        if why:
            self._step(GrowFailed(pending.session, why))
            return
        pending.growing = segment.segment
        self._segments.reserve(
            pending.session, segment, lambda fd, error: self._grown(pending, segment, fd, error)
        )

    def drop(self, action: FreeSegment) -> None:
        segment = action.segment
        self._engine.drop_segment(segment, lambda: self._segments.free(segment))

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
            _status_of(pending, progress.get(pending.session)) for pending in self.pendings.values()
        )

    # -- inside

    def _is_of_the_past(self, stream: str) -> bool:
        """Its data has changed since it was opened, and nobody is here any longer who began with
        what it was.
        """
        assert self._streams is not None
        if any(pending.hello.stream == stream for pending in self.pendings.values()):
            return False
        return self.broken.get(stream, ("", ""))[
            0
        ] == StreamChangedError.__name__ or _was_written_to(self._streams[stream])

    def _old_code(self, edited: list[str]) -> str:
        who = (
            "other sessions use this daemon, so it"
            if self._outdated and self.pendings
            else "this daemon"
        )
        return (
            f"{_edited(edited)}: {who} keeps the old code (`loaderd drain "
            f"{self._config_path or 'SOCKET'}` ends it)"
        )

    def _admit(self, hello: Hello, stream: OpenedStream) -> AdmittedStream:
        """Raises LoaderdError."""
        self._last_segment += 1
        try:
            admitted = admit(hello, stream, self._last_segment)
        except (ValueError, OverflowError) as error:
            raise (
                error
                if isinstance(error, LoaderdError)
                else ConfigError(f"stream {hello.stream!r}: {error}")
            ) from None
        if hello.stream in self.broken:
            raise from_name(*self.broken[hello.stream])
        if len(self.pendings) >= self.most:
            raise RefusedError(
                f"{len(self.pendings)} sessions are open, which is all that RLIMIT_NOFILE allows; "
                "raise the hard limit (ulimit -Hn)"
            )
        # A client that comes back to a successor still pins memory of the old one with the batch
        # that it holds: had it to wait until that fits into the ceiling beside the new segment, it
        # would wait for itself. The system's own limits still count.
        held = 0 if hello.order else hello.held_bytes
        why = self._shortage(f"stream {hello.stream!r}", admitted.segment, held)
        if why:
            raise RefusedError(why)
        return admitted

    def _shortage(self, what: str, segment: Segment, held: int) -> str | None:
        return resource_limits.shortage(
            f"{what} ({segment.slots} slots of {segment.slot_bytes} bytes)",
            segment.slots * segment.slot_bytes,
            memory=self.memory,
            live=self._segments.live_bytes,
            held=held,
            unfilled=self._segments.unfilled_bytes,
            rooms=self._rooms(),
        )

    def _reserved(self, pending: PendingSession, fd: int, error: OSError | None) -> None:
        admitted, peer, hello = pending.admitted, pending.peer, pending.hello
        if error is not None:
            self.pendings.pop(pending.session, None)
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
        pending.attached = True
        self._messages.admit(pending.session, token)
        self._engine.add_segment(
            admitted.segment, hello.stream, admitted.fields, admitted.shape.batch_size, fd
        )
        self._step(
            Attach(
                pending.session,
                hello.stream,
                admitted.shape,
                admitted.seed,
                admitted.prefetch,
                admitted.segment,
            )
        )
        welcome = Welcome(
            session=pending.session,
            token=token,
            daemon=self._life,
            samples=admitted.shape.samples,
            batch_size=admitted.shape.batch_size,
            seed=admitted.seed,
            drop_last=admitted.shape.drop_last,
            specs=admitted.fields,
            form=stream.facts.form,
            collated=stream.facts.collated,
            keys=stream.facts.keys,
            segment=admitted.segment,
            order=admitted.order,
            content=admitted.content,
            classes=stream.facts.classes,
            on_error=stream.plan.on_error,
            max_errors=stream.plan.max_errors,
            empty=stream.plan.empty,
            warnings=pending.warnings,
            tail="short" if admitted.shape.uneven_tail else "repeat",
        )
        shape = admitted.shape
        self._log(
            "info",
            f"session {pending.session} ({peer}): stream {hello.stream!r}, batch_size "
            f"{shape.batch_size}, rank {shape.rank} of {shape.world_size}, "
            f"{admitted.segment.slots} slots, {resource_limits.size(admitted.bytes)}",
        )
        self._control.send(peer, welcome, (fd,))

    def _grown(
        self, pending: PendingSession, segment: Segment, fd: int, error: OSError | None
    ) -> None:
        pending.growing = 0
        if error is not None:
            self._step(
                GrowFailed(
                    pending.session,
                    f"{resource_limits.size(segment.slots * segment.slot_bytes)} could not be "
                    f"reserved: {error.strerror}",
                )
            )
            return
        self._engine.add_segment(
            segment,
            pending.hello.stream,
            pending.admitted.fields,
            pending.admitted.shape.batch_size,
            fd,
        )
        self._control.send(pending.peer, segment, (fd,))
        self._step(SegmentGrown(pending.session, segment))

    def _refuse(self, peer: Peer, error: LoaderdError) -> None:
        text = str(error) if len(str(error)) <= MAX_REFUSAL else f"{str(error)[:MAX_REFUSAL]} ..."
        more = self._rarely.ask(text, self._loop.now_s())
        if more is not None:
            self._log("warning", f"client ({peer}) refused: {text}{more}")
        self._control.reject(peer, type(error).__name__, text)


def _status_of(pending: PendingSession, progress: SessionSnapshot | None) -> SessionStatus:
    shape, cred = pending.admitted.shape, pending.peer.cred
    return SessionStatus(
        session=pending.session,
        stream=pending.hello.stream,
        uid=cred.uid,
        pid=cred.pid,
        rank=shape.rank,
        world_size=shape.world_size,
        batch_size=shape.batch_size,
        prefetch=pending.admitted.prefetch,
        bytes=pending.admitted.bytes,
        attached=pending.attached,
        progress=progress,
    )


def _edited(files: list[str]) -> str:
    shown = ", ".join(files[:SHOWN]) + (
        f" and {len(files) - SHOWN} more" if len(files) > SHOWN else ""
    )
    return (
        f"{shown} was edited after its import"
        if len(files) == 1
        else f"{shown} were edited after their import"
    )


def _unlike(stream: str, new: AdmittedStream, others: list[AdmittedStream]) -> str:
    """ "" or a warning: this rank seems to belong to the training of the others, and cuts or orders
    the epoch in another way, so that samples come twice or never. Where its rank is there already,
    or others are like it, it is of another training.
    """
    several = [other for other in others if other.shape.world_size > 1]
    if new.shape.world_size == 1 or not several:
        return ""
    if any(other.shape.rank == new.shape.rank or _way(other) == _way(new) for other in several):
        return ""
    mine, theirs = _way(new), _way(several[0])
    differing = [name for name in mine if mine[name] != theirs[name]]
    said = (", ".join(f"{name} = {way[name]}" for name in differing) for way in (mine, theirs))
    one, two = (
        f"rank {a.shape.rank} of {a.shape.world_size} has {text}"
        for a, text in zip((new, several[0]), said, strict=True)
    )
    return (
        f"stream {stream!r}: {one}, {two}: ranks of one training need equal values, or some "
        "samples come twice and others never"
    )


def _way(admitted: AdmittedStream) -> dict[str, object]:
    """What all ranks of a training have in common."""
    shape = admitted.shape
    return {
        "seed": admitted.seed,
        "batch_size": shape.batch_size,
        "drop_last": shape.drop_last,
        "world_size": shape.world_size,
    }


def _was_written_to(stream: OpenedStream) -> bool:
    """Whether another file lies at the path of the stream's database, or the same with other times.

    Nothing is opened.
    """
    if stream.plan.lmdb is None or not stream.facts.state:
        return False
    path = stream.plan.lmdb
    was = json.loads(stream.facts.state)["facts"]
    try:
        now = os.stat(os.path.join(path, "data.mdb") if os.path.isdir(path) else path)
    except OSError:
        return True  # whoever opens it anew says what is wrong
    return (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns) != tuple(
        was[name] for name in ("device", "inode", "size", "mtime_ns", "ctime_ns")
    )


def _bytes_of(path: str) -> bytes:
    """What is in a file; b"" where it can't be read."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
