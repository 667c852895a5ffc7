"""A small daemon for the client's tests: real unix socket, real ROUTER, real memfds; its faults are
switches, its data a formula.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import itertools
import mmap
import os
import select
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import zmq

from loaderd_testing.deadlines import DEADLINE_S, until
from loaderd_wire import messages as m
from loaderd_wire.codec import WIRE, frame, unframe
from loaderd_wire.errors import BadSample
from loaderd_wire.slices import Cursor, EpochShape, steps
from loaderd_wire.slots import Chunk, FieldSpec, SlotLayout, slot_layout

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
TAIL = 256
TOKEN = bytes(range(0, 256, 16))
# 32 KiB a row: a batch of three rows or more is lent, not copied
X = FieldSpec("x", "|u1", (64, 512))
Y = FieldSpec("y", "<i8", ())
T = FieldSpec("t", "", (), "text")
PICTURE = FieldSpec("image", "|u1", (64, 170, 3), image=True)


@dataclass
class Rules:
    """What the daemon serves, and its faults. Changed from the test's thread at any time.

    index of position p in epoch e: (p + 3 * e + seed) % samples.
    """

    samples: int = 50
    batch_size: int = 4
    drop_last: bool = False
    seed: int = 7
    specs: tuple[FieldSpec, ...] = (X, Y, T)
    form: str = "dict"
    collated: bool = False
    keys: str = "index"
    on_error: str = "raise"
    max_errors: float = 0.0
    empty: str = "skip"
    tail: str = "repeat"
    order: dict[str, str] = field(default_factory=lambda: {"samples": "50", "shuffle": "yes"})
    content: dict[str, str] = field(default_factory=lambda: {"transforms": "none"})
    bad: frozenset[int] = frozenset()  # indices that cannot be made
    warnings: tuple[str, ...] = ()  # said with the welcome
    reject: tuple[str, str] | None = None
    starting: tuple[str, ...] = ()  # said before the welcome
    starts_for_ever: bool = False
    makes: bool = True  # announces batches
    pace_s: float = 0.0  # so long a batch takes
    answers: bool = True  # pings
    story: str = ""
    detail: str = ""
    lose: int = 0  # of the next announcements so many are lost
    # after so many more messages sent or received the daemon dies; -1 never
    messages_left: int = -1
    comes_back: bool = True  # after it died
    grow_at: int = -1  # a larger segment is sent before batch k of a plan
    # Sessions are members of groups: so many slots has a group's first segment, and each later one
    # has one more. Others write to a slot as soon as it is given back. 0: no session is in a group.
    group_slots: int = 0
    said: list[Any] = field(default_factory=list)  # what clients said


@dataclass
class Session:
    number: int
    hello: m.Hello
    control: socket.socket
    shape: EpochShape
    segments: dict[int, tuple[m.Segment, np.ndarray]] = field(default_factory=dict)
    generations: dict[int, list[int]] = field(default_factory=dict)
    released: dict[int, tuple[int, ...]] = field(default_factory=dict)
    progress: m.Progress | None = None
    identity: bytes = b""
    planned: Any = None
    sent: list[m.Descriptor] = field(default_factory=list)
    begun_s: float = 0.0  # when the batch that is being made was begun


class Death(Exception):
    pass


class FakeDaemon:
    def __init__(self, folder: Path, **rules: Any) -> None:
        self.path = str(folder / "d.sock")
        self.rules = Rules(**rules)
        self.deaths = self.welcomed = 0
        self.error: BaseException | None = None
        self._numbers = iter(range(1, 1 << 20))
        self._wake_r, self._wake_w = os.pipe()
        self._stop = self._die = False
        self._thread = threading.Thread(target=self._main, daemon=True)
        self.hellos: list[m.Hello] = []
        self.sessions: dict[int, Session] = {}

    def __enter__(self) -> FakeDaemon:
        self._thread.start()
        until("the daemon", lambda: os.path.exists(self.path) or not self._thread.is_alive())
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self.wake()
        self._thread.join(DEADLINE_S)
        os.close(self._wake_r)
        os.close(self._wake_w)
        if self.error is not None:
            raise self.error

    def wake(self) -> None:
        """Look again: a rule has changed."""
        os.write(self._wake_w, b"x")

    def kill(self, *, comes_back: bool = True) -> None:
        """As kill -9 does: every socket and every segment is gone, at once."""
        self.rules.comes_back = comes_back
        deaths = self.deaths
        self._die = True
        self.wake()
        until("its death", lambda: self.deaths > deaths)

    def send_raw(self, data: bytes) -> None:
        """These bytes on the ROUTER, to the newest session."""
        self._raw = data
        self.wake()

    _raw: bytes = b""  # sent once the newest session has spoken
    _raw_control: bytes = b""

    def send_control(self, data: bytes) -> None:
        self._raw_control = data
        self.wake()

    def _main(self) -> None:
        try:
            while not self._stop:
                try:
                    self._life()
                except Death:
                    self.deaths += 1
                    while not self.rules.comes_back and not self._stop:
                        select.select([self._wake_r], [], [], 1)
        except BaseException as error:  # noqa: BLE001 - raised by __exit__
            self.error = error

    def _life(self) -> None:
        context = zmq.Context()
        self.router = context.socket(zmq.ROUTER)
        self.router.linger = 0
        self.router.plain_server = True
        self.zap = context.socket(zmq.REP)
        self.zap.bind("inproc://zeromq.zap.01")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sessions = {}
        self._strangers: dict[int, tuple[socket.socket, bytearray]] = {}
        for name in (self.path, self.path + ".zmq"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
        self.router.bind(f"ipc://{self.path}.zmq")
        listener.bind(f"{self.path}.new")
        listener.listen(64)
        os.rename(f"{self.path}.new", self.path)  # who finds it there can connect
        try:
            self._loop(listener)
        finally:
            for session in self.sessions.values():
                session.control.close()
            for stranger, _ in self._strangers.values():
                stranger.close()
            self.sessions, self._die = {}, False
            listener.close()
            self.router.close(0)
            self.zap.close(0)
            context.term()
            for name in (self.path, self.path + ".zmq"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)

    def _loop(self, listener: socket.socket) -> None:
        while not self._stop:
            poller = zmq.Poller()
            for thing in (
                listener.fileno(),
                self._wake_r,
                self.router,
                self.zap,
                *self._strangers,
                *(s.control.fileno() for s in self.sessions.values()),
            ):
                poller.register(thing, zmq.POLLIN)
            ready = dict(poller.poll(10 if self.rules.pace_s else 5000))
            if self._wake_r in ready:
                os.read(self._wake_r, 4096)
            self._throw()
            if self._die:
                raise Death
            if self.zap in ready:
                self._let_in(*self.zap.recv_multipart())
            if listener.fileno() in ready:
                connected, _ = listener.accept()
                self._strangers[connected.fileno()] = (connected, bytearray())
            for session in [s for s in self.sessions.values() if s.control.fileno() in ready]:
                try:
                    told = session.control.recv(4096)
                except (
                    ConnectionResetError
                ):  # its trainer has ended with messages that it had not read
                    told = b""
                if not told:
                    session.control.close()
                    del self.sessions[session.number]
            for fd in [fd for fd in ready if fd in self._strangers]:
                control, buffer = self._strangers.pop(fd)
                try:
                    self._stranger(control, buffer)
                except ConnectionError:  # gone before it was answered, or had read the answer
                    control.close()
                except Death:
                    control.close()
                    raise
            self._hear()
            self._throw()
            for session in list(self.sessions.values()):
                self._serve(session)

    def _let_in(self, version: bytes, request: bytes, *shown: bytes) -> None:
        """Answer libzmq, which asks about a peer that has shown its session's number and token."""
        *_, name, password = shown
        good = int(name) in self.sessions and password == TOKEN
        self.zap.send_multipart(
            [version, request, b"200" if good else b"400", b"", name if good else b"", b""]
        )

    def _count(self) -> None:
        if self.rules.messages_left == 0:
            self.rules.messages_left = -1
            raise Death
        if self.rules.messages_left > 0:
            self.rules.messages_left -= 1

    def _stranger(self, control: socket.socket, buffer: bytearray) -> None:
        data = control.recv(1 << 16)
        if not data:
            control.close()
            return
        buffer += data
        hello = unframe(buffer)
        if hello is None:
            self._strangers[control.fileno()] = (control, buffer)
            return
        self._count()
        self.hellos.append(hello)
        for text in self.rules.starting:
            control.send(frame(m.Starting(text)))
        if self.rules.starts_for_ever:
            self._strangers[control.fileno()] = (control, bytearray())
            return
        if self.rules.reject:
            control.send(frame(m.Rejected(*self.rules.reject)))
            control.close()
            return
        self._welcome(hello, control)

    def _welcome(self, hello: m.Hello, control: socket.socket) -> None:
        r = self.rules
        batch = hello.batch_size or r.batch_size
        drop = r.drop_last if hello.drop_last is None else hello.drop_last
        session = Session(
            next(self._numbers),
            hello,
            control,
            EpochShape(
                r.samples, batch, hello.rank, hello.world_size, drop, uneven_tail=r.tail == "short"
            ),
        )
        segment, fd = self._segment(session, 0, TAIL)
        message = m.Welcome(
            session.number,
            TOKEN,
            "fake",
            r.samples,
            batch,
            r.seed if hello.seed is None else hello.seed,
            drop,
            self._specs(hello),
            r.form,
            r.collated,
            r.keys,
            segment,
            r.order,
            r.content,
            ("cat", "dog"),
            r.on_error,
            r.max_errors,
            r.empty,
            r.warnings,
            r.tail,
            shared=r.group_slots > 0,
        )
        self.sessions[session.number] = session
        self.welcomed += 1
        self._send_fd(control, message, fd)
        self._count()

    def _specs(self, hello: m.Hello) -> tuple[FieldSpec, ...]:
        return (
            self.rules.specs
            if hello.fields is None
            else tuple(s for s in self.rules.specs if s.name in hello.fields)
        )

    def _layout(self, session: Session, segment: m.Segment) -> SlotLayout:
        specs = (
            ()
            if self.rules.collated
            else [s for s in self._specs(session.hello) if s.kind == "array"]
        )
        return slot_layout(
            specs,
            session.shape.batch_size,
            tail_row_bytes=segment.tail_row_bytes,
            body_bytes=segment.body_bytes,
        )

    def _segment(self, session: Session, number: int, tail: int) -> tuple[m.Segment, int]:
        body = (1 << 20) if self.rules.collated else 0
        layout = self._layout(session, m.Segment(number, 1, 1, tail, body))
        group = self.rules.group_slots
        slots = group + number if group else session.hello.prefetch + 2
        segment = m.Segment(number, slots, layout.slot_bytes, tail, body)
        fd = os.memfd_create("fake", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(fd, segment.slots * segment.slot_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        session.segments[number] = (
            segment,
            np.frombuffer(mmap.mmap(fd, segment.slots * segment.slot_bytes), np.uint8),
        )
        session.generations[number] = [0] * segment.slots
        if self.rules.group_slots:
            writable, fd = fd, os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
            os.close(writable)
        return segment, fd

    def _send_fd(self, control: socket.socket, message: Any, fd: int) -> None:
        with contextlib.suppress(BrokenPipeError):
            control.sendmsg(
                [frame(message)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
            )
        os.close(fd)

    def _hear(self) -> None:
        while True:
            try:
                identity, data = self.router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            said = WIRE.decode(data)
            session = self.sessions.get(said.session)
            if session is None:
                continue
            self._count()
            self.rules.said.append(said)
            if session.progress is None or session.progress.plan != said.plan:
                session.planned, session.sent = (
                    steps(session.shape, Cursor(said.epoch, said.position, said.step)),
                    [],
                )
            session.progress, session.identity = said, identity
            session.released.update({r.segment: r.generations for r in said.released})
            self._unsend(session, said)
            if self.rules.group_slots:
                self._write_over(session)
            if said.again:
                for batch in session.sent[said.have :]:
                    self._tell(session, batch)
            if said.ping and self.rules.answers:
                self._tell(
                    session,
                    m.Pulse(
                        session.number,
                        said.seq,
                        1,
                        len(session.sent),
                        self.rules.story,
                        self.rules.detail,
                    ),
                )

    def _unsend(self, session: Session, said: m.Progress) -> None:
        """Whose slot was given back unseen, and all after it, are made again."""
        for k in range(said.have, len(session.sent)):
            batch = session.sent[k]
            released = session.released.get(batch.segment)
            if released is not None and released[batch.slot] >= batch.generation:
                session.sent = session.sent[:k]
                begin = Cursor(said.epoch, said.position, said.step)
                session.planned = itertools.islice(steps(session.shape, begin), k, None)
                return

    def _write_over(self, session: Session) -> None:
        for number, released in session.released.items():
            segment, memory = session.segments[number]
            for slot, generation in enumerate(released):
                if generation == session.generations[number][slot]:
                    begin = slot * segment.slot_bytes
                    memory[begin : begin + segment.slot_bytes] = 0xEE

    def _throw(self) -> None:
        session = self.sessions[max(self.sessions)] if self.sessions else None
        if session is not None and self._raw and session.identity:
            self.router.send_multipart([session.identity, self._raw])
            self._raw = b""
        if session is not None and self._raw_control and session.identity:
            session.control.send(self._raw_control)
            self._raw_control = b""

    def _tell(self, session: Session, message: Any) -> None:
        self.router.send_multipart([session.identity, WIRE.encode(message)])
        self._count()

    def _serve(self, session: Session) -> None:
        said = session.progress
        ahead = min(session.hello.prefetch, 2) if self.rules.group_slots else session.hello.prefetch
        while said and self.rules.makes and len(session.sent) < said.taken + ahead:
            newest = max(session.segments)
            if len(session.sent) == self.rules.grow_at:
                self.rules.grow_at = -1
                segment, fd = self._segment(session, newest + 1, TAIL * 2)
                self._send_fd(session.control, segment, fd)
                newest += 1
            generations, released = session.generations[newest], session.released.get(newest, ())
            free = [i for i, g in enumerate(generations) if g <= (released[i] if released else 0)]
            if not free:
                return
            if self.rules.pace_s:
                session.begun_s = session.begun_s or time.monotonic()
                if time.monotonic() - session.begun_s < self.rules.pace_s:
                    return
                session.begun_s = 0.0
            generations[free[0]] += 1
            batch = self._fill(session, newest, free[0], generations[free[0]])
            session.sent.append(batch)
            if self.rules.lose > 0:
                self.rules.lose -= 1
            else:
                self._tell(session, batch)

    def _fill(self, session: Session, number: int, slot: int, generation: int) -> m.Descriptor:
        r = self.rules
        segment, memory = session.segments[number]
        layout = self._layout(session, segment)
        _, cut = next(session.planned)
        where = [p % r.samples for p in range(cut.start, cut.start + cut.rows)]
        wanted = [
            index_of(
                p,
                cut.epoch,
                r.seed if session.hello.seed is None else session.hello.seed,
                r.samples,
            )
            for p in where
        ]
        bad = tuple(
            BadSample(i, str(i), p, "decode", "ValueError", "it is bad", f"Traceback of {i}")
            for i, p in zip(wanted, where, strict=True)
            if i in r.bad
        )
        failed = bool(bad) and r.on_error == "raise"
        rows = [] if failed else [i for i in wanted if i not in r.bad]
        at = memory[slot * segment.slot_bytes : (slot + 1) * segment.slot_bytes]
        at[: len(rows) * 8] = np.array(rows, "<i8").view(np.uint8)
        for spec, offset in zip(layout.fields, layout.offsets, strict=True):
            value = (
                np.stack([row_of(spec, i) for i in rows])
                if rows
                else np.empty((0, *spec.shape), spec.dtype)
            )
            flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            at[offset : offset + flat.size] = flat
        chunks = self._chunks(session, layout, at, rows) if rows else ()
        return m.Descriptor(
            session.number,
            said_plan(session),
            len(session.sent),
            cut.epoch,
            cut.start,
            cut.rows,
            number,
            slot,
            generation,
            len(rows),
            failed,
            chunks,
            bad,
        )

    def _chunks(
        self, session: Session, layout: SlotLayout, at: np.ndarray, rows: list[int]
    ) -> tuple[Chunk, ...]:
        """Two jobs a batch, as if two workers had made it."""
        half = (len(rows) + 1) // 2
        parts = [(0, len(rows))] if self.rules.collated else [(0, half), (half, len(rows))]
        chunks: list[Chunk] = []
        for first, last in parts:
            content: dict[str, Any] = {}
            if self.rules.keys == "stored":
                content["keys"] = [f"key-{i}" for i in rows[first:last]]
            if any(s.kind == "text" for s in self._specs(session.hello)):
                content["text"] = {"t": [f"s{i}" for i in rows[first:last]]}
            if self.rules.collated:
                wide = np.array(rows, "<i4").repeat(len(rows)).reshape(len(rows), len(rows))
                at[layout.body_offset : layout.body_offset + wide.nbytes] = wide.reshape(-1).view(
                    np.uint8
                )
                content["arrays"] = {"x": ["<i4", list(wide.shape), layout.body_offset]}
            if not content or first == last:
                continue
            data = msgpack.packb(content)
            offset, room = layout.tail_of(first, last)
            assert len(data) <= room
            at[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
            chunks.append(Chunk(first, last, offset, len(data)))
        return tuple(chunks)


def said_plan(session: Session) -> int:
    assert session.progress is not None
    return session.progress.plan


def index_of(position: int, epoch: int, seed: int, samples: int) -> int:
    return (position + 3 * epoch + seed) % samples


def row_of(spec: FieldSpec, index: int) -> np.ndarray:
    return np.full(spec.shape, index % 251, spec.dtype)


def epoch_indices(epoch: int, rules: Rules, seed: int | None = None) -> list[int]:
    return [
        index_of(p, epoch, rules.seed if seed is None else seed, rules.samples)
        for p in range(rules.samples)
    ]


def seen(batches: Iterable[Any]) -> list[int]:
    """The indices of batches, each checked against its own content."""
    flat: list[int] = []
    for batch in batches:
        flat += checked(batch)
    return flat


def checked(batch: Any) -> list[int]:
    rows = batch.indices.tolist()
    assert np.asarray(batch["y"]).tolist() == rows
    assert batch["t"] == [f"s{i}" for i in rows]
    x = np.asarray(batch["x"])
    assert x[:, 0, 0].tolist() == [i % 251 for i in rows]
    assert (x == x[:, :1, :1]).all()
    return rows
