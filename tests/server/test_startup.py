"""A daemon that is not ready says so, after five seconds and then each time that the wait has doubled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loaderd.server.startup import StartupReporter


class FakeTimer:
    def __init__(self, at_s: float, call: Callable[[], None]) -> None:
        self.at_s, self.call = at_s, call

    def cancel(self) -> None:
        self.at_s = float("inf")


class FakeLoop:
    """Time that only `run` moves."""

    def __init__(self) -> None:
        self._now_s = 100.0
        self._timers: list[FakeTimer] = []

    def now_s(self) -> float:
        return self._now_s

    def later(self, delay_s: float, call: Callable[[], None]) -> FakeTimer:
        self._timers.append(FakeTimer(self._now_s + delay_s, call))
        return self._timers[-1]

    def run(self, until_s: float) -> None:
        while self._timers and (first := min(self._timers, key=lambda timer: timer.at_s)).at_s <= until_s:
            self._timers.remove(first)
            self._now_s = first.at_s
            first.call()
        self._now_s = until_s


def started(doing: list[str]) -> tuple[FakeLoop, StartupReporter, list[str]]:
    loop, lines = FakeLoop(), []
    log: Callable[..., Any] = lambda level, text: lines.append(text)  # noqa: E731
    startup = StartupReporter(loop, lambda: doing, log)  # type: ignore[arg-type]  # of Loop, what Startup uses
    startup.opens({"train"})
    return loop, startup, lines


def test_the_first_line_comes_with_the_fifth_second_and_the_next_ones_when_the_wait_has_doubled() -> None:
    loop, _, lines = started(["the template has been importing mine for 5 s"])
    loop.run(104.9)
    assert lines == []
    loop.run(105.0)
    assert lines == ["not ready after 5 s: opening stream 'train'; the template has been importing mine for 5 s"]
    loop.run(145.0)
    assert [line.split(":")[0] for line in lines] == [f"not ready after {seconds} s" for seconds in (5, 10, 20, 40)]


def test_of_many_that_are_not_ready_four_are_named() -> None:
    _, startup, _ = started([f"worker {n} starts" for n in range(9)])
    startup.waits_for("starting workers")
    assert startup.text() == "starting workers; worker 0 starts; worker 1 starts; worker 2 starts; worker 3 starts"


def test_after_its_end_nothing_is_said() -> None:
    loop, startup, lines = started([])
    startup.end()
    loop.run(1000.0)
    assert lines == []
