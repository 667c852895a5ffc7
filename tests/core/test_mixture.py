"""The order of a mixture: each source through its own epochs, any position by itself."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from loaderd.core.interleaving import Interleaving
from loaderd.core.mixture import JoinedOrder, MixedOrder, MixedSource, epoch_of_mixture
from loaderd.core.order import Order

A, B = Order(10, shuffle=1), Order(7, "1:7", "stored", shuffle=1)
SOURCES = [MixedSource(A, 10, seed=3), MixedSource(B, 7, seed=4)]
WORD = Interleaving([Fraction("0.7"), Fraction("0.3")])


def mixture(stop: str) -> MixedOrder:
    return MixedOrder(SOURCES, WORD, epoch_of_mixture(WORD, [10, 6], stop), endless=False)


def whole(order: MixedOrder, seed: int, epochs: int) -> list[list[int]]:
    return [
        order.indices(seed, epoch, np.arange(order.samples)).tolist() for epoch in range(epochs)
    ]


def alone(order: Order, seed: int, count: int) -> list[int]:
    """The first samples of a source through its own epochs."""
    passes = range(-(-count // order.samples))
    each = [order.indices(seed, epoch, np.arange(order.samples)).tolist() for epoch in passes]
    return [index for epoch in each for index in epoch][:count]


@pytest.mark.parametrize(
    "order", [mixture("first"), mixture("all"), MixedOrder(SOURCES, WORD, 13, endless=True)]
)
def test_each_source_goes_through_its_own_epochs_in_its_own_order(order: MixedOrder) -> None:
    seed = 20
    mixed = [index for epoch in whole(order, seed, 9) for index in epoch]
    a = [index for index in mixed if index < 10]
    b = [index - 10 for index in mixed if index >= 10]
    assert a == alone(A, seed + 3, len(a))
    assert b == alone(B, seed + 4, len(b))


def test_the_source_that_ends_an_epoch_is_in_it_exactly_once() -> None:
    for epoch in whole(mixture("first"), 0, 5):
        assert sorted(index for index in epoch if index < 10) == list(range(10))
        assert len(epoch) == 14
    for epoch in whole(mixture("all"), 0, 5):
        assert sorted(index - 10 for index in epoch if index >= 10) == list(range(1, 7))
        assert sum(index < 10 for index in epoch) >= 10
    assert set(whole(mixture("all"), 0, 1)[0]) >= set(range(10))


def test_an_endless_mixture_keeps_its_shares_over_the_ends_of_epochs() -> None:
    order = MixedOrder(SOURCES, WORD, 13, endless=True)
    owners = [index >= 10 for epoch in whole(order, 0, 10) for index in epoch]
    assert owners == WORD.sources(np.arange(130))[0].astype(bool).tolist()


def test_one_source_is_its_own_endless_order() -> None:
    order = MixedOrder([MixedSource(A, 10)], Interleaving([Fraction(1)]), 4, endless=True)
    assert [index for epoch in whole(order, 7, 5) for index in epoch] == alone(A, 7, 20)


@pytest.mark.parametrize(
    "order", [mixture("first"), mixture("all"), MixedOrder(SOURCES, WORD, 13, endless=True)]
)
def test_each_position_is_the_same_by_itself_as_among_others(order: MixedOrder) -> None:
    for epoch in (0, 1, 5, 1 << 60, 3 << 60):
        indices, epochs = order.rows(2, epoch, np.arange(order.samples))
        for position in range(order.samples):
            index, own = order.rows(2, epoch, np.array([position + order.samples]))
            assert (index[0], own[0]) == (indices[position], epochs[position])
            assert order.index(2, epoch, position) == order.candidate(2, epoch, position, 0)
            assert order.index(2, epoch, position) == index[0]


def test_the_epoch_of_a_row_is_that_of_its_source() -> None:
    order = mixture("all")
    indices, epochs = order.rows(0, 2, np.arange(order.samples))
    had = 2 * WORD.counts(order.samples)[0]
    for index, own in zip(indices.tolist(), epochs.tolist(), strict=True):
        if index < 10:
            assert own == had // 10
            had += 1
        else:
            assert own == 2


def test_a_substitute_is_another_sample_of_the_same_source() -> None:
    order = mixture("all")
    for position in range(order.samples):
        own = order.index(1, 3, position)
        others = [order.substitute(1, 3, position, tries) for tries in range(1, 17)]
        assert own not in others
        assert all((other >= 10) == (own >= 10) for other in others)
        assert others == [order.candidate(1, 3, position, tries) for tries in range(1, 17)]


def test_an_index_tells_its_source() -> None:
    order = mixture("all")
    assert [order.source_of(index) for index in (0, 9, 10, 16)] == [(0, 0), (0, 9), (1, 0), (1, 6)]


@pytest.mark.parametrize("shuffle", [0, 1])
def test_joined_sources_give_every_sample_of_each_once(shuffle: int) -> None:
    order = JoinedOrder(
        [MixedSource(Order(10), 10), MixedSource(Order(7, "1:7", "stored"), 7)], shuffle
    )
    found = order.indices(3, 0, np.arange(order.samples)).tolist()
    expected = [*range(10), *range(11, 17)]
    assert sorted(found) == expected
    assert (found == expected) is not bool(shuffle)
    assert [order.candidate(3, 0, p, 0) for p in range(16)] == found
    assert [order.candidate(3, 0, p, 1) for p in range(16)] == [*found[1:], found[0]]


def test_the_order_of_a_mixture_has_not_changed_since_it_was_frozen() -> None:
    assert whole(mixture("all"), 7, 2) == GOLDEN


def test_an_epoch_without_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="no order"):
        MixedOrder(SOURCES, WORD, 0, endless=True)


GOLDEN = [
    [1, 11, 6, 3, 9, 14, 8, 0, 13, 5, 4, 15, 2, 7, 7, 16, 5, 3, 12],
    [0, 15, 9, 1, 2, 12, 4, 8, 14, 6, 7, 16, 2, 9, 4, 13, 8, 3, 11],
]
