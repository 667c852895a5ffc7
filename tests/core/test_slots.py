"""Slots: the table of moves, generations, writers."""

from __future__ import annotations

import itertools

import pytest

from loaderd.core.slots import MOVES, SlotEvent, SlotState, SlotTable
from loaderd_testing.scheduler_harness import segment


def at(state: SlotState) -> SlotTable:
    """A ring whose slot 0 has come to this state."""
    ring = SlotTable(segment(slots=3))
    paths = {
        SlotState.FREE: (),
        SlotState.FILLING: (SlotEvent.CLAIM,),
        SlotState.READY: (SlotEvent.CLAIM, SlotEvent.FINISH),
        SlotState.ANNOUNCED: (SlotEvent.CLAIM, SlotEvent.FINISH, SlotEvent.ANNOUNCE),
        SlotState.LEASED: (SlotEvent.CLAIM, SlotEvent.FINISH, SlotEvent.ANNOUNCE, SlotEvent.LEASE),
        SlotState.ENDING: (SlotEvent.CLAIM, SlotEvent.ABANDON),
    }
    for verb in paths[state]:
        if verb is SlotEvent.CLAIM:
            assert ring.claim() == (0, 1)
        else:
            ring.move(0, verb)
    assert ring.state[0] is state
    return ring


@pytest.mark.parametrize(
    ("state", "verb"),
    [pair for pair in itertools.product(SlotState, SlotEvent) if pair not in MOVES],
)
def test_a_move_that_the_table_lacks_is_refused_naming_slot_state_and_verb(
    state: SlotState, verb: SlotEvent
) -> None:
    with pytest.raises(ValueError, match=rf"slot 0 is {state.value} .*cannot {verb.value}"):
        at(state).move(0, verb)


def test_the_slot_freed_last_is_claimed_first_with_the_next_generation() -> None:
    ring = at(SlotState.LEASED)
    assert ring.claim() == (1, 1)
    ring.move(0, SlotEvent.RELEASE)
    assert ring.claim() == (0, 2)
    assert ring.claim() == (2, 1)
    assert ring.claim() is None


def test_an_abandoned_slot_is_not_free_while_a_job_may_write_it() -> None:
    ring = at(SlotState.FILLING)
    ring.writers[0] = {7, 8}
    ring.abandon(0)
    ring.wrote(0, 7)
    assert ring.state[0] is SlotState.ENDING
    ring.invariants()
    ring.wrote(0, 8)
    assert ring.state[0] is SlotState.FREE
    ring.invariants()


def test_a_slot_with_a_job_on_it_cannot_become_ready() -> None:
    ring = at(SlotState.FILLING)
    ring.writers[0] = {7}
    with pytest.raises(ValueError, match=r"with jobs \[7\]: cannot finish"):
        ring.move(0, SlotEvent.FINISH)
