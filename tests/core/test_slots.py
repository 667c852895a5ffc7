"""Slots: the table of moves, generations, writers."""

from __future__ import annotations

import itertools

import pytest

from loaderd.core.slots import MOVES, Ring, State, Verb
from loaderd_testing.scheduler_harness import segment


def at(state: State) -> Ring:
    """A ring whose slot 0 has come to this state."""
    ring = Ring(segment(slots=3))
    paths = {
        State.FREE: (),
        State.FILLING: (Verb.CLAIM,),
        State.READY: (Verb.CLAIM, Verb.FINISH),
        State.ANNOUNCED: (Verb.CLAIM, Verb.FINISH, Verb.ANNOUNCE),
        State.LEASED: (Verb.CLAIM, Verb.FINISH, Verb.ANNOUNCE, Verb.LEASE),
        State.ENDING: (Verb.CLAIM, Verb.ABANDON),
    }
    for verb in paths[state]:
        if verb is Verb.CLAIM:
            assert ring.claim() == (0, 1)
        else:
            ring.move(0, verb)
    assert ring.state[0] is state
    return ring


@pytest.mark.parametrize(("state", "verb"), [pair for pair in itertools.product(State, Verb) if pair not in MOVES])
def test_a_move_that_the_table_lacks_is_refused_naming_slot_state_and_verb(state: State, verb: Verb) -> None:
    with pytest.raises(ValueError, match=rf"slot 0 is {state.value} .*cannot {verb.value}"):
        at(state).move(0, verb)


def test_the_slot_freed_last_is_claimed_first_with_the_next_generation() -> None:
    ring = at(State.LEASED)
    assert ring.claim() == (1, 1)
    ring.move(0, Verb.RELEASE)
    assert ring.claim() == (0, 2)
    assert ring.claim() == (2, 1)
    assert ring.claim() is None


def test_an_abandoned_slot_is_not_free_while_a_job_may_write_it() -> None:
    ring = at(State.FILLING)
    ring.writers[0] = {7, 8}
    ring.abandon(0)
    ring.wrote(0, 7)
    assert ring.state[0] is State.ENDING
    ring.invariants()
    ring.wrote(0, 8)
    assert ring.state[0] is State.FREE
    ring.invariants()


def test_a_slot_with_a_job_on_it_cannot_become_ready() -> None:
    ring = at(State.FILLING)
    ring.writers[0] = {7}
    with pytest.raises(ValueError, match=r"with jobs \[7\]: cannot finish"):
        ring.move(0, Verb.FINISH)
