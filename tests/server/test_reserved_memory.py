"""Sessions that share their batches get one memory between them, whoever of them comes and goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from loaderd.core.actions import FreeSegment, GrowSegment
from loaderd.core.events import Attach, Detach, SegmentGrown
from loaderd.server.admission import OpenedStream, sized
from loaderd.system import memfd
from loaderd.system.loop import Loop
from loaderd_wire.messages import SHARES, Segment, Starting, Welcome
from server.test_admission import FACTS, HELLO, PLAN
from server.test_sessions import Desk, FakePeer

SHARED = {"shared": "yes", "batch_size": 50}
SLOTS = 8 + 4 + 2  # the window, the prefetch of HELLO, and two to spare
GROUP_BYTES = SLOTS * sized(OpenedStream(PLAN, FACTS), FACTS.specs, 50, SLOTS, 1).slot_bytes


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    monkeypatch.setattr(memfd, "PIECE_BYTES", 4096)  # every reservation takes several turns
    with Loop() as made:
        yield made
    for desk in Desk.all:
        desk.segments.close()
    Desk.all.clear()


def group(desk: Desk, *peers: FakePeer) -> tuple[list[Attach], int]:
    """What the scheduler was told of these, and the number of their group."""
    desk.until(lambda: all(isinstance(peer.last(), Welcome) for peer in peers))
    attached = [event for event in desk.of(Attach) if event.session in {p.session for p in peers}]
    (number,) = {event.group for event in attached}
    return attached, number


def test_those_who_ask_for_the_same_get_one_memory_and_others_their_own(loop: Loop) -> None:
    desk = Desk(loop).open()
    one, two = desk.welcomed(**SHARED), desk.come(**SHARED, prefetch=2)
    attached, number = group(desk, one, two)  # the second one at once: there is nothing to reserve
    assert desk.segments.live_bytes == GROUP_BYTES
    assert number not in (0, one.session, two.session)
    assert {event.segment for event in attached} == {one.last().segment} == {two.last().segment}
    assert [(event.prefetch, event.share_window) for event in attached] == [(4, 8), (2, 8)]
    assert one.last().shared
    assert one.last().segment.slots == SLOTS
    for other in (
        {"shared": "no"}, {"shared": ""}, {"protocol": SHARES - 1}, {"seed": 9}, {"batch_size": 49},
        {"fields": ("x",)}, {"drop_last": True}, {"world_size": 2}, {"world_size": 2, "rank": 1},
    ):  # fmt: skip
        alone = desk.welcomed(**{**SHARED, **other})
        assert alone.last().segment.segment != one.last().segment.segment, other
        assert alone.last().shared == ("shared" not in other and "protocol" not in other)


def test_one_that_looks_further_ahead_than_there_are_slots_gets_its_own(loop: Loop) -> None:
    desk = Desk(loop).open()
    one = desk.welcomed(**SHARED)
    most = desk.welcomed(**SHARED, prefetch=SLOTS - 2)
    assert most.last().segment.segment == one.last().segment.segment
    more = desk.welcomed(**SHARED, prefetch=SLOTS - 1)
    assert more.last().segment.segment != one.last().segment.segment
    (text,) = more.last().warnings
    assert f"{SLOTS} slots, too few for prefetch = {SLOTS - 1}; give them the same prefe" in text
    assert one.last().warnings == most.last().warnings == ()


def test_who_would_find_no_slot_if_the_others_stopped_gets_memory_of_its_own(loop: Loop) -> None:
    desk = Desk(loop, memory=2 * GROUP_BYTES).open()
    same = [desk.welcomed(**SHARED).last().segment.segment for _ in range(SLOTS - 1)]
    assert len(set(same)) == 1
    alone = desk.welcomed(**SHARED)
    assert alone.last().segment.segment not in same
    (text,) = alone.last().warnings
    assert f"have {SLOTS} slots for {SLOTS - 1} trainers, and there is no memory for more" in text


def test_where_there_is_memory_for_more_slots_any_number_may_come_at_once(loop: Loop) -> None:
    desk = Desk(loop).open()
    peers = [desk.come(**SHARED) for _ in range(SLOTS + 3)]
    group(desk, *peers)  # it is one
    assert desk.segments.live_bytes == GROUP_BYTES


def test_the_stream_decides_where_the_client_does_not(loop: Loop) -> None:
    desk = Desk(loop).open()
    shares = replace(PLAN, share=True, share_window=3)
    desk.streams["train"] = OpenedStream(shares, FACTS)
    one, two, other = (desk.welcomed(shared=word) for word in ("", "yes", "no"))
    assert group(desk, one, two)[0][1].share_window == 3
    assert one.last().segment.slots == 3 + 4 + 2
    assert not other.last().shared


def test_who_comes_while_the_memory_is_reserved_waits_for_it_though_the_first_leaves(
    loop: Loop,
) -> None:
    desk = Desk(loop).open()
    first, second, third = (desk.come(**SHARED) for _ in range(3))
    assert desk.segments.live_bytes == GROUP_BYTES
    desk.control.drop(first)
    assert desk.segments.live_bytes == GROUP_BYTES
    attached, _ = group(desk, second, third)
    assert len(attached) == len(desk.of(Attach)) == 2
    assert desk.of(Detach) == []


def test_the_last_one_who_leaves_before_the_memory_is_there_gives_it_back(loop: Loop) -> None:
    desk = Desk(loop).open()
    for peer in [desk.come(**SHARED) for _ in range(3)]:
        assert desk.segments.live_bytes == GROUP_BYTES
        desk.control.drop(peer)
    assert (desk.segments.live_bytes, desk.registry.memories, desk.emptied) == (0, {}, 1)


def test_memory_that_cannot_be_reserved_refuses_all_who_wait(loop: Loop) -> None:
    desk = Desk(loop).open()
    desk.pieces = 1
    peers = [desk.come(**SHARED) for _ in range(3)]
    desk.until(lambda: peers[2].heard)
    for peer in peers:
        assert "could not be reserved: No space left" in peer.last().text
        assert peer.session is None
    assert (desk.segments.live_bytes, desk.registry.sessions, desk.registry.memories) == (0, {}, {})
    desk.pieces = 100
    desk.welcomed(**SHARED)


def test_one_who_leaves_gives_back_nothing_and_the_last_one_leaves_it_to_the_scheduler(
    loop: Loop,
) -> None:
    desk = Desk(loop).open()
    peers = [desk.welcomed(**SHARED) for _ in range(2)]
    attached, number = group(desk, *peers)
    for peer in peers:
        desk.control.drop(peer)
        assert desk.segments.live_bytes == GROUP_BYTES
    assert desk.of(Detach) == [Detach(event.session) for event in attached]
    again = desk.welcomed(**SHARED)  # while the scheduler still has jobs in the old segment
    assert group(desk, again)[1] != number
    desk.registry.drop(FreeSegment(number, attached[0].segment.segment))
    assert desk.segments.live_bytes == GROUP_BYTES


def test_one_found_gone_when_it_is_welcomed_is_not_known_to_the_scheduler(loop: Loop) -> None:
    desk = Desk(loop).open()
    deaf, other = desk.come(**SHARED), desk.come(**SHARED)
    desk.control.deaf.add(deaf)
    (event,), number = group(desk, other)
    assert (desk.of(Attach), desk.of(Detach)) == ([event], [])
    desk.control.deaf.add(other)
    desk.control.drop(other)
    late = FakePeer(9)
    desk.control.deaf.add(late)
    desk.admission.hello(late, replace(HELLO, **SHARED))  # type: ignore[arg-type]
    desk.until(lambda: late.ended)
    desk.registry.drop(FreeSegment(number, event.segment.segment))
    assert (desk.segments.live_bytes, desk.registry.memories, desk.pool.segments) == (0, {}, {})


def test_a_larger_segment_goes_to_all_before_the_scheduler_hears_and_to_those_who_come(
    loop: Loop,
) -> None:
    desk = Desk(loop).open()
    one, two = desk.welcomed(**SHARED), desk.welcomed(**SHARED)
    (first, _), number = group(desk, one, two)
    desk.registry.grow(GrowSegment(number, SLOTS + 4, 4096, 0))
    between = desk.welcomed(**SHARED)
    assert between.last().segment == first.segment
    desk.control.drop(two)
    told: list[Any] = []
    desk.registry._step = lambda event: told.append((event, one.last(), between.last()))
    desk.until(lambda: told)
    larger = one.last()
    assert isinstance(larger, Segment)
    assert (larger.slots, larger.tail_row_bytes) == (SLOTS + 4, 4096)
    assert told == [(SegmentGrown(number, larger), larger, larger)]
    late = desk.come(**SHARED)
    assert late.last().segment == larger
    assert told[1][0].segment == larger


def test_who_joins_needs_no_memory_though_there_is_no_more(loop: Loop) -> None:
    desk = Desk(loop, memory=GROUP_BYTES + 1).open()
    desk.welcomed(**SHARED)
    desk.welcomed(**SHARED)
    refused = desk.come(**SHARED, seed=5).last()
    assert "lower share_window, prefetch or batch_size" in refused.text


def test_who_joins_is_told_to_wait_only_while_there_is_something_to_wait_for(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loaderd.server.admission_control.LONG_RESERVATION", 0)
    desk = Desk(loop).open()
    one, two = desk.come(**SHARED), desk.come(**SHARED)
    assert [type(peer.heard[0]) for peer in (one, two)] == [Starting, Starting]
    desk.until(lambda: isinstance(two.last(), Welcome))
    assert [type(said) for said in desk.come(**SHARED).heard] == [Welcome]


def test_who_shares_with_nobody_is_told_why_once(loop: Loop) -> None:
    desk = Desk(loop).open()
    one, other = desk.welcomed(**SHARED), desk.welcomed(**SHARED, seed=9)
    again, alone = desk.welcomed(**SHARED, seed=9), desk.welcomed(seed=7)
    (text,) = other.last().warnings
    assert "this trainer has seed = 9, another one has seed = 0" in text
    assert [text in desk.lines, desk.lines.count(text)] == [True, 1]
    assert [peer.last().warnings for peer in (one, again, alone)] == [(), (), ()]
