"""What drives the scheduler: events one by one, and a look at the workers when it is due."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from loaderd.core.actions import LogLine
from loaderd.server.dispatcher import ActionDispatcher, ActionHandlers
from loaderd.system.loop import Loop


class Brain:
    """A scheduler that says of each event what the test has it say; it wants a look at look_s."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.look_s: float | None = None
        self.heard: list[Any] = []

    def begin(self, now_s: float) -> list[Any]:
        return [LogLine("info", "begun")]

    def step(self, event: Any, now_s: float) -> list[Any]:
        self.heard.append(event)
        return [LogLine("info", f"first of {event}"), LogLine("info", f"second of {event}")]

    def next_look_s(self, now_s: float) -> float | None:
        return self.look_s


@pytest.fixture
def loop() -> Iterator[Loop]:
    with Loop() as made:
        yield made


def driven(loop: Loop, log: Callable[[str, str], object]) -> tuple[ActionDispatcher, Brain]:
    brain: Any = Brain(loop)
    engine: Any = SimpleNamespace(start=None, send=None, dump=None, kill=None, retire=None, look=lambda: "a look")
    nobody: Any = None
    handlers = ActionHandlers(engine, nobody, nobody, nobody, nobody, nobody, nobody, log)
    return ActionDispatcher(brain, handlers, loop), brain


def test_an_event_from_within_an_action_waits_until_all_of_its_event_are_done(loop: Loop) -> None:
    said: list[str] = []

    def log(level: str, text: str) -> None:
        said.append(text)
        if text in ("begun", "first of 1"):
            dispatcher.step(len(said))  # type: ignore[arg-type]

    dispatcher, brain = driven(loop, log)
    dispatcher.begin()
    assert said == ["begun", "first of 1", "second of 1", "first of 2", "second of 2"]
    assert brain.heard == [1, 2]


def test_workers_are_looked_at_when_it_is_due_and_once(loop: Loop) -> None:
    dispatcher, brain = driven(loop, lambda level, text: None)
    dispatcher.begin()
    assert dispatcher.idle
    brain.look_s = loop.now_s() + 100.0
    assert not dispatcher.idle
    for _ in range(3):
        loop.turn(0.0)
    assert brain.heard == []
    loop.clock.now_s += 101.0
    loop.turn(0.0)
    assert brain.heard == ["a look"]


def test_a_look_that_has_become_due_later_is_not_made_early(loop: Loop) -> None:
    dispatcher, brain = driven(loop, lambda level, text: None)
    dispatcher.begin()
    brain.look_s = loop.now_s() + 100.0
    loop.turn(0.0)
    brain.look_s += 100.0
    loop.clock.now_s += 101.0
    loop.turn(0.0)
    assert brain.heard == []
    loop.turn(0.0)
    loop.clock.now_s += 100.0
    loop.turn(0.0)
    assert brain.heard == ["a look"]
