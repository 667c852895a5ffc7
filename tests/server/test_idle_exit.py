"""A daemon that nobody uses leaves by itself; one that is used does not."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from loaderd.server.idle_exit import IdleExit
from loaderd_testing.fake_time import FakeLoop


@dataclass
class Idle:
    """An IdleExit and what it is told."""

    loop: FakeLoop
    control: SimpleNamespace
    left: list[str]
    exit: IdleExit


def idle(*, embedded: bool = True, exit_when_idle_s: float = 0.0) -> Idle:
    loop: Any = FakeLoop()
    control: Any = SimpleNamespace(peers=[])
    left: list[str] = []
    return Idle(
        loop, control, left, IdleExit(loop, control, embedded, exit_when_idle_s, leave=left.append)
    )


def test_an_embedded_daemon_to_which_nobody_comes_leaves_after_thirty_seconds() -> None:
    it = idle()
    it.exit.await_first()
    it.loop.advance(29.9)
    assert it.left == []
    it.loop.advance(0.2)
    assert it.left == ["the last client has disconnected"]


def test_an_embedded_daemon_leaves_two_seconds_after_its_last_connection() -> None:
    it = idle()
    it.exit.await_first()
    it.exit.connection_ended()
    it.loop.advance(1.9)
    assert it.left == []
    it.loop.advance(0.2)
    assert it.left == ["the last client has disconnected"]


def test_a_trainer_that_went_just_before_ready_is_not_waited_for_once_more() -> None:
    it = idle()
    it.exit.connection_ended()
    it.loop.advance(1.0)
    it.exit.await_first()
    it.loop.advance(1.1)
    assert it.left == ["the last client has disconnected"]


def test_a_connection_that_has_spoken_keeps_an_embedded_daemon() -> None:
    it = idle()
    it.control.peers = [SimpleNamespace(spoken=True)]
    it.exit.connection_ended()
    it.exit.await_first()
    it.loop.advance(1000.0)
    assert it.left == []


def test_a_connection_that_has_not_spoken_is_waited_for_until_it_is_dropped() -> None:
    it = idle()
    it.control.peers = [SimpleNamespace(spoken=False)]
    it.exit.connection_ended()
    it.loop.advance(3.0)
    assert it.left == []
    it.control.peers = []
    it.loop.advance(2.0)
    assert it.left == ["the last client has disconnected"]


def test_a_served_daemon_stays_without_connections() -> None:
    it = idle(embedded=False)
    it.exit.await_first()
    it.exit.connection_ended()
    it.exit.sessions_ended(lambda: False)
    it.loop.advance(1000.0)
    assert it.left == []


@pytest.mark.parametrize("somebody", [False, True])
def test_exit_when_idle_s_counts_from_the_last_session_and_spares_the_next(somebody: bool) -> None:
    it = idle(embedded=False, exit_when_idle_s=60.0)
    it.exit.sessions_ended(lambda: False)
    it.loop.advance(59.0)
    it.exit.sessions_ended(lambda: somebody)
    it.loop.advance(59.0)
    assert it.left == []
    it.loop.advance(1.1)
    assert it.left == ([] if somebody else ["no trainer for 60 s"])
