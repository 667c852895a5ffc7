"""The states of the global generators that a sample starts with, whatever was drawn before it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loaderd.core.rng import keys, twister_states
from loaderd.worker import generator_watch
from loaderd.worker.generator_watch import GeneratorUse
from loaderd.worker.seeding import AHEAD, SPENT, GlobalSeeder, Kept, seed_batch, seed_sample

numpy_random: Any = np.random
INDICES = np.arange(2 * AHEAD, dtype=np.int64) * 3
STATES = twister_states(keys(7, 1, INDICES)).view(np.uint32)


@pytest.fixture(autouse=True, params=["watched", "alone"])
def generators(request: pytest.FixtureRequest) -> Iterator[None]:
    bits, python, numpy = numpy_random.get_bit_generator(), random.getstate(), np.random.get_state()
    if request.param == "watched":
        generator_watch.install()
    yield
    generator_watch.uninstall()
    numpy_random.set_bit_generator(bits)
    random.setstate(python)
    np.random.set_state(numpy)


def used() -> GlobalSeeder:
    """Of a stream whose code is known to use both."""
    return GlobalSeeder(7, 1, INDICES, GeneratorUse(True, True))


def drawn() -> list[float]:
    """Of each generator uniform and normal numbers, of which it keeps every second."""
    return [random.random(), random.gauss(0, 1), np.random.random(), np.random.standard_normal()]


def states() -> tuple[Any, ...]:
    name, words, *rest = np.random.get_state()
    return random.getstate(), (name, words.tolist(), *rest)  # type: ignore[union-attr] # an array


def expected(number: int) -> tuple[Any, ...]:
    python, numpy = STATES[number].tolist()
    return (3, (*python, SPENT), None), ("MT19937", numpy, SPENT, 0, 0.0)


def test_the_states_are_those_of_the_samples_hash() -> None:
    seeder = used()
    for number in (0, AHEAD + 1, 2, AHEAD - 1):
        seeder.seed(number)
        assert states() == expected(number)
        drawn()
    seed_sample(7, 1, int(INDICES[5]))
    assert states() == expected(5)


def test_what_is_drawn_does_not_depend_on_what_was_drawn_before() -> None:
    def kept_deviates() -> None:
        random.gauss(0, 1)
        np.random.standard_normal()

    def kept_deviates_and_as_many_words_as_a_state_has() -> None:
        kept_deviates()
        while np.random.get_state(legacy=False)["state"]["pos"] != SPENT:
            np.random.bytes(4)
        while random.getstate()[1][-1] != SPENT:
            random.getrandbits(32)

    def seeded_anew() -> None:
        random.seed(1)
        np.random.seed(1)
        kept_deviates()

    def another_bit_generator() -> None:
        numpy_random.set_bit_generator(np.random.MT19937(3))

    seeder = used()
    seeder.seed(0)
    first = drawn()
    for before in (
        kept_deviates,
        kept_deviates_and_as_many_words_as_a_state_has,
        seeded_anew,
        another_bit_generator,
    ):
        before()
        seeder.seed(0)
        assert drawn() == first


def test_a_generator_that_is_no_twister_is_an_error_and_not_left_unseeded() -> None:
    numpy_random.set_bit_generator(np.random.PCG64(3))
    with pytest.raises(ValueError, match="PCG64"):
        used().seed(0)


def made(seeder: GlobalSeeder, number: int, code: Callable[[], Any]) -> tuple[Any, int]:
    """(what a sample's code comes to, how often it ran)."""
    for times in range(1, 9):
        seeder.seed(number)
        value = code()
        if not seeder.again():
            return value, times
    raise AssertionError("it is made again and again")


def test_code_that_begins_to_draw_draws_from_its_own_samples_states() -> None:
    seeder, use = used(), GeneratorUse()
    seeder.seed(1)
    right = drawn()
    watched = GlobalSeeder(7, 1, INDICES, use)
    assert made(watched, 0, lambda: 1) == (1, 1)
    alone = generator_watch.installed() is None
    assert made(watched, 1, drawn) == (right, 1 if alone else 2)
    assert use == GeneratorUse(True, True)
    assert made(GlobalSeeder(7, 1, INDICES, use), 1, drawn) == (right, 1)


def test_code_that_uses_the_second_generator_when_it_sees_the_first_is_made_again_until_both_are_right() -> (
    None
):
    def code() -> Any:
        return np.random.random() if random.getstate() == expected(1)[0] else None

    used().seed(1)
    right = np.random.random()
    assert made(GlobalSeeder(7, 1, INDICES, GeneratorUse()), 1, code)[0] == right


def test_what_an_import_reads_and_draws_is_no_use_by_the_sample() -> None:
    def code() -> None:
        kept = Kept()
        np.random.get_state()
        random.getstate()
        drawn()
        kept.put_back()

    assert made(GlobalSeeder(7, 1, INDICES, GeneratorUse()), 0, code) == (None, 1)


def test_a_batch_has_a_state_of_its_own() -> None:
    seed_sample(7, 1, 0)
    sample = states()
    seed_batch(7, 1, 0)
    batch = states()
    seed_batch(7, 1, 0)
    assert states() == batch != sample


class TorchGenerator:
    """What is seeded of torch's default generator: its state is its seed."""

    def __init__(self) -> None:
        self.state = -1

    def manual_seed(self, seed: int) -> None:
        self.state = seed

    def set_state(self, state: int) -> None:
        self.state = state

    def get_state(self) -> int:
        return self.state


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> TorchGenerator:
    """Loaded before the sample."""
    generator = TorchGenerator()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(default_generator=generator))
    return generator


def torch_seed(number: int) -> int:
    return int(keys(7, 1, INDICES)[number, 1]) & ((1 << 63) - 1)


@pytest.mark.parametrize("use", [(True, True), (False, False)])
def test_torch_is_seeded_for_each_sample_whatever_else_its_code_uses(
    torch: TorchGenerator, use: tuple[bool, bool]
) -> None:
    seeder = GlobalSeeder(7, 1, INDICES, GeneratorUse(*use))
    for number in (0, AHEAD + 1, 2):
        seeder.seed(number)
        assert torch.state == torch_seed(number)


def test_what_an_import_draws_from_torch_is_put_back(torch: TorchGenerator) -> None:
    used().seed(3)
    kept = Kept()
    torch.manual_seed(5)
    kept.put_back()
    assert torch.state == torch_seed(3)


def test_a_torch_that_comes_in_the_middle_of_a_sample_is_seeded_as_if_it_had_been_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    used().seed(3)
    kept, generator = Kept(), TorchGenerator()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(default_generator=generator))
    kept.put_back()
    assert generator.state == torch_seed(3)
