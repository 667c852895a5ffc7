"""Segments have a ceiling together, and no number twice."""

from __future__ import annotations

from loaderd.server.segment_budget import SegmentBudget
from loaderd.system.loop import Loop
from loaderd.system.memfd import SegmentStore
from loaderd.system.resource_limits import Room
from loaderd_wire.messages import Segment

SEGMENT = Segment(1, 4, 4096, 0, 0)


def budget(loop: Loop, *, memory: int = 1 << 20, room: int = 1 << 30) -> SegmentBudget:
    return SegmentBudget(
        SegmentStore(loop),
        memory=memory,
        rooms=lambda: [Room("the machine", room, room, "its memory")],
    )


def test_no_number_is_used_twice() -> None:
    with Loop() as loop:
        one = budget(loop)
        assert [one.number(), one.number(), one.last_segment] == [1, 2, 2]


def test_a_segment_that_fits_is_not_refused() -> None:
    with Loop() as loop:
        assert not budget(loop).shortage("stream 'a'", SEGMENT, 0)


def test_a_segment_over_the_ceiling_is_refused_with_what_needs_it() -> None:
    with Loop() as loop:
        text = budget(loop, memory=8192).shortage("stream 'a'", SEGMENT, 0)
        assert text is not None
        assert "stream 'a' (4 slots of 4096 bytes)" in text


def test_what_a_client_holds_of_a_former_daemon_counts() -> None:
    with Loop() as loop:
        assert budget(loop, memory=16384).shortage("stream 'a'", SEGMENT, 8192)


def test_the_limits_of_the_system_count_beside_the_ceiling() -> None:
    with Loop() as loop:
        text = budget(loop, room=4096).shortage("stream 'a'", SEGMENT, 0)
        assert text is not None
        assert "the machine" in text
