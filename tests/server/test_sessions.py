"""Clients as they come and go, with real memory and a loop that a test turns: whatever they do,
nothing of theirs is kept.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from loaderd.core.actions import FreeSegment, GrowSegment, StreamBroken
from loaderd.core.events import Attach, Detach, Event, GrowFailed, SegmentGrown
from loaderd.server import admission_control as module
from loaderd.server import waiting_clients
from loaderd.server.admission import OpenedStream, sized
from loaderd.server.admission_control import AdmissionControl
from loaderd.server.segment_budget import SegmentBudget
from loaderd.server.sessions import SessionRegistry
from loaderd.system import memfd
from loaderd.system.loop import Loop
from loaderd.system.memfd import SegmentStore
from loaderd.system.modules import Module
from loaderd.system.peer_credentials import PeerCredentials
from loaderd.system.resource_limits import Room
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_wire.errors import StreamFailedError
from loaderd_wire.messages import Bye, Rejected, Segment, Starting, Welcome
from server.test_admission import FACTS, HELLO, PLAN

STREAM = OpenedStream(PLAN, FACTS)
SESSION_BYTES = 6 * sized(STREAM, FACTS.specs, 1, 6, 1).slot_bytes  # of a client as HELLO is


class FakePeer:
    """A connection as the reception sees it; `heard`: what was sent to it."""

    def __init__(self, pid: int) -> None:
        self.cred = PeerCredentials(pid, 1000)
        self.session: int | None = None
        self.ended = False
        self.heard: list[Any] = []

    def __str__(self) -> str:
        return f"pid {self.cred.pid}"

    def last(self) -> Any:
        return self.heard[-1] if self.heard else None


class FakeControl:
    def __init__(self) -> None:
        self.gone: Callable[[Any], None]
        self.deaf: set[FakePeer] = set()  # of which the next word finds out that they are gone

    def send(self, peer: FakePeer, message: Any, fds: tuple[int, ...] = ()) -> None:
        if peer in self.deaf:
            self.drop(peer)
        elif not peer.ended:
            peer.heard.append(message)

    def reject(self, peer: FakePeer, error: str, text: str) -> None:
        self.send(peer, Rejected(error, text))

    def drop(self, peer: FakePeer, why: str = "") -> None:
        if not peer.ended:
            peer.ended = True
            self.gone(peer)


class FakeMessages:
    def __init__(self) -> None:
        self.tokens: dict[int, bytes] = {}

    def admit(self, session: int, token: bytes) -> None:
        self.tokens[session] = token

    def forget(self, session: int) -> None:
        self.tokens.pop(session, None)


class FakePool:
    def __init__(self) -> None:
        self.segments: dict[int, int] = {}
        self.files: list[str] = []  # of code, edited since they were imported

    def add_segment(self, segment: Segment, stream: str, fields: Any, rows: int, fd: int) -> None:
        self.segments[segment.segment] = fd

    def drop_segment(self, segment: int, done: Callable[[], object]) -> None:
        del self.segments[segment]
        done()

    def edited(self) -> list[str]:
        return self.files


class Desk:
    """A reception and all that it speaks with.

    all: of a test, whose memory is given back at its end.
    """

    all: ClassVar[list[Desk]] = []

    def __init__(
        self,
        loop: Loop,
        *,
        memory: int = 1 << 30,
        most: int = 100,
        room: int = 1 << 40,
        config: str = "",
    ) -> None:
        self.all.append(self)
        self.loop = loop
        self.pieces = 1 << 30  # that the system has
        self.lines: list[str] = []
        self.events: list[Event] = []
        self.wanted: list[str] = []
        self.emptied = 0
        self.outdated: list[str] = []  # why whoever comes gets another daemon
        self.segments = SegmentStore(loop, allocate=self.allocate)
        self.control, self.messages, self.pool = FakeControl(), FakeMessages(), FakePool()
        self.budget = SegmentBudget(
            self.segments,
            memory=memory,
            rooms=lambda: [Room("the machine", room, room, "its memory")],
        )
        self.registry = SessionRegistry(
            self.control, self.messages, self.budget, self.pool,  # type: ignore[arg-type]
            life="life", step=self.events.append, attached=lambda: None, emptied=self.empty, log=lambda level, event, text, **_: self.lines.append(text),
        )  # fmt: skip
        self.admission = AdmissionControl(
            loop, self.control, self.budget, self.registry,  # type: ignore[arg-type]
            config_path=config, names=["train", "val", "test"], wanted=self.wanted.append, progress=lambda: "starting", edited=self.pool.edited,
            outdated=self.outdated.append if config else None, most=most, log=lambda level, event, text, **_: self.lines.append(text),
        )  # fmt: skip
        self.control.gone = self.admission.gone
        self.peers = 0

    def allocate(self, fd: int, offset: int, size: int) -> None:
        if not self.pieces:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.pieces -= 1
        os.posix_fallocate(fd, offset, size)

    def empty(self) -> None:
        self.emptied += 1

    def open(self) -> Desk:
        self.streams = {"train": STREAM}
        self.admission.open(self.streams)
        return self

    def come(self, **changes: Any) -> FakePeer:
        self.peers += 1
        peer = FakePeer(self.peers)
        self.admission.hello(peer, replace(HELLO, **changes))  # type: ignore[arg-type]
        return peer

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end
            self.loop.turn(0.05)

    def welcomed(self, **changes: Any) -> FakePeer:
        peer = self.come(**changes)
        self.until(lambda: isinstance(peer.last(), (Welcome, Rejected)))
        assert isinstance(peer.last(), Welcome), peer.last()
        return peer

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    monkeypatch.setattr(memfd, "PIECE_BYTES", 4096)  # every reservation takes several turns
    with Loop() as made:
        yield made
    for local_stream in Desk.all:
        local_stream.segments.close()
    Desk.all.clear()


def test_a_client_that_leaves_while_its_memory_is_reserved_leaves_nothing(loop: Loop) -> None:
    local_stream = Desk(loop).open()
    peer = local_stream.come(batch_size=50)
    assert local_stream.segments.live_bytes > 4096
    local_stream.control.drop(peer)
    assert (
        local_stream.segments.live_bytes,
        local_stream.registry.sessions,
        local_stream.messages.tokens,
        local_stream.emptied,
    ) == (
        0,
        {},
        {},
        1,
    )
    for _ in range(20):
        loop.turn(0)
    assert (local_stream.events, local_stream.pool.segments, local_stream.emptied) == ([], {}, 1)


def test_a_client_that_leaves_while_its_segment_grows_leaves_nothing(loop: Loop) -> None:
    local_stream = Desk(loop).open()
    peer = local_stream.welcomed()
    (attach,) = local_stream.of(Attach)
    local_stream.registry.grow(GrowSegment(attach.session, 6, 4096, 0))
    assert local_stream.segments.live_bytes > SESSION_BYTES
    local_stream.control.drop(peer)
    assert (
        local_stream.segments.live_bytes == SESSION_BYTES
    )  # which the scheduler drops once nobody writes it
    assert local_stream.of(Detach) == [Detach(attach.session)]
    assert local_stream.messages.tokens == {}
    local_stream.registry.drop(FreeSegment(attach.session, attach.segment.segment))
    assert (local_stream.segments.live_bytes, local_stream.pool.segments) == (0, {})
    for _ in range(20):
        loop.turn(0)
    assert local_stream.of(SegmentGrown) == []


def test_a_client_found_gone_when_it_is_told_to_wait_for_its_memory_gets_none(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONG_RESERVATION", 0)
    local_stream = Desk(loop).open()
    assert isinstance(local_stream.come().heard[0], Starting)
    deaf = FakePeer(9)
    local_stream.control.deaf.add(deaf)
    local_stream.admission.hello(deaf, HELLO)  # type: ignore[arg-type]
    assert deaf.ended
    local_stream.until(lambda: local_stream.of(Attach))
    for _ in range(20):
        loop.turn(0)
    assert (
        len(local_stream.of(Attach))
        == len(local_stream.registry.sessions)
        == len(local_stream.messages.tokens)
        == 1
    )
    assert local_stream.segments.live_bytes == SESSION_BYTES


def test_a_larger_segment_goes_to_workers_client_and_scheduler_and_is_counted(loop: Loop) -> None:
    local_stream = Desk(loop).open()
    peer = local_stream.welcomed()
    (attach,) = local_stream.of(Attach)
    local_stream.registry.grow(GrowSegment(attach.session, 6, 4096, 0))
    local_stream.until(lambda: local_stream.of(SegmentGrown))
    larger = local_stream.of(SegmentGrown)[0].segment
    assert larger.tail_row_bytes == 4096
    assert peer.last() == larger
    assert set(local_stream.pool.segments) == {attach.segment.segment, larger.segment}
    assert local_stream.segments.live_bytes == SESSION_BYTES + larger.slots * larger.slot_bytes
    local_stream.control.drop(peer)
    assert local_stream.segments.live_bytes > SESSION_BYTES  # it is the scheduler's to drop now


def test_a_larger_segment_that_the_system_refuses_is_told_with_its_size(loop: Loop) -> None:
    local_stream = Desk(loop).open()
    peer = local_stream.welcomed()
    local_stream.pieces = 1
    local_stream.registry.grow(GrowSegment(local_stream.of(Attach)[0].session, 6, 4096, 0))
    local_stream.until(lambda: local_stream.of(GrowFailed))
    assert "could not be reserved: No space left" in local_stream.of(GrowFailed)[0].text
    assert local_stream.segments.live_bytes == SESSION_BYTES
    local_stream.control.drop(peer)
    assert local_stream.segments.live_bytes == SESSION_BYTES


def test_a_larger_segment_beyond_the_ceiling_is_not_begun(loop: Loop) -> None:
    local_stream = Desk(loop, memory=SESSION_BYTES + 1000).open()
    local_stream.welcomed()
    local_stream.registry.grow(GrowSegment(local_stream.of(Attach)[0].session, 6, 4096, 0))
    assert "[daemon] memory" in local_stream.of(GrowFailed)[0].text
    assert local_stream.segments.live_bytes == SESSION_BYTES


def test_who_shares_is_told_that_fewer_batches_kept_for_others_need_less(loop: Loop) -> None:
    local_stream = Desk(loop, memory=4 * SESSION_BYTES).open()
    local_stream.welcomed(shared="yes")
    group = local_stream.of(Attach)[0].group
    local_stream.registry.grow(GrowSegment(group, 14, 1 << 20, 0))
    text = local_stream.of(GrowFailed)[0].text
    assert text.endswith("lower share_window, prefetch or batch_size")


def test_growth_for_a_session_that_has_just_ended_is_nobodys(loop: Loop) -> None:
    local_stream = Desk(loop).open()
    peer = local_stream.welcomed()
    local_stream.control.drop(peer)
    local_stream.registry.grow(GrowSegment(local_stream.of(Attach)[0].session, 6, 4096, 0))
    assert (local_stream.segments.live_bytes, local_stream.of(GrowFailed)) == (SESSION_BYTES, [])


def test_memory_that_the_system_refuses_ends_the_try_and_keeps_nothing(loop: Loop) -> None:
    local_stream = Desk(loop).open()
    local_stream.pieces = 1
    peer = local_stream.come(batch_size=50)
    local_stream.until(lambda: peer.heard)
    assert (peer.last().error, peer.session) == ("RefusedError", None)
    assert "could not be reserved: No space left" in peer.last().text
    assert (
        local_stream.segments.live_bytes,
        local_stream.registry.sessions,
        local_stream.events,
    ) == (0, {}, [])
    local_stream.control.drop(peer)
    assert local_stream.emptied == 0  # there was no session


def test_memory_promised_to_others_and_not_yet_taken_is_not_promised_again(loop: Loop) -> None:
    local_stream = Desk(loop, room=SESSION_BYTES * 3 // 2).open()
    first = local_stream.come()
    assert not first.heard  # on its way
    second = local_stream.come()
    assert second.last().error == "RefusedError"
    assert "the machine" in second.last().text
    local_stream.until(lambda: first.heard)
    assert isinstance(first.last(), Welcome)


def test_there_are_as_many_sessions_as_descriptors_suffice_for_and_no_more(loop: Loop) -> None:
    local_stream = Desk(loop, most=2).open()
    first, second = local_stream.welcomed(), local_stream.welcomed()
    third = local_stream.come()
    assert third.last().error == "RefusedError"
    assert "2 sessions are open, which is all that RLIMIT_NOFILE allows" in third.last().text
    local_stream.control.drop(first)
    local_stream.welcomed()
    assert (len(local_stream.registry.sessions), local_stream.emptied) == (2, 0)
    local_stream.control.drop(second)
    assert local_stream.emptied == 0


def test_without_descriptors_who_is_new_is_refused_and_who_comes_again_may_try_again(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_stream = Desk(loop).open()
    facts = local_stream.welcomed().last().order
    monkeypatch.setattr(module.file_limits, "shortage", lambda count: "too few descriptors")
    new, again = local_stream.come(), local_stream.come(order=facts)
    assert new.last() == Rejected("RefusedError", "too few descriptors")
    assert (again.heard, again.ended) == ([], True)
    monkeypatch.undo()
    local_stream.welcomed(order=facts)


def test_who_waits_for_the_start_is_admitted_in_the_end_and_who_has_left_is_not(loop: Loop) -> None:
    local_stream = Desk(loop)
    stays, leaves = local_stream.come(), local_stream.come()
    assert [peer.last() for peer in (stays, leaves)] == [Starting("starting")] * 2
    local_stream.control.drop(leaves)
    local_stream.open()
    local_stream.until(lambda: isinstance(stays.last(), Welcome))
    assert len(local_stream.of(Attach)) == 1
    assert local_stream.segments.live_bytes == SESSION_BYTES
    assert len(leaves.heard) == 1


def test_nothing_wakes_the_loop_once_nobody_waits_for_the_start(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_clients, "STARTING_S", 0.01)
    local_stream = Desk(loop)
    first, second = local_stream.come(), local_stream.come()
    local_stream.control.drop(first)
    local_stream.until(lambda: len(second.heard) > 2)
    assert len(first.heard) == 1
    local_stream.control.drop(second)
    assert loop._sleep_s(None) is None


def test_a_stream_is_asked_for_and_its_clients_wait_while_others_are_served(loop: Loop) -> None:
    local_stream = Desk(loop).open()
    waits, unknown, served = (
        local_stream.come(stream="val"),
        local_stream.come(stream="vall"),
        local_stream.welcomed(),
    )
    assert local_stream.wanted == ["val"]
    other = local_stream.come(stream="test")
    assert (type(waits.last()), type(unknown.last()), type(served.last())) == (
        Starting,
        Rejected,
        Welcome,
    )
    local_stream.admission.not_opened("val", StreamFailedError("it is broken"))
    assert waits.last() == Rejected("StreamFailedError", "it is broken")
    again = local_stream.come(stream="val")
    assert local_stream.wanted == ["val", "test", "val"]
    local_stream.streams["val"] = OpenedStream(replace(PLAN, name="val"), FACTS)
    local_stream.admission.opened("val")
    local_stream.until(lambda: isinstance(again.last(), Welcome))
    assert other.heard == [Starting("starting")]


def test_one_stream_that_has_ended_refuses_its_own_clients_alone(loop: Loop) -> None:
    local_stream = Desk(loop)
    local_stream.admission.open(
        {"train": STREAM, "val": OpenedStream(replace(PLAN, name="val"), FACTS)}
    )
    local_stream.admission.stream_broken(
        StreamBroken("train", "StreamFailedError", "no good sample")
    )
    refused = local_stream.come()
    assert refused.last() == Rejected("StreamFailedError", "no good sample")
    assert not local_stream.admission.all_broken
    local_stream.welcomed(stream="val")
    local_stream.admission.stream_broken(StreamBroken("val", "StreamFailedError", "no workers"))
    local_stream.admission.stream_broken(StreamBroken("test", "StreamFailedError", "no workers"))
    assert local_stream.admission.all_broken
    assert any(
        "stream 'train' has ended: StreamFailedError: no good sample" in line
        for line in local_stream.lines
    )


def test_at_the_end_who_has_a_session_is_told_and_everybody_else_sees_eof(loop: Loop) -> None:
    local_stream = Desk(loop).open()
    served, reserving, waiting = (
        local_stream.welcomed(),
        local_stream.come(batch_size=50),
        local_stream.come(stream="val"),
    )
    local_stream.admission.close()
    local_stream.registry.close("drained")
    assert served.last() == Bye("drained")
    assert (served.ended, reserving.ended, waiting.ended) == (False, True, True)
    assert local_stream.segments.live_bytes == SESSION_BYTES


def test_a_refusal_that_quotes_much_is_cut_and_said_once(loop: Loop) -> None:
    local_stream = Desk(loop).open()
    peers = [local_stream.come(fields=("x" * 100_000,)) for _ in range(5)]
    assert all(len(peer.last().text) <= module.MAX_REFUSAL + 10 for peer in peers)
    assert len([line for line in local_stream.lines if "refused" in line]) == 1


CODED = OpenedStream(PLAN, replace(FACTS, code=(Module("a.py", 1, 2, "x"),)))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["a.py"], "a.py was edited after its import: "),
        (["a.py", "b.py"], "a.py, b.py were edited after their import: "),
        ([f"{n}.py" for n in range(5)], "0.py, 1.py, 2.py, 3.py, 4.py were edited"),
        ([f"{n}.py" for n in range(7)], "0.py, 1.py, 2.py, 3.py, 4.py and 2 more were edited"),
    ],
)
def test_who_comes_is_warned_of_code_that_was_edited_if_its_stream_has_any(
    loop: Loop, files: list[str], words: str
) -> None:
    local_stream = Desk(loop).open()
    local_stream.streams["val"] = CODED
    local_stream.pool.files = files
    assert local_stream.welcomed().last().warnings == ()
    (told,) = local_stream.welcomed(stream="val").last().warnings
    assert told.startswith(words)
    assert "this daemon keeps the old code (`loaderd drain SOCKET` ends it)" in told


def test_an_embedded_daemon_with_old_code_leaves_for_another_one_if_nobody_uses_it(
    loop: Loop, tmp_path: Path
) -> None:
    config = str(tmp_path / "config.toml")
    local_stream = Desk(loop, config=config).open()
    local_stream.streams["train"] = CODED
    user = local_stream.welcomed(config=config)
    local_stream.pool.files = ["a.py"]
    (told,) = local_stream.welcomed(config=config).last().warnings
    assert "other sessions use this daemon, so it keeps the old code" in told
    for pending in tuple(local_stream.registry.sessions.values()):
        local_stream.control.drop(pending.peer)  # type: ignore[arg-type]
    assert user.ended
    assert local_stream.come(config=config).ended
    assert local_stream.outdated == ["a.py was edited after its import"]


def test_an_embedded_daemon_whose_config_was_written_to_leaves_for_another_one(
    loop: Loop, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text("old")
    local_stream = Desk(loop, config=str(config)).open()
    user = local_stream.welcomed(config=str(config))
    config.write_text("new")
    other = local_stream.welcomed(config=str(config))
    assert local_stream.outdated == []
    for peer in (user, other):
        local_stream.control.drop(peer)
    local_stream.welcomed()  # by the socket's name, and so whatever the config says
    local_stream.control.drop(next(iter(local_stream.registry.sessions.values())).peer)  # type: ignore[arg-type]
    assert local_stream.come(config=str(config)).ended
    assert local_stream.outdated == ["the config file has changed"]


def test_a_stream_that_ends_is_logged_and_all_are_broken_only_when_each_has_ended(
    loop: Loop,
) -> None:
    local_stream = Desk(loop).open()
    for name in ("train", "val"):
        local_stream.admission.stream_broken(StreamBroken(name, "StreamFailedError", "too many"))
        assert not local_stream.admission.all_broken
    local_stream.admission.stream_broken(StreamBroken("test", "StreamFailedError", "too many"))
    assert local_stream.admission.all_broken
    assert local_stream.lines == [
        f"stream {name!r} has ended: StreamFailedError: too many"
        for name in ("train", "val", "test")
    ]
