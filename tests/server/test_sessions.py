"""Clients as they come and go, with real memory and a loop that a test turns: whatever they do, nothing of theirs is kept."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from loaderd.core.actions import Drop, Grow, StreamBroken
from loaderd.core.events import Attach, Detach, Event, Grown, NotGrown
from loaderd.server import sessions as module
from loaderd.server.admission import Stream, sized
from loaderd.server.sessions import Reception
from loaderd.system import memfd
from loaderd.system.loop import Loop
from loaderd.system.memfd import Segments
from loaderd.system.peer_credentials import Cred
from loaderd.system.resource_limits import Room
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_wire.errors import StreamFailed
from loaderd_wire.messages import Bye, Rejected, Segment, Starting, Welcome
from server.test_admission import FACTS, HELLO, PLAN

STREAM = Stream(PLAN, FACTS)
SESSION_BYTES = 6 * sized(STREAM, FACTS.specs, 1, 6, 1).slot_bytes  # of a client as HELLO is


class FakePeer:
    """A connection as the reception sees it; `heard`: what was sent to it."""

    def __init__(self, pid: int) -> None:
        self.cred = Cred(pid, 1000)
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

    def add_segment(self, segment: Segment, stream: str, fields: Any, rows: int, fd: int) -> None:
        self.segments[segment.segment] = fd

    def drop_segment(self, segment: int, done: Callable[[], object]) -> None:
        del self.segments[segment]
        done()

    def edited(self) -> list[str]:
        return []


class Desk:
    """A reception and all that it speaks with. all: of a test, whose memory is given back at its end."""

    all: ClassVar[list[Desk]] = []

    def __init__(self, loop: Loop, *, memory: int = 1 << 30, most: int = 100, room: int = 1 << 40) -> None:
        self.all.append(self)
        self.loop = loop
        self.pieces = 1 << 30  # that the system has
        self.lines: list[str] = []
        self.events: list[Event] = []
        self.wanted: list[str] = []
        self.emptied = 0
        self.segments = Segments(loop, allocate=self.allocate)
        self.reception = Reception(
            loop, self.segments, config_path="", names=["train", "val", "test"], wanted=self.wanted.append, life="life", memory=memory, most=most,
            step=self.events.append, emptied=self.empty, outdated=None, log=lambda level, text: self.lines.append(text),
            rooms=lambda: [Room("the machine", room, room, "its memory")],
        )  # fmt: skip
        self.control, self.messages, self.pool = FakeControl(), FakeMessages(), FakePool()
        self.control.gone = self.reception.gone  # type: ignore[assignment]
        self.reception.control, self.reception.messages, self.reception.pool = self.control, self.messages, self.pool  # type: ignore[assignment]
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
        self.reception.open(self.streams)
        return self

    def come(self, **changes: Any) -> FakePeer:
        self.peers += 1
        peer = FakePeer(self.peers)
        self.reception.hello(peer, replace(HELLO, **changes))  # type: ignore[arg-type]
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
    for desk in Desk.all:
        desk.segments.close()
    Desk.all.clear()


def test_a_client_that_leaves_while_its_memory_is_reserved_leaves_nothing(loop: Loop) -> None:
    desk = Desk(loop).open()
    peer = desk.come(batch_size=50)
    assert desk.segments.live_bytes > 4096
    desk.control.drop(peer)
    assert (desk.segments.live_bytes, desk.reception.guests, desk.messages.tokens, desk.emptied) == (0, {}, {}, 1)
    for _ in range(20):
        loop.turn(0)
    assert (desk.events, desk.pool.segments, desk.emptied) == ([], {}, 1)


def test_a_client_that_leaves_while_its_segment_grows_leaves_nothing(loop: Loop) -> None:
    desk = Desk(loop).open()
    peer = desk.welcomed()
    (attach,) = desk.of(Attach)
    desk.reception.grow(Grow(attach.session, 6, 4096, 0))
    assert desk.segments.live_bytes > SESSION_BYTES
    desk.control.drop(peer)
    assert desk.segments.live_bytes == SESSION_BYTES  # which the scheduler drops once nobody writes it
    assert desk.of(Detach) == [Detach(attach.session)]
    assert desk.messages.tokens == {}
    desk.reception.drop(Drop(attach.session, attach.segment.segment))
    assert (desk.segments.live_bytes, desk.pool.segments) == (0, {})
    for _ in range(20):
        loop.turn(0)
    assert desk.of(Grown) == []


def test_a_client_found_gone_when_it_is_told_to_wait_for_its_memory_gets_none(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONG_RESERVATION", 0)
    desk = Desk(loop).open()
    assert isinstance(desk.come().heard[0], Starting)
    deaf = FakePeer(9)
    desk.control.deaf.add(deaf)
    desk.reception.hello(deaf, HELLO)  # type: ignore[arg-type]
    assert deaf.ended
    desk.until(lambda: desk.of(Attach))
    for _ in range(20):
        loop.turn(0)
    assert len(desk.of(Attach)) == len(desk.reception.guests) == len(desk.messages.tokens) == 1
    assert desk.segments.live_bytes == SESSION_BYTES


def test_a_larger_segment_goes_to_workers_client_and_scheduler_and_is_counted(loop: Loop) -> None:
    desk = Desk(loop).open()
    peer = desk.welcomed()
    (attach,) = desk.of(Attach)
    desk.reception.grow(Grow(attach.session, 6, 4096, 0))
    desk.until(lambda: desk.of(Grown))
    larger = desk.of(Grown)[0].segment
    assert larger.tail_row_bytes == 4096
    assert peer.last() == larger
    assert set(desk.pool.segments) == {attach.segment.segment, larger.segment}
    assert desk.segments.live_bytes == SESSION_BYTES + larger.slots * larger.slot_bytes
    desk.control.drop(peer)
    assert desk.segments.live_bytes > SESSION_BYTES  # it is the scheduler's to drop now


def test_a_larger_segment_that_the_system_refuses_is_told_with_its_size(loop: Loop) -> None:
    desk = Desk(loop).open()
    peer = desk.welcomed()
    desk.pieces = 1
    desk.reception.grow(Grow(desk.of(Attach)[0].session, 6, 4096, 0))
    desk.until(lambda: desk.of(NotGrown))
    assert "could not be reserved: No space left" in desk.of(NotGrown)[0].text
    assert desk.segments.live_bytes == SESSION_BYTES
    desk.control.drop(peer)
    assert desk.segments.live_bytes == SESSION_BYTES


def test_a_larger_segment_beyond_the_ceiling_is_not_begun(loop: Loop) -> None:
    desk = Desk(loop, memory=SESSION_BYTES + 1000).open()
    desk.welcomed()
    desk.reception.grow(Grow(desk.of(Attach)[0].session, 6, 4096, 0))
    assert "[daemon] memory" in desk.of(NotGrown)[0].text
    assert desk.segments.live_bytes == SESSION_BYTES


def test_growth_for_a_session_that_has_just_ended_is_nobodys(loop: Loop) -> None:
    desk = Desk(loop).open()
    peer = desk.welcomed()
    desk.control.drop(peer)
    desk.reception.grow(Grow(desk.of(Attach)[0].session, 6, 4096, 0))
    assert (desk.segments.live_bytes, desk.of(NotGrown)) == (SESSION_BYTES, [])


def test_memory_that_the_system_refuses_ends_the_try_and_keeps_nothing(loop: Loop) -> None:
    desk = Desk(loop).open()
    desk.pieces = 1
    peer = desk.come(batch_size=50)
    desk.until(lambda: peer.heard)
    assert (peer.last().error, peer.session) == ("Refused", None)
    assert "could not be reserved: No space left" in peer.last().text
    assert (desk.segments.live_bytes, desk.reception.guests, desk.events) == (0, {}, [])
    desk.control.drop(peer)
    assert desk.emptied == 0  # there was no session


def test_memory_promised_to_others_and_not_yet_taken_is_not_promised_again(loop: Loop) -> None:
    desk = Desk(loop, room=SESSION_BYTES * 3 // 2).open()
    first = desk.come()
    assert not first.heard  # on its way
    second = desk.come()
    assert second.last().error == "Refused"
    assert "the machine" in second.last().text
    desk.until(lambda: first.heard)
    assert isinstance(first.last(), Welcome)


def test_there_are_as_many_sessions_as_descriptors_suffice_for_and_no_more(loop: Loop) -> None:
    desk = Desk(loop, most=2).open()
    first, second = desk.welcomed(), desk.welcomed()
    third = desk.come()
    assert third.last().error == "Refused"
    assert "2 sessions are all that RLIMIT_NOFILE leaves room for" in third.last().text
    desk.control.drop(first)
    desk.welcomed()
    assert (len(desk.reception.guests), desk.emptied) == (2, 0)
    desk.control.drop(second)
    assert desk.emptied == 0


def test_without_descriptors_who_is_new_is_refused_and_who_comes_again_may_try_again(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(loop).open()
    facts = desk.welcomed().last().order
    monkeypatch.setattr(module.descriptors, "shortage", lambda count: "too few descriptors")
    new, again = desk.come(), desk.come(order=facts)
    assert new.last() == Rejected("Refused", "too few descriptors")
    assert (again.heard, again.ended) == ([], True)
    monkeypatch.undo()
    desk.welcomed(order=facts)


def test_who_waits_for_the_start_is_admitted_in_the_end_and_who_has_left_is_not(loop: Loop) -> None:
    desk = Desk(loop)
    stays, leaves = desk.come(), desk.come()
    assert [peer.last() for peer in (stays, leaves)] == [Starting("starting")] * 2
    desk.control.drop(leaves)
    desk.open()
    desk.until(lambda: isinstance(stays.last(), Welcome))
    assert len(desk.of(Attach)) == 1
    assert desk.segments.live_bytes == SESSION_BYTES
    assert len(leaves.heard) == 1


def test_nothing_wakes_the_loop_once_nobody_waits_for_the_start(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STARTING_S", 0.01)
    desk = Desk(loop)
    first, second = desk.come(), desk.come()
    desk.control.drop(first)
    desk.until(lambda: len(second.heard) > 2)
    assert len(first.heard) == 1
    desk.control.drop(second)
    assert loop._sleep_s(None) is None


def test_a_stream_is_asked_for_and_its_clients_wait_while_others_are_served(loop: Loop) -> None:
    desk = Desk(loop).open()
    waits, unknown, served = desk.come(stream="val"), desk.come(stream="vall"), desk.welcomed()
    assert desk.wanted == ["val"]
    other = desk.come(stream="test")
    assert (type(waits.last()), type(unknown.last()), type(served.last())) == (Starting, Rejected, Welcome)
    desk.reception.not_opened("val", StreamFailed("it is broken"))
    assert waits.last() == Rejected("StreamFailed", "it is broken")
    again = desk.come(stream="val")
    assert desk.wanted == ["val", "test", "val"]
    desk.streams["val"] = Stream(replace(PLAN, name="val"), FACTS)
    desk.reception.opened("val")
    desk.until(lambda: isinstance(again.last(), Welcome))
    assert other.heard == [Starting("starting")]


def test_one_stream_that_has_ended_refuses_its_own_clients_alone(loop: Loop) -> None:
    desk = Desk(loop)
    desk.reception.open({"train": STREAM, "val": Stream(replace(PLAN, name="val"), FACTS)})
    desk.reception.stream_broken(StreamBroken("train", "StreamFailed", "no good sample"))
    refused = desk.come()
    assert refused.last() == Rejected("StreamFailed", "no good sample")
    assert not desk.reception.all_broken
    desk.welcomed(stream="val")
    desk.reception.stream_broken(StreamBroken("val", "StreamFailed", "no workers"))
    desk.reception.stream_broken(StreamBroken("test", "StreamFailed", "no workers"))
    assert desk.reception.all_broken
    assert any("stream 'train' has ended: StreamFailed: no good sample" in line for line in desk.lines)


def test_at_the_end_who_has_a_session_is_told_and_everybody_else_sees_eof(loop: Loop) -> None:
    desk = Desk(loop).open()
    served, reserving, waiting = desk.welcomed(), desk.come(batch_size=50), desk.come(stream="val")
    desk.reception.close("drained")
    assert served.last() == Bye("drained")
    assert (served.ended, reserving.ended, waiting.ended) == (False, True, True)
    assert desk.segments.live_bytes == SESSION_BYTES


def test_a_refusal_that_quotes_much_is_cut_and_said_once(loop: Loop) -> None:
    desk = Desk(loop).open()
    peers = [desk.come(fields=("x" * 100_000,)) for _ in range(5)]
    assert all(len(peer.last().text) <= module.MAX_REFUSAL + 10 for peer in peers)
    assert len([line for line in desk.lines if "refused" in line]) == 1
