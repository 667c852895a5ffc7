"""The one driver of a scheduler: actions are done in order, events wait for each other, and the
workers are looked at when it is due.
"""

from __future__ import annotations

from typing import Any

import pytest

from loaderd.core import actions
from loaderd.core.events import Drain, Event, PoolReview, WorkerPoll, WorkerReady
from loaderd.server.dispatcher import ActionDispatcher, ActionHandlers
from loaderd_testing.fake_time import FakeLoop


class FakeScheduler:
    """Answers each event with what the test has laid out for it.

    look_s: when the next look is due. review_s: when the next review of the pool is.
    """

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.answers: dict[type[Event], list[actions.Action]] = {}
        self.look_s: float | None = None
        self.review_s: float | None = None

    def begin(self, now_s: float) -> list[actions.Action]:
        return [actions.StartWorker(1, 0.0)]

    def step(self, event: Event, now_s: float) -> list[actions.Action]:
        self.told.append(event)
        return self.answers.get(type(event), [])

    def next_look_s(self, now_s: float) -> float | None:
        return self.look_s

    def next_review_s(self) -> float | None:
        return self.review_s


class Driven:
    """A dispatcher; `done` is what its handlers were asked to do, in order."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.loop: Any = FakeLoop()
        self.scheduler: Any = FakeScheduler()
        engine: Any = self  # the methods that actions need
        handlers = ActionHandlers(
            engine=engine,
            send_message=lambda session, message: self.done.append(
                ("send_message", session, message)
            ),
            grow=lambda action: self.done.append(("grow", action)),
            drop=lambda action: self.done.append(("drop", action)),
            quarantine=lambda action: self.done.append(("quarantine", action)),
            stream_broken=lambda action: self.done.append(("stream_broken", action)),
            cannot_boot=lambda text: self.done.append(("cannot_boot", text)),
            log=lambda level, event, text, **_: self.done.append(("log", level, text)),
            free_bytes=lambda: 1 << 30,
        )
        self.dispatcher = ActionDispatcher(self.scheduler, handlers, self.loop)

    def start(self, worker: int, delay_s: float, remote: bool = False) -> None:
        self.done.append(("start", worker, delay_s))

    def kill(self, worker: int, why: str) -> None:
        self.done.append(("kill", worker, why))

    def look(self) -> WorkerPoll:
        return WorkerPoll(())


@pytest.fixture
def driven() -> Driven:
    return Driven()


def test_nothing_is_started_before_it_begins(driven: Driven) -> None:
    driven.dispatcher.step(Drain())
    assert driven.done == []
    driven.dispatcher.begin()
    assert driven.done == [("start", 1, 0.0)]


def test_an_event_from_within_the_beginning_waits_for_its_end() -> None:
    class Eager(Driven):
        def start(self, worker: int, delay_s: float, remote: bool = False) -> None:
            self.dispatcher.step(WorkerReady(worker))
            super().start(worker, delay_s)

    eager = Eager()
    eager.scheduler.answers[WorkerReady] = [actions.LogLine("info", "event", "ready")]
    eager.dispatcher.begin()
    assert eager.done == [("start", 1, 0.0), ("log", "info", "ready")]


def test_actions_are_done_in_order_each_by_its_handler(driven: Driven) -> None:
    grow, drop = actions.GrowSegment(1, 4, 0, 0), actions.FreeSegment(1, 7)
    broken = actions.StreamBroken("train", "StreamFailed", "why")
    driven.scheduler.answers[Drain] = [
        actions.LogLine("info", "event", "text"), grow, drop, broken, actions.KillWorker(2, "late"), actions.CannotBoot("no numpy"),
    ]  # fmt: skip
    driven.dispatcher.step(Drain())
    assert driven.done == [
        ("log", "info", "text"), ("grow", grow), ("drop", drop), ("stream_broken", broken), ("kill", 2, "late"), ("cannot_boot", "no numpy"),
    ]  # fmt: skip


def test_every_action_has_a_handler(driven: Driven) -> None:
    assert set(driven.dispatcher._do) == set(actions.Action.__args__)


def test_an_event_from_within_an_action_waits_until_the_others_are_done(driven: Driven) -> None:
    class Eager(Driven):
        def kill(self, worker: int, why: str) -> None:
            super().kill(worker, why)
            self.dispatcher.step(WorkerReady(9))
            assert self.scheduler.told == [Drain()]

    eager = Eager()
    eager.scheduler.answers = {
        Drain: [actions.KillWorker(1, "x"), actions.LogLine("info", "event", "after")],
        WorkerReady: [actions.LogLine("info", "event", "last")],
    }
    eager.dispatcher.step(Drain())
    assert [each[-1] for each in eager.done] == ["x", "after", "last"]


def test_events_are_told_with_the_answer_before_it_is_done(driven: Driven) -> None:
    driven.scheduler.answers[Drain] = [actions.LogLine("info", "event", "text")]
    driven.dispatcher.on_event = lambda event, made: driven.done.append(
        ("event", event, list(made))
    )
    driven.dispatcher.step(Drain())
    assert driven.done == [
        ("event", Drain(), [actions.LogLine("info", "event", "text")]),
        ("log", "info", "text"),
    ]


def test_the_workers_are_looked_at_when_it_is_due_and_not_before(driven: Driven) -> None:
    driven.dispatcher.begin()
    driven.loop.end_turn()
    assert driven.loop.waiting == 0
    driven.scheduler.look_s = 101.0
    driven.loop.end_turn()
    driven.loop.end_turn()
    assert driven.loop.waiting == 1
    driven.loop.run(100.9)
    assert driven.scheduler.told == []
    driven.dispatcher.on_event = lambda event, made: setattr(
        driven.scheduler, "look_s", driven.loop.now_s() + 1.0
    )
    driven.loop.run(101.5)
    assert driven.scheduler.told == [WorkerPoll(())]
    driven.loop.run(102.0)
    assert driven.scheduler.told == [WorkerPoll(()), WorkerPoll(())]


def test_a_look_that_is_no_longer_due_is_left_out(driven: Driven) -> None:
    driven.dispatcher.begin()
    driven.scheduler.look_s = 101.0
    driven.loop.end_turn()
    driven.scheduler.look_s = None
    driven.loop.run(102.0)
    assert driven.scheduler.told == []


def test_a_look_that_has_become_due_later_is_not_made_early(driven: Driven) -> None:
    driven.dispatcher.begin()
    driven.scheduler.look_s = 101.0
    driven.loop.end_turn()
    driven.scheduler.look_s = 102.0
    driven.loop.run(101.9)
    assert driven.scheduler.told == []
    driven.dispatcher.on_event = lambda event, made: setattr(driven.scheduler, "look_s", None)
    driven.loop.run(102.0)
    assert driven.scheduler.told == [WorkerPoll(())]


def test_the_pool_is_reviewed_when_it_is_due_with_the_memory_that_is_free(driven: Driven) -> None:
    driven.dispatcher.begin()
    driven.scheduler.review_s = 101.0
    driven.loop.end_turn()
    driven.loop.end_turn()
    assert driven.loop.waiting == 1
    driven.loop.run(100.9)
    assert driven.scheduler.told == []
    driven.dispatcher.on_event = lambda event, made: setattr(driven.scheduler, "review_s", None)
    driven.loop.run(101.0)
    assert driven.scheduler.told == [PoolReview(1 << 30)]
    driven.loop.end_turn()
    assert driven.loop.waiting == 0


def test_whether_a_worker_has_anything_to_do_is_known(driven: Driven) -> None:
    assert driven.dispatcher.idle
    driven.scheduler.look_s = 101.0
    assert not driven.dispatcher.idle


def test_a_fault_in_an_action_is_no_silent_end_of_all_events(driven: Driven) -> None:
    def fails(action: actions.Action) -> None:
        raise RuntimeError("a fault of ours")

    driven.dispatcher._do[actions.LogLine] = fails
    driven.scheduler.answers[Drain] = [actions.LogLine("info", "event", "text")]
    with pytest.raises(RuntimeError, match="a fault of ours"):
        driven.dispatcher.step(Drain())
    driven.dispatcher.step(WorkerReady(1))
    assert driven.scheduler.told == [Drain(), WorkerReady(1)]
