"""The daemon that hands its socket over, when its successor dies at the worst moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from loaderd.server.handover import HandedOver
from loaderd.server.phases import Serving
from loaderd_testing.fake_time import FakeLoop


def test_a_successor_that_is_found_dead_when_it_is_told_leaves_the_daemon_serving() -> None:
    entered: list[Any] = []
    successor: Any = SimpleNamespace(ended=False)
    loop: Any = FakeLoop()
    loop.stop = lambda: entered.append("stop")

    def send(peer: Any, message: object) -> None:
        peer.ended = True
        phase.left(peer)

    parts: Any = SimpleNamespace(
        log=lambda *args, **facts: None,
        loop=loop,
        env={},
        control=SimpleNamespace(send=send, drop=lambda peer: entered.append("drop")),
        admission=SimpleNamespace(gone=lambda peer: None, close=lambda: entered.append("close")),
        registry=SimpleNamespace(sessions={}, close=lambda reason: entered.append("bye")),
    )
    daemon: Any = SimpleNamespace(enter=entered.append)
    phase = HandedOver(daemon, parts, successor, over=lambda: entered.append("over"))
    phase.begin()
    (serving,) = entered
    assert isinstance(serving, Serving)
    loop.advance(100.0)
    assert entered == [serving]
