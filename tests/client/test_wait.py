from __future__ import annotations

from loaderd_client.wait import BatchWait, Wait, WaitFlags, WaitLimits

LIMITS = WaitLimits(timeout_s=300, reconnect_s=60, stall_warning_s=10)


def test_pings_are_due_once_a_second() -> None:
    wait = Wait(100.0, LIMITS)
    due = []
    for tick in range(1, 101):
        wait.turn(100.0 + tick / 10)
        due.append(wait.ping_due())
    assert 9 <= sum(due) <= 10
    assert not any(due[:9])


def test_a_short_limit_is_pinged_for_before_its_line_is_due() -> None:
    wait = Wait(0.0, WaitLimits(timeout_s=5, reconnect_s=60, stall_warning_s=0.5))
    wait.turn(0.25)
    assert wait.ping_due()
    assert not wait.warning_due()


def test_warnings_come_at_the_limit_and_each_time_the_wait_has_doubled() -> None:
    wait = Wait(0.0, LIMITS)
    warned = []
    for second in range(1, 300):
        wait.turn(float(second))
        if wait.warning_due():
            warned.append(second)
    assert warned == [10, 20, 40, 80, 160]


def test_time_in_which_this_process_was_stopped_does_not_count() -> None:
    wait = Wait(0.0, LIMITS)
    wait.turn(1.0)
    wait.turn(10_000.0)
    assert not wait.over(300)
    assert wait.waited_s == 3.0


def test_a_clock_that_jumps_back_changes_nothing() -> None:
    wait = Wait(100.0, LIMITS)
    wait.turn(1.0)
    assert wait.waited_s == 0.0


def test_silence_needs_an_unanswered_ping() -> None:
    wait = Wait(0.0, LIMITS)
    wait.turn(2.0)
    wait.turn(3.0)
    assert not wait.silent
    assert wait.ping_due()
    assert wait.silent
    wait.heard()
    assert not wait.silent


def test_no_pause_is_longer_than_a_second_or_ends_after_the_next_thing_due() -> None:
    wait = Wait(0.0, WaitLimits(timeout_s=0.5, reconnect_s=1, stall_warning_s=0.25))
    assert 0 < wait.pause_s(0.5) <= 0.25
    wait.turn(0.3)
    assert wait.warning_due()
    assert 0 < wait.pause_s(0.5) <= 0.2 + 1e-9


def test_a_wait_is_closing_while_there_is_time_to_be_told_more() -> None:
    for timeout_s, closing_s in ((300.0, 297.0), (6.0, 3.0), (1.0, 0.5)):
        limits = WaitLimits(timeout_s=timeout_s, reconnect_s=60, stall_warning_s=10)
        wait = Wait(0.0, limits)
        pings = 0
        while not wait.over(timeout_s):
            assert wait.closing == (wait.waited_s >= closing_s)
            pings += wait.ping_due() and wait.closing
            wait.turn(wait.waited_s + wait.pause_s(timeout_s))
        assert pings >= 2  # one to ask, one to hear


def test_a_session_that_has_said_nothing_asks_at_once_and_another_only_after_a_short_wait() -> None:
    asked = WaitFlags(ping=False, stacks=False)
    assert BatchWait(0.0, LIMITS, told=False).message_due(dirty=True) == asked
    wait = BatchWait(0.0, LIMITS, told=True)
    assert wait.message_due(dirty=True) is None
    wait.turn(wait.pause_s(300))
    assert wait.message_due(dirty=False) == asked
    assert wait.message_due(dirty=False) is None
    assert wait.message_due(dirty=True) == asked


def test_what_is_due_to_be_said_is_said_by_the_ping_and_at_the_end_asks_for_stacks() -> None:
    wait = BatchWait(0.0, LIMITS, told=True)
    asked = []
    while not wait.over(300):
        wait.turn(wait.waited_s + wait.pause_s(300))
        if (flags := wait.message_due(dirty=False)) is not None:
            asked.append((round(wait.waited_s, 2), flags.ping, flags.stacks))
    assert asked[:3] == [(0.02, False, False), (1.0, True, False), (2.0, True, False)]
    assert [round(second) for second, _, stacks in asked if stacks] == [297, 298, 299]
