"""Clients that wait hear so at once and every second, until they are served or leave."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from loaderd.server.waiting_clients import WaitingClients
from loaderd_testing.fake_time import FakeLoop
from loaderd_wire.messages import Starting


class Waiting:
    def __init__(self) -> None:
        self.loop: Any = FakeLoop()
        self.told: list[tuple[str, str]] = []
        self.doing = "opening stream 'train'"
        control: Any = SimpleNamespace(send=self.send)
        self.clients = WaitingClients(self.loop, control, lambda: self.doing)

    def send(self, peer: Any, message: Starting) -> None:
        self.told.append((peer, message.text))

    def come(self, peer: Any, stream: str) -> None:
        hello: Any = SimpleNamespace(stream=stream)  # all that is looked at
        self.clients.add(peer, hello)

    def forget(self, peer: Any) -> None:
        self.clients.forget(peer)


def test_who_waits_is_told_what_for_at_once_and_every_second() -> None:
    waiting = Waiting()
    waiting.come("one", "train")
    waiting.loop.advance(0.5)
    waiting.doing = "starting workers"
    waiting.come("two", "val")
    waiting.loop.advance(0.6)
    assert waiting.told == [
        ("one", "opening stream 'train'"), ("two", "starting workers"), ("one", "starting workers"), ("two", "starting workers"),
    ]  # fmt: skip


def test_only_those_who_wait_for_a_stream_are_taken_and_hear_nothing_more() -> None:
    waiting = Waiting()
    for peer, stream in (("one", "train"), ("two", "val"), ("three", "train")):
        waiting.come(peer, stream)
    assert [peer for peer, _ in waiting.clients.take("train")] == ["one", "three"]
    waiting.told.clear()
    waiting.loop.advance(1.0)
    assert [peer for peer, _ in waiting.told] == ["two"]
    assert [peer for peer, _ in waiting.clients.take(None)] == ["two"]
    assert waiting.clients.peers == ()


def test_when_the_last_one_leaves_the_clock_stands_still_until_another_comes() -> None:
    waiting = Waiting()
    waiting.come("one", "train")
    waiting.forget("one")
    waiting.forget("one")
    assert waiting.loop.waiting == 0
    waiting.come("two", "train")
    assert waiting.loop.waiting == 1
