"""What a daemon does about the same thing in each phase of its life."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from loaderd.config.schema import DaemonConfig, WorkersConfig
from loaderd.config.stream import StreamConfig
from loaderd.core.events import Drain, StreamOpened, WorkerReady
from loaderd.core.streams import StreamRules
from loaderd.server.phases import Draining, Opening, Phase, Serving
from loaderd.server.pool_limits import PoolLimits
from loaderd.server.start_options import StartOptions
from loaderd_testing.fake_time import FakeLoop
from loaderd_wire.messages import PROTOCOL, Ask

PEER: Any = SimpleNamespace()
RULES = StreamRules("train", "raise", False, 10)


class Log(list[tuple[str, str]]):
    def __call__(self, level: str, event: str, text: str, /, **facts: object) -> None:
        self.append((level, text))

    def say(self, level: str, event: str, text: str, facts: object) -> None:
        self(level, event, text)


class Stage:
    """A daemon whose parts write down what they are asked for."""

    def __init__(self, **options: Any) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.log = Log()
        self.phase: Phase
        self.stopped = 0
        self.loop: Any = FakeLoop()
        self.loop.stop = self.stop
        self.messages = SimpleNamespace(waiting=False)
        self.dispatcher = SimpleNamespace(
            on_event=None,
            idle=False,
            step=lambda event: self.done.append(("step", event)),
            begin=lambda: self.done.append(("begin",)),
        )
        self.catalog = SimpleNamespace(
            names=["train", "val"], opened={}, opening=set(), faults={}, want=lambda name: self.catalog.opening.add(name),
            disagreement=lambda: "", counts=lambda: "train (10)", rules=lambda name: RULES,
            reject=lambda name, why: self.catalog.faults.update({name: why}),
        )  # fmt: skip
        self.registry = SimpleNamespace(sessions={}, close=self.noting("close"))
        self.admission = SimpleNamespace(
            close=lambda: None,
            **{
                name: self.noting(name)
                for name in ("open", "hello", "gone", "opened", "not_opened")
            },
        )
        self.parts: Any = SimpleNamespace(
            config=SimpleNamespace(path="c.toml", streams=(), daemon=DaemonConfig(socket="s", quarantine="q", drain_s=10.0), workers=WorkersConfig()),
            options=StartOptions(**options), limits=PoolLimits(2, 2, 2, 2, 1 << 30), env={}, loop=self.loop, log=self.log, messages=self.messages,
            ready_pipe=SimpleNamespace(tell=self.noting("tell"), waits=False),
            startup=SimpleNamespace(end=self.noting("end"), waits_for=self.noting("waits_for")),
            control=SimpleNamespace(**{name: self.noting(name) for name in ("drop", "send", "finish", "reject", "stop_listening")}),
            budget=SimpleNamespace(memory=1 << 30), registry=self.registry, admission=self.admission, catalog=self.catalog, dispatcher=self.dispatcher,
            idle=SimpleNamespace(await_first=self.noting("await_first"), connection_ended=self.noting("connection_ended")),
        )  # fmt: skip

    def noting(self, name: str) -> Any:
        return lambda *args: self.done.append((name, *args))

    def stop(self) -> None:
        self.stopped += 1

    # as the daemon of the phases

    def enter(self, phase: Phase) -> None:
        self.phase = phase
        phase.begin()

    def opened(self) -> None:
        self.enter(Serving(self, self.parts))

    def takeover(self, peer: Any) -> None:
        self.done.append(("takeover", peer))

    def fail(self, why: str) -> None:
        self.done.append(("fail", why))

    def status(self) -> Any:
        return "{}"

    # what happens

    def answered(self, name: str, fault: str = "") -> None:
        self.catalog.opening.discard(name)
        if fault:
            self.catalog.faults[name] = fault
        else:
            self.catalog.opened[name] = SimpleNamespace(
                plan=StreamConfig(name),
                facts=SimpleNamespace(samples=10, total=10, layout="loaderd", specs=()),
            )
        self.phase.stream_answered(name)

    def asked_for(self, name: str) -> list[tuple[Any, ...]]:
        return [each for each in self.done if each[0] == name]


def opening(**options: Any) -> Stage:
    stage = Stage(**options)
    stage.enter(Opening(stage, stage.parts))
    return stage


def serving() -> Stage:
    stage = opening()
    stage.answered("train")
    stage.answered("val")
    stage.dispatcher.on_event(WorkerReady(1), [])
    return stage


def test_workers_are_started_when_the_last_stream_is_open() -> None:
    stage = opening()
    stage.answered("train")
    assert not stage.asked_for("begin")
    stage.answered("val")
    assert stage.done[-3:] == [
        ("step", StreamOpened(RULES)),
        ("step", StreamOpened(RULES)),
        ("begin",),
    ]
    assert stage.phase.name == "starting"


def test_streams_that_are_left_until_they_are_asked_for_are_not_opened_at_the_start() -> None:
    assert opening(first_stream="val").catalog.opening == {"val"}


def test_the_first_worker_that_is_ready_begins_serving_and_the_second_is_nothing_new() -> None:
    stage = serving()
    assert isinstance(stage.phase, Serving)
    assert stage.asked_for("tell") == [("tell", "ready")]
    assert stage.asked_for("open") == [("open", stage.catalog.opened)]
    assert stage.dispatcher.on_event is None


def test_streams_that_cannot_be_opened_fail_the_start_all_at_once() -> None:
    stage = opening()
    stage.answered("train", "no such file")
    assert not stage.asked_for("fail")
    stage.answered("val", "no such class")
    assert stage.asked_for("fail") == [
        ("fail", "stream 'train': no such file\nstream 'val': no such class")
    ]


def test_a_stream_that_cannot_be_opened_later_is_told_to_those_who_wait_for_it() -> None:
    stage = serving()
    stage.answered("val", "it is gone")
    ((_, name, error),) = stage.asked_for("not_opened")
    assert (name, str(error)) == ("val", "stream 'val': it is gone")
    assert not stage.asked_for("fail")


def test_a_stream_whose_class_names_differ_from_the_others_is_not_served() -> None:
    stage = serving()
    stage.catalog.disagreement = lambda: "cat is 0 here and 1 there"
    stage.answered("val")
    assert [(name, str(error)) for _, name, error in stage.asked_for("not_opened")] == [
        ("val", "stream 'val': cat is 0 here and 1 there")
    ]
    assert not stage.asked_for("opened")


def test_a_start_that_is_drained_ends_at_once() -> None:
    stage = opening()
    stage.phase.signalled(signal.SIGTERM)
    assert (stage.phase.name, stage.stopped) == ("draining", 1)
    assert ("info", "draining: SIGTERM") in stage.log
    assert stage.asked_for("close") == [("close", "drained")]


def test_a_drain_ends_when_nothing_is_being_made_and_everything_is_sent() -> None:
    stage = serving()
    stage.registry.sessions = {1: "a session"}
    stage.phase.drain("asked to")
    assert stage.done[-1] == ("step", Drain())
    stage.loop.end_turn()
    stage.dispatcher.idle, stage.messages.waiting = True, True
    stage.loop.end_turn()
    assert stage.stopped == 0
    stage.messages.waiting = False
    stage.loop.end_turn()
    assert stage.stopped == 1


@pytest.mark.parametrize(("sessions", "patience_s"), [(0, 0.5), (1, 10.0)])
def test_a_drain_waits_no_longer_than_drain_s_and_without_sessions_hardly_at_all(
    sessions: int, patience_s: float
) -> None:
    stage = serving()
    stage.registry.sessions = dict.fromkeys(range(sessions))
    stage.phase.drain("asked to")
    stage.loop.advance(patience_s - 0.1)
    assert stage.stopped == 0
    stage.loop.advance(0.2)
    assert stage.stopped == 1


def test_who_comes_during_a_drain_is_dropped_and_a_second_drain_changes_nothing() -> None:
    stage = serving()
    stage.phase.drain("asked to")
    phase, before = stage.phase, len(stage.log)
    stage.phase.hello(PEER, PEER)
    stage.phase.ask(PEER, Ask(PROTOCOL, "status"))
    stage.phase.drain("asked again")
    assert stage.asked_for("drop") == [("drop", PEER), ("drop", PEER)]
    assert not stage.asked_for("hello")
    assert (stage.phase is phase, len(stage.log)) == (True, before)


def test_a_second_signal_ends_a_drain_at_once() -> None:
    stage = serving()
    stage.phase.signalled(signal.SIGINT)
    assert stage.stopped == 0
    stage.phase.signalled(signal.SIGINT)
    assert stage.stopped == 1
    assert isinstance(stage.phase, Draining)


def test_an_end_of_a_connection_counts_for_leaving_only_when_nobody_waits_for_the_start() -> None:
    stage = opening()
    stage.parts.ready_pipe.waits = True
    stage.phase.left(PEER)
    assert not stage.asked_for("connection_ended")
    stage.parts.ready_pipe.waits = False
    stage.phase.left(PEER)
    assert stage.asked_for("connection_ended")
    assert stage.asked_for("gone") == [("gone", PEER), ("gone", PEER)]


def test_slow_turns_are_told_aloud_only_when_somebody_may_wait_for_an_answer() -> None:
    stage = opening()
    stage.phase.slow_turn(1.0, "importing numpy")
    assert stage.log[-1] == ("debug", "importing numpy")
    stage = serving()
    stage.phase.slow_turn(0.02, "a little")
    stage.phase.slow_turn(0.2, "a lot")
    assert stage.log[-2:] == [("info", "a little"), ("warning", "a lot")]
