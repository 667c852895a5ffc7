"""The states of the two global generators: what is written to memory is what their own functions would have set, and nothing is left over."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from loaderd.drivers.twister import BYTES, SPENT, WORDS, Twisters

STATES = np.random.Generator(np.random.PCG64(7)).integers(0, 1 << 32, (3, 2, WORDS), np.uint32)


def direct() -> Twisters:
    return Twisters()


def by_their_functions() -> Twisters:
    twisters = Twisters()
    twisters._python = twisters._numpy = None
    return twisters


EITHER = pytest.mark.parametrize("make", [direct, by_their_functions])


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    bits, python, numpy = np.random.get_bit_generator(), random.getstate(), np.random.get_state()
    yield
    np.random.set_bit_generator(bits)
    random.setstate(python)
    np.random.set_state(numpy)


def write(twisters: Twisters, number: int) -> None:
    twisters.set(memoryview(STATES).cast("B"), number)


def drawn() -> list[float]:
    """Of each generator uniform and normal numbers, of which it keeps every second."""
    return [random.random(), random.gauss(0, 1), np.random.random(), np.random.standard_normal()]


def test_this_interpreters_generators_are_written_where_they_lie() -> None:
    twisters = direct()
    assert twisters._python is not None
    assert twisters._numpy is not None
    assert STATES[0].nbytes == 2 * BYTES


def test_finding_out_where_they_lie_leaves_them_as_they_were() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist()
    direct()
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


@EITHER
def test_the_states_are_those_that_were_asked_for(make: Callable[[], Twisters]) -> None:
    twisters = make()
    for number in (0, 2, 1):
        write(twisters, number)
        assert random.getstate() == (3, (*STATES[number, 0].tolist(), SPENT), None)
        name, state, *rest = np.random.get_state()
        assert (name, state.tolist(), rest) == ("MT19937", STATES[number, 1].tolist(), [SPENT, 0, 0.0])
        drawn()


@EITHER
def test_what_is_drawn_does_not_depend_on_what_was_drawn_before(make: Callable[[], Twisters]) -> None:
    def kept_deviates() -> None:
        random.gauss(0, 1), np.random.standard_normal()

    def kept_deviates_and_as_many_words_as_a_state_has() -> None:
        kept_deviates()
        while np.random.get_state()[2] != SPENT:
            np.random.bytes(4)
        while random.getstate()[1][-1] != SPENT:
            random.getrandbits(32)

    def seeded_anew() -> None:
        random.seed(1), np.random.seed(1), kept_deviates()

    def put_back_with_a_deviate() -> None:
        kept_deviates()
        python, numpy = random.getstate(), np.random.get_state()
        write(twisters, 0)
        random.setstate(python), np.random.set_state(numpy)

    twisters = make()
    write(twisters, 0)
    first = drawn()
    for before in (kept_deviates, kept_deviates_and_as_many_words_as_a_state_has, seeded_anew, put_back_with_a_deviate):
        before()
        write(twisters, 0)
        assert drawn() == first


@EITHER
def test_a_bit_generator_that_user_code_put_in_the_others_place_is_set_too(make: Callable[[], Twisters]) -> None:
    twisters = make()
    write(twisters, 1)
    first = drawn()
    for _ in range(2):
        np.random.set_bit_generator(np.random.MT19937(3))
        write(twisters, 1)
        assert drawn() == first


def test_a_generator_that_is_no_twister_is_an_error_and_not_left_unseeded() -> None:
    twisters = direct()
    np.random.set_bit_generator(np.random.PCG64(3))
    with pytest.raises(ValueError, match="PCG64"):
        write(twisters, 1)
