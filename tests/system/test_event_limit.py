"""A flood of lines of one kind leaves room for the others, and is counted."""

from __future__ import annotations

from loaderd.system.event_limit import BURST, WINDOW_S, EventLimit


def test_a_flood_of_one_event_is_cut_and_others_pass() -> None:
    limit = EventLimit()
    passed = [limit.passes("bad_sample", 5.0) for _ in range(BURST + 30)]
    assert passed == [True] * BURST + [False] * 30
    assert limit.passes("worker_ended", 5.0)


def test_what_was_left_out_is_told_once_the_window_is_over() -> None:
    limit = EventLimit()
    for _ in range(BURST + 30):
        limit.passes("bad_sample", 5.0)
    limit.passes("worker_ended", 5.0)
    assert limit.over(5.0 + WINDOW_S / 2) == []
    assert limit.over(5.0 + WINDOW_S) == [("bad_sample", 30)]
    assert limit.over(5.0 + WINDOW_S) == []
    assert limit.passes("bad_sample", 5.0 + WINDOW_S)


def test_lines_that_come_slowly_are_never_cut() -> None:
    limit = EventLimit()
    every_s = 1.01 * WINDOW_S / BURST
    assert [limit.passes("bad_sample", n * every_s) for n in range(5 * BURST)] == [True] * 5 * BURST
