from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable

import pytest

from loaderd.system.clock import Clock
from loaderd.system.loop import Loop


class World:
    """A wall clock that only a test moves."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def test_a_clock_that_was_stopped_for_an_hour_advances_by_one_second() -> None:
    world = World()
    clock = Clock(world)
    world.s += 0.25
    assert clock.tick() == 100.25
    world.s += 3600
    assert clock.tick() == 101.25
    assert clock.lost_s == pytest.approx(3599)


def test_a_sleep_that_was_asked_for_counts_in_full() -> None:
    world = World()
    clock = Clock(world)
    world.s += 30
    assert clock.tick(30.0) == 130.0
    assert clock.lost_s == 0


def test_a_clock_never_runs_backwards() -> None:
    world = World()
    clock = Clock(world)
    world.s -= 50
    assert clock.tick() == 100.0


def test_timers_come_in_their_order_and_not_too_early(loop: Loop) -> None:
    came: list[str] = []
    loop.later(0.02, lambda: came.append("b"))
    loop.later(0.01, lambda: came.append("a"))
    loop.later(0.03, loop.stop)
    begin_s = loop.now_s()
    loop.run()
    assert came == ["a", "b"]
    assert loop.now_s() - begin_s >= 0.03


def test_a_cancelled_timer_is_never_called(loop: Loop) -> None:
    came: list[int] = []
    handles = [loop.later(0.001, lambda k=k: came.append(k)) for k in range(500)]
    for k, handle in enumerate(handles):
        if k != 250:
            handle.cancel()
            handle.cancel()
    assert len(loop._timers) < 200
    loop.later(0.01, loop.stop)
    loop.run()
    assert came == [250]


def test_a_timer_cancelled_by_another_of_the_same_turn_is_not_called(loop: Loop) -> None:
    came: list[str] = []
    second = loop.later(0.001, lambda: came.append("second"))
    loop.later(0.0, lambda: second.cancel())
    loop.later(0.01, loop.stop)
    loop.run()
    assert came == []


def test_a_descriptor_unwatched_earlier_in_the_turn_is_not_called(loop: Loop) -> None:
    a, b = socket.socketpair()
    c, d = socket.socketpair()
    came: list[str] = []

    def first(name: str, other: socket.socket) -> None:
        came.append(name)
        loop.unwatch(other.fileno())

    with a, b, c, d:
        loop.watch(a.fileno(), lambda: first("a", c))
        loop.watch(c.fileno(), lambda: first("c", a))
        b.send(b"x")
        d.send(b"x")
        loop.turn()
        assert len(came) == 1
        loop.unwatch(a.fileno())
        loop.unwatch(c.fileno())


def test_a_hook_with_more_to_do_keeps_the_loop_from_sleeping(loop: Loop) -> None:
    left = [3]

    def hook() -> bool:
        left[0] -= 1
        if left[0] == 0:
            loop.stop()
        return left[0] >= 0

    loop.before_sleep(hook)
    loop.run()
    assert left == [0]


def test_what_is_put_off_again_and_again_lets_others_in(loop: Loop) -> None:
    a, b = socket.socketpair()
    with a, b:
        loop.watch(a.fileno(), loop.stop)

        def again() -> None:
            loop.soon(again)

        again()
        b.send(b"x")
        loop.run()
        loop.unwatch(a.fileno())


def test_an_idle_loop_makes_no_turns(loop: Loop) -> None:
    a, b = socket.socketpair()
    with a, b:
        loop.watch(a.fileno(), loop.stop)
        loop.on_signal(signal.SIGUSR1, lambda: b.send(b"x"))
        signal.setitimer(signal.ITIMER_REAL, 0)
        old = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGUSR1))
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            loop.run()
        finally:
            signal.signal(signal.SIGALRM, old)
        # the alarm's byte, the other signal's byte, the socket: each may be a turn of its own
        assert loop.turns <= 3
        loop.unwatch(a.fileno())


def test_signals_arrive_in_the_loop_and_old_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    came: list[int] = []
    with Loop() as loop:
        loop.on_signal(signal.SIGTERM, lambda: came.append(1))
        os.kill(os.getpid(), signal.SIGTERM)
        loop.turn(5)
        assert came == [1]
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.set_wakeup_fd(-1) == -1


class Slow:
    def __init__(self, world: World, s: float) -> None:
        self.world, self.s = world, s

    def dawdle(self) -> None:
        self.world.s += self.s


def test_a_slow_turn_names_its_cause_and_not_too_often() -> None:
    world = World()
    said: list[str] = []
    with Loop(clock=Clock(world), on_slow=lambda _, text: said.append(text)) as loop:
        for s in (0.05, 0.02, 0.005, 0.03):
            loop.soon(Slow(world, s).dawdle)
            loop.turn(0)
        assert len(said) == 1
        assert "50 ms" in said[0]
        assert "Slow.dawdle" in said[0]
        for _ in range(12):
            world.s += 1
            loop.turn(0)
        loop.soon(Slow(world, 0.04).dawdle)
        loop.turn(0)
        assert "2 more slow turns" in said[1]


def test_slow_turns_of_many_seconds_are_told_though_the_loops_clock_does_not_count_them() -> None:
    world = World()
    said: list[str] = []
    with Loop(clock=Clock(world), on_slow=lambda _, text: said.append(text)) as loop:
        for _ in range(3):
            loop.soon(Slow(world, 60).dawdle)
            loop.turn(0)
    assert len(said) == 3
    assert all("60000 ms" in text for text in said)


def test_a_callback_that_raises_ends_the_run_with_its_error(loop: Loop) -> None:
    loop.soon(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        loop.run()


def test_a_descriptor_can_be_watched_for_writing_alone(
    loop: Loop, until: Callable[[Callable[[], object]], None]
) -> None:
    a, b = socket.socketpair()
    came: list[int] = []
    with a, b:
        b.send(b"unread")
        loop.watch(a.fileno(), lambda: came.append(1), read=False)
        loop.turn(0)
        assert came == []
        loop.watch(a.fileno(), lambda: came.append(2), read=False, write=True)
        until(lambda: came)
        assert set(came) == {2}
        loop.unwatch(a.fileno())
