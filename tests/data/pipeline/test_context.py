"""The rng that user code gets: the same whether its seeds were known beforehand or not, whatever is
done with it.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from loaderd.config.decode_modes import DecodeModes
from loaderd.core.rng import CounterRng, keys, pcg_seeds
from loaderd.data.pipeline.context import SampleContext, _holds_labels
from loaderd.data.pipeline.request import SampleRequest
from loaderd_testing.sample_builders import silent

SEEDS = pcg_seeds(keys(3, 2, np.array([5], np.int64)))[0]


@pytest.fixture
def rngs() -> tuple[np.random.Generator, np.random.Generator]:
    """With seeds that were known, and as numpy makes it of the key."""
    return SampleContext(
        SampleRequest(3, 2, 5, rng_seeds=SEEDS), silent
    ).rng(), np.random.Generator(np.random.PCG64(CounterRng(3, 2, 5).key()))


def test_it_draws_what_numpys_own_draws(
    rngs: tuple[np.random.Generator, np.random.Generator],
) -> None:
    ours, numpys = rngs
    assert ours.random(8).tolist() == numpys.random(8).tolist()
    assert ours.bit_generator.state == numpys.bit_generator.state


def seeds(rng: np.random.Generator) -> Any:
    """A SeedSequence, or what does as one."""
    return rng.bit_generator.seed_seq


def test_its_copies_and_children_are_those_of_numpys_own(
    rngs: tuple[np.random.Generator, np.random.Generator],
) -> None:
    ours, numpys = rngs
    children = [
        [np.random.Generator(np.random.PCG64(seed)).random() for seed in seeds(rng).spawn(3)]
        for rng in rngs
    ]
    assert children[0] == children[1]
    assert seeds(ours).entropy == seeds(numpys).entropy
    assert seeds(ours).n_children_spawned == 3
    expected = copy.deepcopy(numpys).random(3).tolist()
    assert (
        copy.deepcopy(ours).random(3).tolist()
        == pickle.loads(pickle.dumps(ours)).random(3).tolist()
        == expected
    )


GRAY, MASK = DecodeModes("gray"), DecodeModes("rgb", paired=frozenset({"m"}))
SAID = DecodeModes("rgb", {"m": "gray"}, frozenset({"m"}))


@pytest.mark.parametrize(
    ("modes", "dtype", "shape", "picture", "labels"),
    [
        (DecodeModes("index"), "u1", (4, 4, 3), True, True),
        (DecodeModes("rgb", {"m": "index"}), "f4", (4, 4), False, True),
        (DecodeModes(), "u1", (4, 4), False, True),
        (DecodeModes(), "u1", (4, 4, 1), False, False),
        (DecodeModes(), "u1", (4, 4, 3), False, False),
        (DecodeModes(), "f4", (4, 4), False, False),
        (DecodeModes(), "i8", (4, 4, 1), False, True),
        (DecodeModes(), "?", (4, 4, 1), False, True),
        (MASK, "u1", (4, 4, 1), False, True),
        (MASK, "u1", (4, 4, 1), True, True),
        (MASK, "u1", (4, 4, 3), True, False),
        (SAID, "u1", (4, 4), False, False),
        (GRAY, "u1", (4, 4), True, False),
        (GRAY, "u1", (4, 4), False, True),
        (GRAY, "u2", (4, 4, 1), True, True),
    ],
)
def test_an_arrays_numbers_are_labels_where_nothing_says_that_they_are_colours(
    modes: DecodeModes, dtype: str, shape: tuple[int, ...], picture: bool, labels: bool
) -> None:
    assert _holds_labels("m", np.zeros(shape, dtype), picture, modes) is labels
