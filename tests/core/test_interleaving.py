"""Which source each place takes: exact shares of every window, any place by itself."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

from loaderd.core.interleaving import MOST_UNITS, Interleaving

SOME = [
    [1],
    [Fraction("0.7"), Fraction("0.3")],
    [1, 1],
    [Fraction(1, 3), Fraction(2, 3)],
    [5, 3, 2],
    [1, 1, 1, 1],
    [90, 5, 3, 1, 1],
    [13, 8, 5, 3, 2, 1, 1],
    [1_281_167, 50_000],
]


def drawn(seed: int) -> list[Fraction]:
    draw = random.Random(seed)
    return [
        Fraction(draw.choice([1, 2, 3, draw.randint(1, 300)]), draw.choice([1, 1, 10, 3]))
        for _ in range(draw.choice([2, 3, 4, 6, 11]))
    ]


def word_of(weights: list[Fraction], places: int) -> tuple[Interleaving, list[int]]:
    word = Interleaving([Fraction(weight) for weight in weights])
    return word, word.sources(np.arange(places))[0].tolist()


@pytest.mark.parametrize("weights", [*SOME, *map(drawn, range(12))], ids=str)
def test_no_window_has_more_or_less_of_a_source_than_its_share_and_a_bound(
    weights: list[Fraction],
) -> None:
    places = 1500
    _, owners = word_of(weights, places)
    bound = {1: 0, 2: 1, 3: 2}.get(len(weights), 4)
    for number, weight in enumerate(weights):
        share = Fraction(weight) / sum(map(Fraction, weights))
        had = np.cumsum([0, *(owner == number for owner in owners)])
        error = [int(count) - share * place for place, count in enumerate(had)]
        assert max(error) - min(error) < bound or bound == 0


@pytest.mark.parametrize("weights", [*SOME, *map(drawn, range(12))], ids=str)
def test_counts_and_numbers_are_those_of_counting(weights: list[Fraction]) -> None:
    word, owners = word_of(weights, 700)
    numbers = word.sources(np.arange(700))[1].tolist()
    had = [0] * len(weights)
    for place, owner in enumerate(owners):
        assert word.counts(place) == had
        assert numbers[place] == had[owner]
        had[owner] += 1
        assert word.reach(owner, had[owner]) == place + 1


def test_a_place_far_away_is_that_of_its_period() -> None:
    word, owners = word_of([Fraction(5), Fraction(3), Fraction(2)], 10)
    far = (1 << 61) // 10 * 10
    found, numbers = word.sources(np.arange(far, far + 10))
    assert found.tolist() == owners
    assert word.counts(far) == [far // 2, far * 3 // 10, far // 5]
    assert numbers[0] == far // 10 * word.units[owners[0]]


def test_the_word_has_not_changed_since_it_was_frozen() -> None:
    assert "".join(map(str, word_of(SOME[1], 20)[1])) == GOLDEN_TWO
    assert "".join(map(str, word_of(SOME[4], 20)[1])) == GOLDEN_THREE
    assert "".join(map(str, word_of(SOME[6], 100)[1])) == GOLDEN_FIVE


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([], "above 0"),
        ([Fraction(1), Fraction(0)], "above 0"),
        ([Fraction(1), Fraction(-1)], "above 0"),
        ([Fraction(1, 10**10), Fraction(1)], "whole numbers"),
    ],
)
def test_weights_that_divide_nothing_are_refused(weights: list[Fraction], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Interleaving(weights)


def test_only_the_ratio_of_the_weights_is_limited() -> None:
    assert Interleaving([Fraction(10**30), Fraction(3 * 10**30)]).units == [1, 3]
    assert Interleaving([Fraction(MOST_UNITS - 2), Fraction(1)]).units == [MOST_UNITS - 2, 1]


GOLDEN_TWO = "01000100100100010010"
GOLDEN_THREE = "10201020101020102010"
GOLDEN_FIVE = (
    "00000200000000010000000004000000000100000000020000"
    "00000100000000030000000001000000000200000000010000"
)
