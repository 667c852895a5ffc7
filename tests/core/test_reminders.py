"""Descriptors that are sent again: those that the client asks for or does not seem to know."""

from __future__ import annotations

from functools import partial

from core.test_session_slots import announced
from loaderd.core.batch_window import BatchWindow
from loaderd.core.batches import BatchBuild
from loaderd.core.reminders import REMIND_S, asked_for, overdue
from loaderd.core.session_slots import SessionSlots
from loaderd.core.slots import LEASE
from loaderd_testing.scheduler_harness import SHAPE, segment
from loaderd_wire.messages import Descriptor, Released

HEARD = (Released(1, (0, 0, 0, 0), (0, 0, 0, 0)),)  # a client that mentions segment 1
TOLD_S = 5.0  # when `announced` says that descriptors were sent


def session(plan: int = 1, batches: int = 3) -> tuple[BatchWindow, SessionSlots]:
    """A session of which this many batches of plan 1 were announced."""
    slots = SessionSlots(segment(1, 4))
    for k in range(batches):
        announced(slots, 8 * k)
    window = BatchWindow(SHAPE, 3, partial(BatchBuild, "train", "raise", False, 7))
    window.plan = plan
    return window, slots


def numbers(messages: list[Descriptor]) -> list[int]:
    return [message.k for message in messages]


def test_a_client_that_asks_gets_what_it_does_not_have() -> None:
    assert numbers(asked_for(*session(), have=1, now_s=TOLD_S)) == [1, 2]


def test_a_client_that_asks_gets_all_of_former_plans() -> None:
    assert numbers(asked_for(*session(plan=2), have=2, now_s=TOLD_S)) == [0, 1, 2]


def test_a_leased_batch_is_not_sent_again() -> None:
    window, slots = session()
    slots.tables[1].move(1, LEASE)
    assert numbers(asked_for(window, slots, have=0, now_s=TOLD_S)) == [0, 2]


def test_batches_of_the_present_plan_need_no_reminder() -> None:
    assert overdue(*session(), HEARD, TOLD_S + REMIND_S) == []


def test_batches_of_a_former_plan_are_sent_once_in_a_while() -> None:
    window, slots = session(plan=2)
    assert overdue(window, slots, HEARD, TOLD_S + REMIND_S / 2) == []
    assert numbers(overdue(window, slots, HEARD, TOLD_S + REMIND_S)) == [0, 1, 2]
    assert overdue(window, slots, HEARD, TOLD_S + REMIND_S) == []


def test_batches_in_an_old_segment_that_the_client_does_not_mention_are_sent_again() -> None:
    window, slots = session()
    slots.add(segment(2, 4))
    assert overdue(window, slots, HEARD, TOLD_S + REMIND_S) == []
    assert numbers(overdue(window, slots, (), TOLD_S + REMIND_S)) == [0, 1, 2]
