"""Batches of similar length: every sample once, never too many tokens, any batch by itself."""

from __future__ import annotations

import random

import numpy as np
import pytest

from loaderd.core.bucket_plan import BatchLimits, LengthClass, batches_of, buckets_of
from loaderd.core.buckets import ABSENT, BucketOrder, length_classes


class Lengths:
    """Samples of drawn lengths, and their order."""

    def __init__(self, seed: int, limits: BatchLimits, *, shuffle: bool = True) -> None:
        draw = random.Random(seed)
        self.limits = limits
        self.of = [int(draw.paretovariate(1.2)) % 200 for _ in range((1, 7, 300)[seed % 3])]
        ranked = np.argsort(np.array(self.of), kind="stable")
        self.buckets = buckets_of(length_classes(np.array(self.of)[ranked]), limits)
        self.order = BucketOrder(ranked, self.buckets, limits.rows, shuffle=shuffle)

    def batches(self, seed: int, epoch: int) -> list[list[int]]:
        found = self.order.indices(seed, epoch, np.arange(self.order.samples)).tolist()
        rows = self.limits.rows
        return [found[at : at + rows] for at in range(0, len(found), rows)]


LIMITS = [BatchLimits(8), BatchLimits(16, 256), BatchLimits(5, 208, multiple=8)]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_sample_comes_once_and_no_batch_holds_more_than_its_limits(
    limits: BatchLimits, shuffle: bool
) -> None:
    for seed in range(12):
        lengths = Lengths(seed, limits, shuffle=shuffle)
        for epoch in range(3):
            batches = lengths.batches(5, epoch)
            assert len(batches) == batches_of(lengths.buckets)
            seen: list[int] = []
            for batch in batches:
                there = [index for index in batch if index != ABSENT]
                assert there == batch[: len(there)], "a hole in the middle of a batch"
                assert there
                longest = max(lengths.of[index] for index in there)
                padded = -(-longest // limits.multiple) * limits.multiple
                assert not limits.tokens or len(there) * padded <= limits.tokens
                seen += there
            assert sorted(seen) == list(range(len(lengths.of)))


def test_lengths_of_a_full_batch_are_within_an_eighth() -> None:
    ascending = np.repeat(np.arange(1, 400), 50)
    buckets = buckets_of(length_classes(ascending), BatchLimits(4))
    for bucket in buckets:
        lengths = ascending[bucket.first : bucket.first + bucket.count]
        assert lengths[-1] <= lengths[0] * 9 / 8
    assert len(buckets) < 60


def test_samples_and_batches_change_their_neighbours_from_epoch_to_epoch() -> None:
    lengths = Lengths(2, BatchLimits(8))
    assert len(lengths.of) == 300
    first, second = lengths.batches(0, 0), lengths.batches(0, 1)
    assert first != second
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in second}
    longest = [max(lengths.of[i] for i in batch if i != ABSENT) for batch in first]
    assert longest != sorted(longest)


def test_without_shuffle_batches_come_from_the_shortest_to_the_longest() -> None:
    lengths = Lengths(2, BatchLimits(8), shuffle=False)
    seen = [lengths.of[i] for batch in lengths.batches(0, 0) for i in batch if i != ABSENT]
    assert seen == sorted(seen)
    assert lengths.batches(0, 0) == lengths.batches(9, 4)


@pytest.mark.parametrize("shuffle", [True, False])
def test_each_position_is_the_same_by_itself_as_among_others(shuffle: bool) -> None:
    order = Lengths(2, BatchLimits(16, 256), shuffle=shuffle).order
    together = order.indices(1, 2, np.arange(order.samples)).tolist()
    assert [order.index(1, 2, p) for p in range(order.samples)] == together
    assert [order.candidate(1, 2, p + order.samples, 0) for p in range(40)] == together[:40]


def test_a_substitute_is_another_sample_of_the_same_bucket() -> None:
    lengths = Lengths(2, BatchLimits(16, 256))
    order, ranked = lengths.order, np.argsort(np.array(lengths.of), kind="stable").tolist()
    for position in range(order.samples):
        own = order.index(1, 3, position)
        if own == ABSENT:
            continue
        place = ranked.index(own)
        (bucket,) = [b for b in lengths.buckets if b.first <= place < b.first + b.count]
        for tries in (1, 2, 16):
            other = order.substitute(1, 3, position, tries)
            assert other == order.candidate(1, 3, position, tries)
            assert bucket.first <= ranked.index(other) < bucket.first + bucket.count
            assert other != own or bucket.count == 1


def test_the_order_of_buckets_has_not_changed_since_it_was_frozen() -> None:
    order = BucketOrder(
        np.arange(30),
        buckets_of([LengthClass(22, 4), LengthClass(7, 60), LengthClass(1, 130)], LIMITS[2]),
        5,
        shuffle=True,
    )
    assert order.indices(7, 3, np.arange(order.samples)).tolist() == GOLDEN


@pytest.mark.parametrize("tries", [0, 17])
def test_there_is_no_such_substitute(tries: int) -> None:
    with pytest.raises(ValueError, match="1 to 16"):
        Lengths(1, BatchLimits(8)).order.substitute(0, 0, 0, tries)


def test_what_fits_into_no_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="length 65 alone is over max_tokens = 64"):
        buckets_of([LengthClass(3, 4), LengthClass(2, 65)], BatchLimits(8, 64))
    with pytest.raises(ValueError, match="length 61 alone is over max_tokens = 63"):
        buckets_of([LengthClass(2, 61)], BatchLimits(8, 63, multiple=8))
    with pytest.raises(ValueError, match="no batches"):
        BucketOrder(np.arange(0), (), 8, shuffle=True)


GOLDEN = [
    18,
    21,
    14,
    1,
    9,
    28,
    -1,
    -1,
    -1,
    -1,
    20,
    5,
    -1,
    -1,
    -1,
    6,
    12,
    19,
    2,
    7,
    25,
    -1,
    -1,
    -1,
    -1,
    29,
    -1,
    -1,
    -1,
    -1,
    11,
    4,
    16,
    0,
    10,
    26,
    -1,
    -1,
    -1,
    -1,
    13,
    15,
    3,
    8,
    17,
    23,
    -1,
    -1,
    -1,
    -1,
    24,
    -1,
    -1,
    -1,
    -1,
    22,
    -1,
    -1,
    -1,
    -1,
    27,
    -1,
    -1,
    -1,
    -1,
]
