"""Sampling with replacement: by weights, pure, frozen by golden values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loaderd.core.hashing import MASK, mix
from loaderd.core.order import Order
from loaderd.core.weighted_draw import ALL, WeightedDraw, weight_ends

WEIGHTS = np.array([1.0, 0.0, 3.0, 4.0])
GOLDEN_DRAWS = [2, 3, 3, 3, 2, 3, 3, 3, 3, 0, 0, 3]
GOLDEN_SUBSTITUTES = [0, 2, 0, 2, 2]


def order(weights: np.ndarray = WEIGHTS, repeat: int = 1, **words: Any) -> Order:
    draw = WeightedDraw(weight_ends(weights))
    return Order(len(weights), draw=draw, repeat=repeat, **words)


def test_draws_and_their_substitutes_never_change() -> None:
    assert order(repeat=3).indices(7, 3, np.arange(12)).tolist() == GOLDEN_DRAWS
    assert [order(repeat=3).substitute(7, 3, 5, t) for t in range(1, 6)] == GOLDEN_SUBSTITUTES


def test_sample_is_drawn_as_often_as_its_weight_says() -> None:
    drawn = order(repeat=20_000).indices(1, 0, np.arange(80_000))
    counts = np.bincount(drawn, minlength=4)
    expected = WEIGHTS / WEIGHTS.sum() * 80_000
    assert counts[1] == 0
    seen = expected > 0
    assert ((counts - expected)[seen] ** 2 / expected[seen]).sum() < 20  # 2 degrees of freedom


def test_two_epochs_and_two_seeds_draw_different_samples() -> None:
    draws = [
        tuple(order(np.ones(100)).indices(seed, epoch, np.arange(100)))
        for seed, epoch in ((0, 0), (0, 1), (1, 0))
    ]
    assert len(set(draws)) == 3


def test_draw_at_a_position_does_not_depend_on_what_else_is_asked() -> None:
    made = order(np.arange(1.0, 51.0))
    whole = made.indices(3, 2, np.arange(50))
    assert [made.index(3, 2, p) for p in range(50)] == whole.tolist()
    assert made.indices(3, 2, np.arange(100))[50:].tolist() == whole.tolist()


def test_shuffle_changes_nothing_where_samples_are_drawn() -> None:
    assert [order(shuffle=s, repeat=3).indices(7, 3, np.arange(12)).tolist() for s in (0, 1)] == [
        GOLDEN_DRAWS,
        GOLDEN_DRAWS,
    ]


def test_draws_come_from_the_samples_of_the_split_alone() -> None:
    made = Order(10, "20%:60%", "stored", draw=WeightedDraw(weight_ends(np.ones(4))), repeat=50)
    assert set(made.indices(0, 0, np.arange(200)).tolist()) == {2, 3, 4, 5}


def test_substitute_of_a_draw_is_another_sample_that_has_a_weight() -> None:
    made = order(np.array([0.0, 1e9, 1e-3, 0.0, 1e-3]), repeat=4)
    for position in range(20):
        own = made.index(0, 0, position)
        others = {made.substitute(0, 0, position, t) for t in range(1, 17)}
        assert own not in others
        assert others <= {1, 2, 4}


def test_only_sample_with_a_weight_is_its_own_substitute() -> None:
    assert order(np.array([0.0, 2.0, 0.0])).substitute(0, 0, 1, 1) == 1


def test_substitutes_are_drawn_by_their_weights() -> None:
    made = order(np.array([6.0, 1.0, 3.0]), repeat=1000)
    positions = [p for p in range(3000) if made.index(0, 0, p) == 0]
    drawn = [made.substitute(0, 0, p, 1) for p in positions]
    share = drawn.count(2) / len(drawn)
    assert abs(share - 0.75) < 5 * (0.75 * 0.25 / len(drawn)) ** 0.5


def test_hash_of_a_draw_is_that_of_the_house() -> None:
    ends = np.arange(1, 1025, dtype=np.int64) * (ALL // 1024)
    key, positions = 12345, np.arange(50, dtype=np.uint64)
    expected = [mix(((p ^ key) + 0x9E3779B97F4A7C15) & MASK) >> 54 for p in range(50)]
    assert WeightedDraw(ends).places(key, positions).tolist() == expected


def test_scale_of_the_weights_does_not_matter() -> None:
    ends = [weight_ends(WEIGHTS * scale).tolist() for scale in (1.0, 2.0**900, 2.0**-900)]
    assert ends[0] == ends[1] == ends[2]
    assert weight_ends(np.array([1e308, 1e308])).tolist() == [ALL // 2, ALL]


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ([1.0, -0.5], "weight 1 is -0.5"),
        ([1.0, 2.0, float("nan")], "weight 2 is nan"),
        ([float("inf")], "weight 0 is inf"),
        ([0.0, 0.0], "all 2 weights are 0"),
    ],
)
def test_weights_that_make_no_sense_are_named(weights: list[float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        weight_ends(np.array(weights))


def test_sample_that_is_drawn_twice_has_other_randomness_each_time() -> None:
    indices, epochs = order(repeat=50).rows(7, 3, np.arange(200))
    assert len(set(zip(indices.tolist(), epochs.tolist(), strict=True))) == 200
    assert order().repeats
