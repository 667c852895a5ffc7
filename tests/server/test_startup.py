"""A daemon that is not ready says so, after five seconds and then each time that the wait has
doubled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loaderd.server.startup import StartupReporter
from loaderd_testing.fake_time import FakeLoop


def started(doing: list[str]) -> tuple[FakeLoop, StartupReporter, list[str]]:
    loop: Any = FakeLoop()
    lines: list[str] = []
    log: Callable[..., Any] = lambda level, event, text, **_: lines.append(text)  # noqa: E731
    startup = StartupReporter(loop, lambda: doing, log)
    startup.opens({"train"})
    return loop, startup, lines


def test_the_first_line_comes_with_the_fifth_second_and_the_next_ones_when_the_wait_has_doubled() -> (
    None
):
    loop, _, lines = started(["the fork server has been importing mine for 5 s"])
    loop.run(104.9)
    assert lines == []
    loop.run(105.0)
    assert lines == [
        "not ready after 5 s: opening stream 'train'; the fork server has been importing mine for "
        "5 s"
    ]
    loop.run(145.0)
    assert [line.split(":")[0] for line in lines] == [
        f"not ready after {seconds} s" for seconds in (5, 10, 20, 40)
    ]


def test_of_many_that_are_not_ready_four_are_named() -> None:
    _, startup, _ = started([f"worker {n} starts" for n in range(9)])
    startup.waits_for("starting workers")
    assert (
        startup.text()
        == "starting workers; worker 0 starts; worker 1 starts; worker 2 starts; worker 3 starts"
    )


def test_after_its_end_nothing_is_said() -> None:
    loop, startup, lines = started([])
    startup.end()
    loop.run(1000.0)
    assert lines == []


def test_a_wait_that_begins_anew_is_counted_anew() -> None:
    loop, startup, lines = started([])
    startup.end()
    assert startup.text() == ""
    loop.run(200.0)
    startup.opens({"val"})
    loop.run(206.0)
    assert lines == ["not ready after 5 s: opening stream 'val'"]


def test_what_is_waited_for_may_change_in_the_same_wait() -> None:
    loop, startup, lines = started([])
    loop.run(103.0)
    startup.waits_for("starting workers")
    loop.run(106.0)
    assert lines == ["not ready after 5 s: starting workers"]
