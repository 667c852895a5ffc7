"""What the scheduler can ask for."""

from __future__ import annotations

import dataclasses
import typing

import pytest

from loaderd.core import actions
from loaderd.core.actions import Action, SendJob, StartWorker
from loaderd.core.jobs import Job, JobKind
from loaderd_testing.scheduler_harness import SchedulerHarness

ACTIONS: tuple[type, ...] = typing.get_args(Action)


def test_every_action_of_the_module_is_an_action() -> None:
    defined = {
        thing
        for thing in vars(actions).values()
        if isinstance(thing, type) and thing.__module__ == actions.__name__
    }
    assert defined == set(ACTIONS)


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
def test_an_action_is_frozen_and_says_what_each_of_its_fields_is(action: type) -> None:
    lines = [line.strip() for line in f"{action.__doc__}".splitlines()]
    assert action.__dataclass_params__.frozen  # dataclasses has no other way to ask
    for field in dataclasses.fields(action):
        assert any(line.startswith(f"{field.name}: ") for line in lines), field.name


def test_the_first_batch_of_a_run_is_asked_for_word_by_word() -> None:
    harness = SchedulerHarness(workers=1)
    harness.attach(prefetch=1)
    assert harness.log == [
        StartWorker(1, 0.0),
        SendJob(1, Job(1, JobKind.FILL, "train", 1, 0, 7, 0, 0, 8, 0, 8, epoch_samples=64)),
    ]
