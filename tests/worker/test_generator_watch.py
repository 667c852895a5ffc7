"""The watch of the global generators: whoever draws from one, or reads its state, is noticed;
whoever does neither is not.
"""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from loaderd.worker import generator_watch
from loaderd.worker.generator_watch import GeneratorUse, GeneratorWatch

numpy_random: Any = np.random
SINGLETON: Any = np.random.mtrand._rand  # what libraries get as "the global one"


@pytest.fixture
def watch() -> Iterator[GeneratorWatch]:
    bits, python, numpy = numpy_random.get_bit_generator(), random.getstate(), np.random.get_state()
    generator_watch.install()
    found = generator_watch.installed()
    assert found is not None
    yield found
    generator_watch.uninstall()
    numpy_random.set_bit_generator(bits)
    random.setstate(python)
    np.random.set_state(numpy)


def put_back_python() -> None:
    state = random.getstate()
    random.random()
    random.setstate(state)


def put_back_numpy() -> None:
    state = np.random.get_state()
    np.random.random()
    np.random.set_state(state)


def another_bit_generator() -> None:
    numpy_random.set_bit_generator(np.random.MT19937(3))


PYTHON: list[Callable[[], object]] = [
    random.random,
    lambda: random.gauss(0, 1),
    lambda: random.shuffle([1, 2]),
    lambda: random.seed(0),
    random.getstate,
    put_back_python,
    lambda: pickle.dumps(random.random),
    lambda: copy.copy(random.random.__self__),  # the hidden instance
]
NUMPY: list[Callable[[], object]] = [
    np.random.random,
    np.random.standard_normal,
    lambda: np.random.shuffle([1, 2]),
    lambda: np.random.seed(0),
    lambda: np.random.Generator(numpy_random.get_bit_generator()).random(),
    np.random.get_state,
    put_back_numpy,
    SINGLETON.get_state,
    lambda: copy.deepcopy(SINGLETON),
    lambda: pickle.dumps(SINGLETON),
    another_bit_generator,
]


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_whoever_uses_pythons_generator_is_noticed_as_that_once(
    watch: GeneratorWatch, number: int
) -> None:
    use = GeneratorUse()
    watch.arm(use)
    assert not any(watch.notices(use) for _ in range(3))
    PYTHON[number]()
    assert watch.notices(use)
    assert use == GeneratorUse(python=True)
    assert not any(watch.notices(use) for _ in range(3))


@pytest.mark.parametrize("number", range(len(NUMPY)))
def test_whoever_uses_numpys_generator_is_noticed_as_that_once(
    watch: GeneratorWatch, number: int
) -> None:
    use = GeneratorUse()
    watch.arm(use)
    assert not any(watch.notices(use) for _ in range(3))
    NUMPY[number]()
    assert watch.notices(use)
    assert use == GeneratorUse(numpy=True)
    assert not any(watch.notices(use) for _ in range(3))


def test_who_draws_from_generators_of_its_own_is_not_noticed(watch: GeneratorWatch) -> None:
    use = GeneratorUse()
    watch.arm(use)
    copied = pickle.loads(pickle.dumps(random.Random(3)))
    for _ in range(1000):
        random.Random(3).random()
        copied.getstate()
        np.random.RandomState(3).get_state()
        np.random.default_rng(3).random()
        assert not watch.notices(use)


def test_a_generator_that_is_known_to_be_used_is_left_alone(watch: GeneratorWatch) -> None:
    use = GeneratorUse(python=True)
    random.seed(1)
    np.random.seed(1)
    state = random.getstate()
    watch.arm(use)
    assert not watch.notices(use)
    assert random.getstate() == state
    random.random()
    assert not watch.notices(use)
    np.random.random()
    assert watch.notices(use)


def test_a_bit_generator_in_the_others_place_is_not_watched(watch: GeneratorWatch) -> None:
    another_bit_generator()
    use = GeneratorUse()
    watch.arm(use)
    assert use == GeneratorUse(numpy=True)


def test_the_watch_leaves_both_generators_as_they_were_and_comes_once(
    watch: GeneratorWatch,
) -> None:
    generator_watch.uninstall()
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr] # an array
    generator_watch.install()
    found = generator_watch.installed()
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[union-attr] # as above
    generator_watch.install()
    assert generator_watch.installed() is found
