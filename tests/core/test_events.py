"""What the scheduler can be told."""

from __future__ import annotations

import dataclasses
import typing

import pytest

from loaderd.core import events
from loaderd.core.events import Drain, Event
from loaderd_testing.scheduler_harness import SchedulerHarness

EVENTS: tuple[type, ...] = typing.get_args(Event)


def test_every_event_of_the_module_is_one_that_the_scheduler_takes() -> None:
    defined = {
        thing
        for thing in vars(events).values()
        if isinstance(thing, type) and thing.__module__ == events.__name__
    }
    seen = typing.get_type_hints(events.WorkerPoll)["seen"]
    assert defined - {typing.get_args(seen)[0]} == set(EVENTS)
    assert SchedulerHarness().core._handlers.keys() == set(EVENTS)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_an_event_is_frozen_and_says_what_each_of_its_fields_is(event: type) -> None:
    lines = [line.strip() for line in f"{event.__doc__}".splitlines()]
    assert event.__dataclass_params__.frozen  # dataclasses has no other way to ask
    for field in dataclasses.fields(event):
        assert any(line.startswith(f"{field.name}: ") for line in lines), field.name


def test_what_is_no_event_is_refused() -> None:
    with pytest.raises(KeyError):
        SchedulerHarness().step(typing.cast(Event, "drain"))


def test_events_with_equal_fields_are_equal() -> None:
    assert Drain() == Drain()
    assert events.Detach(1) != events.Detach(2)
