"""Calls of an actor that is a fake: what is seen meanwhile, and when it is given up."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from loaderd.core.jobs import Stage, stamp
from loaderd.engine.scoreboard import Scoreboard, StatusLine
from loaderd.system.processes import DUMP_SIGNAL
from loaderd.worker.remote import calls as module
from loaderd.worker.remote.calls import Calls, Lost
from loaderd.worker.remote.node_worker import Look

pytestmark = pytest.mark.needs("ray")

WORD = stamp(5, 3, Stage.DECODE)


class FakeActor:
    """Answers a look with `looks`, one after the other; the last one again and again."""

    def __init__(self) -> None:
        self.looks = [Look(WORD, "a", "", b"")]
        self.silent = False
        self.calls: dict[str, Future[Any]] = {}

    def call(self, method: str, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.calls[method] = future
        if method == "look" and not self.silent:
            future.set_result(self.looks.pop(0) if len(self.looks) > 1 else self.looks[0])
        if method == "stack":
            future.set_result("its stack")
        return future


class Bench:
    def __init__(self) -> None:
        self.actor = FakeActor()
        self.board = Scoreboard(1)
        self.dump = os.memfd_create("dump")
        self.told: list[str] = []
        line = StatusLine(self.board.fd, 0)
        out = self.output = os.memfd_create("output")
        self.calls = Calls(self.actor, line, out, self.dump, self.told.append)  # type: ignore[arg-type]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    before = signal.getsignal(DUMP_SIGNAL)
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    made = Bench()
    yield made
    signal.signal(DUMP_SIGNAL, before)
    made.calls.close()
    made.board.close()
    os.close(made.dump)
    os.close(made.output)
    vars(made).clear()  # the test keeps it, and it the board


def test_the_word_of_the_worker_is_on_the_board_while_it_works(bench: Bench) -> None:
    asked = bench.calls.begin("ask")
    bench.actor.looks = [
        Look(0, "", "importing x", b"hel"),
        Look(WORD, "a", "", b"lo"),
        Look(WORD, "a", "", b""),
    ]
    while bench.board.read(0) != (WORD, "a"):
        bench.calls.wait(-1)
    assert bench.told == ["importing x", ""]
    assert os.pread(bench.output, 99, 0) == b"hello"
    asked.set_result(7)
    assert bench.calls.result(asked, 9.0, "it") == 7


def test_a_worker_that_does_the_same_for_too_long_is_given_up(bench: Bench) -> None:
    asked = bench.calls.begin("ask")
    with pytest.raises(Lost, match=r"opening it takes longer than 0\.01 s"):
        bench.calls.result(asked, 0.01, "opening it")


def test_an_actor_that_does_not_answer_is_given_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.01)
    bench.actor.silent = True
    with pytest.raises(Lost, match=r"it has not answered for 0\.01 s"):
        bench.calls.result(bench.calls.begin("ask"), 9.0, "it")


def test_a_call_that_fails_is_told_in_one_line(bench: Bench) -> None:
    from ray.exceptions import GetTimeoutError

    asked = bench.calls.begin("ask")
    asked.set_exception(GetTimeoutError("too late\n  really"))
    with pytest.raises(Lost, match="too late really"):
        bench.calls.result(asked, 9.0, "it")


def test_stacks_that_are_asked_for_are_those_of_the_worker_there(bench: Bench) -> None:
    os.kill(os.getpid(), DUMP_SIGNAL)
    while not os.pread(bench.dump, 99, 0):
        bench.calls.wait(-1)
    assert os.pread(bench.dump, 99, 0) == b"its stack"


def test_an_order_does_not_wait_for_the_next_look(bench: Bench) -> None:
    ours, its = socket.socketpair()
    with ours, its:
        assert not bench.calls.wait(its.fileno())
        ours.send(b"x")
        assert bench.calls.wait(its.fileno(), looks=False)


def test_an_actor_that_goes_while_it_has_nothing_to_do_is_noticed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RARELY_S", 0.001)
    monkeypatch.setattr(module, "SILENT_S", 0.01)
    ours, its = socket.socketpair()
    with ours, its:
        bench.calls.wait(its.fileno(), looks=False, rarely=True)
        bench.calls.wait(its.fileno(), looks=False, rarely=True)  # it answers
        bench.actor.silent = True
        with pytest.raises(Lost, match=r"it has not answered for 0\.01 s"):
            any(bench.calls.wait(its.fileno(), looks=False, rarely=True) for _ in range(10_000))
