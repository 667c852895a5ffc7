"""A sample's own randomness: frozen values, uniform, independent from sample to sample and op to
op.
"""

from __future__ import annotations

import numpy as np
import pytest

from loaderd.core.rng import TWISTER_WORDS, CounterRng, keys, pcg_seeds, twister_states


def test_draws_have_not_changed_since_they_were_frozen() -> None:
    draws = CounterRng(seed=1, epoch=2, index=3)
    assert [draws.uniform(op, k) for op, k in ((0, 0), (0, 1), (1, 0), (7, 9))] == GOLDEN_UNIFORM
    assert [draws.integer(0, k, 1000) for k in range(4)] == GOLDEN_INTEGER
    assert draws.key() == GOLDEN_KEY
    assert CounterRng(0, 0, 0).uniform(0, 0) == GOLDEN_ZERO


def test_a_draw_does_not_depend_on_those_before_it() -> None:
    one, other = CounterRng(5, 6, 7), CounterRng(5, 6, 7)
    forward = [one.uniform(op, k) for op in range(3) for k in range(5)]
    backward = [other.uniform(op, k) for op in reversed(range(3)) for k in reversed(range(5))]
    assert forward == backward[::-1]


def test_draws_are_uniform_and_have_53_bits() -> None:
    drawn = np.array([CounterRng(0, 0, index).uniform(0, 0) for index in range(20_000)])
    counts, _ = np.histogram(drawn, bins=100, range=(0, 1))
    assert ((counts - 200) ** 2 / 200).sum() < 99 + 4 * np.sqrt(2 * 99)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert (drawn * 2**53 == np.floor(drawn * 2**53)).all()
    assert (drawn * 2**53 % 2 == 1).mean() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("along", ["index", "epoch", "seed", "op", "k"])
def test_neighbouring_draws_are_not_correlated(along: str) -> None:
    def draw(i: int) -> float:
        place = {"seed": 3, "epoch": 1, "index": 17, "op": 2, "k": 0} | {along: i}
        return CounterRng(place["seed"], place["epoch"], place["index"]).uniform(
            place["op"], place["k"]
        )

    drawn = np.array([draw(i) for i in range(10_001)])
    for lag in (1, 2, 3, 16):
        assert abs(np.corrcoef(drawn[lag:], drawn[:-lag])[0, 1]) < 0.04


def test_two_ops_of_one_sample_are_not_correlated() -> None:
    pairs = np.array(
        [
            [CounterRng(0, 0, i).uniform(op, k) for op, k in ((0, 0), (0, 1), (1, 0), (1, 1))]
            for i in range(10_000)
        ]
    )
    off = np.corrcoef(pairs.T) - np.eye(4)
    assert np.abs(off).max() < 0.04


def test_whole_numbers_stay_below_their_bound_and_reach_each_value() -> None:
    drawn = [CounterRng(0, 0, i).integer(1, 0, 7) for i in range(7000)]
    assert np.abs(np.bincount(drawn, minlength=7) - 1000).max() < 5 * np.sqrt(1000)
    assert {CounterRng(0, 0, i).integer(1, 0, 1) for i in range(50)} == {0}
    assert all(0 <= CounterRng(0, 0, i).integer(0, 0, (1 << 63) - 1) < 1 << 63 for i in range(50))


@pytest.mark.parametrize("n", [0, -1, 1 << 63])
def test_a_whole_number_below_nothing_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match=rf"^cannot draw a whole number below {n}$"):
        CounterRng(0, 0, 0).integer(0, 0, n)


def test_neighbouring_samples_epochs_and_seeds_have_keys_of_their_own() -> None:
    keys = {
        CounterRng(seed, epoch, index).key()
        for seed in range(8)
        for epoch in range(8)
        for index in range(64)
    }
    assert len(keys) == 8 * 8 * 64
    assert (
        len({key >> 64 for key in keys}) == len({key & (2**64 - 1) for key in keys}) == 8 * 8 * 64
    )
    assert all(0 <= key < 1 << 128 for key in keys)
    assert CounterRng(1, 0, 0).key() != CounterRng(0, 1, 0).key() != CounterRng(0, 0, 1).key()


def test_the_key_seeds_a_generator_whose_draws_differ_from_sample_to_sample() -> None:
    drawn = [
        np.random.Generator(np.random.PCG64(CounterRng(0, 0, index).key())).random()
        for index in range(1000)
    ]
    assert len(set(drawn)) == 1000
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.12


def test_keys_of_many_samples_are_those_of_each() -> None:
    indices = np.array([0, 1, 17, 2**62 + 5], np.int64)
    halves = keys(3, 2, indices)
    assert [int(high) << 64 | int(low) for high, low in halves] == [
        CounterRng(3, 2, int(index)).key() for index in indices
    ]
    assert keys(3, 2, indices[:0]).shape == (0, 2)


def test_seeds_of_many_generators_are_those_that_numpy_makes_for_each() -> None:
    halves = np.concatenate(
        (
            keys(1, 2, np.arange(300, dtype=np.int64)),
            np.array([[0, 0], [0, 7], [0, 1 << 40], [5, 0]], np.uint64),
        )
    )
    for (high, low), seeds in zip(halves.tolist(), pcg_seeds(halves), strict=True):
        assert (
            seeds.tolist()
            == np.random.SeedSequence(high << 64 | low).generate_state(4, np.uint64).tolist()
        )


def test_states_of_twisters_have_not_changed_since_they_were_frozen() -> None:
    states = twister_states(keys(1, 2, np.array([3, 4], np.int64)))
    assert states.shape == (2, 2, TWISTER_WORDS)
    assert states[:, :, [0, -1]].ravel().tolist() == GOLDEN_STATES
    np.testing.assert_array_equal(twister_states(keys(1, 2, np.array([4], np.int64)))[0], states[1])


@pytest.mark.parametrize("generator", [0, 1])
def test_first_draws_from_such_states_are_uniform_and_independent_from_sample_to_sample(
    generator: int,
) -> None:
    states = twister_states(keys(0, 0, np.arange(4000, dtype=np.int64))).view(np.uint32)[
        :, generator
    ]
    made = np.random.RandomState()
    drawn = np.empty((len(states), 4))
    for row, state in enumerate(states):
        made.set_state(("MT19937", state, 624, 0, 0.0))
        drawn[row] = made.random(4)
    for column in drawn.T:
        counts, _ = np.histogram(column, bins=50, range=(0, 1))
        assert ((counts - 80) ** 2 / 80).sum() < 49 + 4 * np.sqrt(2 * 49)
    for lag in (1, 2, 7):
        assert abs(np.corrcoef(drawn[lag:, 0], drawn[:-lag, 0])[0, 1]) < 4 / np.sqrt(4000)
    assert np.abs(np.corrcoef(drawn.T) - np.eye(4)).max() < 4 / np.sqrt(4000)


def test_half_of_the_bits_differ_between_the_states_of_two_samples_and_of_two_generators() -> None:
    states = twister_states(keys(0, 0, np.arange(64, dtype=np.int64)))
    for one, other in ((states[1:], states[:-1]), (states[:, 0], states[:, 1])):
        bits = np.unpackbits(np.ascontiguousarray(one ^ other).view(np.uint8))
        assert abs(bits.mean() - 0.5) < 4 / np.sqrt(4 * len(bits)) * 1.5


GOLDEN_UNIFORM = [0.322981040445118, 0.7643080729653967, 0.5903503424997066, 0.5198490118297002]
GOLDEN_INTEGER = [322, 764, 628, 565]
GOLDEN_KEY = 34446870985642610727006219972460409114
GOLDEN_ZERO = 0.8189781164787536
GOLDEN_STATES = [
    17409183179857247004,
    15105108470393413774,
    7719671763438616286,
    16164139013453089753,
    12305539515982097907,
    12764805243785288224,
    3767707397948566825,
    16141770404824238878,
]
