from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from loaderd.system.loop import Loop
from loaderd_testing.deadlines import DEADLINE_S


@pytest.fixture
def loop() -> Iterator[Loop]:
    with Loop() as made:
        yield made


@pytest.fixture
def until(loop: Loop) -> Callable[[Callable[[], object]], None]:
    """Turn the loop until the condition holds; fails after a deadline."""

    def turn(condition: Callable[[], object]) -> None:
        end = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end, "the condition never came true"
            loop.turn(0.05)

    return turn


class Lines:
    """A log that a test can read."""

    def __init__(self) -> None:
        self.all: list[tuple[str, str]] = []

    def __call__(self, level: str, event: str, text: str, /, **facts: object) -> None:
        self.all.append((level, text))

    def __contains__(self, part: str) -> bool:
        return any(part in text for _, text in self.all)

    def count(self, part: str) -> int:
        return sum(part in text for _, text in self.all)


@pytest.fixture
def log() -> Lines:
    return Lines()
