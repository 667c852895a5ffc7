"""The order of an epoch: a bijection, uniform, frozen by golden values, cheap at any size."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from loaderd.core.hashing import MASK, Purpose, hash64, mix
from loaderd.core.order import SORTED, FeistelPermutation, Order, _mix, split_bounds

SIZES = (
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    9,
    13,
    31,
    32,
    33,
    97,
    127,
    128,
    129,
    255,
    256,
    257,
    258,
    509,
    1000,
    1023,
    1024,
    1025,
    4099,
    65535,
    65536,
    65537,
)


def epoch_of(order: Order, seed: int = 5, epoch: int = 2) -> list[int]:
    return order.indices(seed, epoch, np.arange(order.samples)).tolist()


def upper_tail(chi_square: float, freedom: float) -> float:
    """P(X > chi_square) by Wilson and Hilferty's cube root, good to a few percent for freedom > 30."""
    spread = 2 / (9 * freedom)
    z = ((chi_square / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return math.erfc(z / math.sqrt(2)) / 2


def chi_square_of(counts: np.ndarray, trials: int) -> tuple[float, float]:
    """Of how often each position held each index, over `trials` permutations: (statistic, degrees
    of freedom).

    Rows and columns of a permutation both sum to one, so the deviations live in (n - 1)**2
    dimensions, each of variance trials / (n - 1).
    """
    n = len(counts)
    return float(((counts - trials / n) ** 2).sum() * (n - 1) / trials), (n - 1.0) ** 2


@pytest.mark.parametrize("n", SIZES)
def test_an_epoch_is_every_sample_once_at_any_size(n: int) -> None:
    for epoch in range(3):
        assert sorted(epoch_of(Order(n, shuffle=1), epoch=epoch)) == list(range(n))


@pytest.mark.parametrize("n", [n for n in SIZES if n >= 2])
def test_the_computed_permutation_is_a_bijection_where_the_table_would_do(n: int) -> None:
    assert sorted(
        FeistelPermutation(hash64(Purpose.EPOCH, 9, n), n)(np.arange(n, dtype=np.uint64)).tolist()
    ) == list(range(n))


@pytest.mark.parametrize("n", [10, 1000])
def test_every_position_holds_every_index_equally_often(n: int) -> None:
    order, positions = Order(n, shuffle=1), np.arange(n)
    counts = np.zeros((n, n))
    for seed, epoch in itertools.product(range(100), range(100)):
        counts[positions, order.indices(seed, epoch, positions)] += 1
    p = upper_tail(*chi_square_of(counts, 10_000))
    assert 1e-4 < p < 1 - 1e-4


def test_the_computed_permutation_is_uniform_where_it_is_smallest() -> None:
    n = 10
    counts = np.zeros((n, n))
    for trial in range(10_000):
        counts[
            np.arange(n),
            FeistelPermutation(hash64(Purpose.EPOCH, trial), n)(
                np.arange(n, dtype=np.uint64)
            ).astype(int),
        ] += 1
    assert 1e-4 < upper_tail(*chi_square_of(counts, 10_000)) < 1 - 1e-4


def test_neighbouring_positions_hold_independent_indices() -> None:
    n, trials = 300, 300
    assert n > SORTED
    order = Order(n, shuffle=1)
    steps = np.zeros(n)
    for trial in range(trials):
        indices = order.indices(trial, 0, np.arange(n))
        np.add.at(steps, (indices[1:] - indices[:-1]) % n, 1)
    expected = trials * (n - 1) / (n - 1)
    assert steps[0] == 0
    assert (
        1e-4 < upper_tail(float(((steps[1:] - expected) ** 2 / expected).sum()), n - 2) < 1 - 1e-4
    )


@pytest.mark.parametrize("n", [3, 4])
def test_every_permutation_of_a_few_samples_comes_equally_often(n: int) -> None:
    order = Order(n, shuffle=1)
    seen = Counter(
        tuple(order.indices(seed, epoch, np.arange(n)).tolist())
        for seed in range(100)
        for epoch in range(60)
    )
    expected = 6000 / math.factorial(n)
    assert len(seen) == math.factorial(n)
    assert max(abs(count - expected) for count in seen.values()) < 5 * math.sqrt(expected)


def test_seed_one_epoch_zero_is_not_seed_zero_epoch_one() -> None:
    for n in (50, 5000):
        order = Order(n, shuffle=1)
        assert (
            len(
                {
                    tuple(epoch_of(order, *pair))
                    for pair in ((1, 0), (0, 1), (0, 0), (1, 1), (2, 0), (0, 2))
                }
            )
            == 6
        )


def test_order_has_not_changed_since_it_was_frozen() -> None:
    assert epoch_of(Order(10, shuffle=1), 0, 0) == GOLDEN_TEN
    assert Order(1000, shuffle=1).indices(7, 3, np.arange(6)).tolist() == GOLDEN_THOUSAND
    assert (
        Order(1_281_167, "0%:95%", shuffle=1).indices(7, 3, np.arange(6)).tolist() == GOLDEN_SPLIT
    )
    assert Order(1_000_000_007, shuffle=1).indices(0, 1, np.arange(4)).tolist() == GOLDEN_GREAT
    assert epoch_of(Order(11, shuffle=3), 1, 2) == GOLDEN_BLOCKS
    assert Order(10_000, shuffle=300).indices(4, 4, np.arange(4)).tolist() == GOLDEN_LONG_BLOCKS
    assert [
        Order(1000, "10%:90%", shuffle=1).substitute(3, 1, 5, t) for t in (1, 2, 16)
    ] == GOLDEN_SUBSTITUTES


def test_the_unshuffled_epoch_is_the_stored_order_in_every_epoch() -> None:
    assert epoch_of(Order(7), 1, 1) == epoch_of(Order(7), 2, 9) == list(range(7))


def test_positions_beyond_the_end_wrap_around_and_any_subset_gives_the_same_indices() -> None:
    for order in (
        Order(1000, shuffle=1),
        Order(1000, shuffle=64),
        Order(1000, "20%:60%", shuffle=1),
        Order(1000),
    ):
        whole = epoch_of(order)
        n = order.samples
        assert order.indices(5, 2, np.array([n, n + 3, 5 * n - 1])).tolist() == [
            whole[0],
            whole[3],
            whole[-1],
        ]
        scattered = np.random.default_rng(0).integers(0, n, 77)
        assert order.indices(5, 2, scattered).tolist() == [whole[p] for p in scattered]
        assert order.indices(5, 2, np.arange(0)).tolist() == []


def test_asking_leaves_the_positions_as_they_were() -> None:
    for order in (
        Order(1000, shuffle=1),
        Order(1000, shuffle=64),
        Order(1000, "20%:60%"),
        Order(1000),
    ):
        positions = np.arange(40, 60)
        order.indices(1, 1, positions)
        assert positions.tolist() == list(range(40, 60))


def test_a_billion_samples_take_no_memory_and_repeat_nothing() -> None:
    order = Order(1_000_000_000, "5%:100%", shuffle=1)
    blocks = Order(1_000_000_000, shuffle=4096)
    order.indices(0, 0, np.arange(8))
    tracemalloc.start()
    rng = np.random.default_rng(1)
    scattered = np.unique(
        np.concatenate(
            [
                rng.integers(0, order.samples, 50_000),
                np.arange(50_000),
                order.samples - 1 - np.arange(50_000),
            ]
        )
    )
    runs = np.concatenate(
        [np.arange(50_000), 500_000_000 + np.arange(50_000), blocks.samples - 1 - np.arange(50_000)]
    )
    for asked, positions in ((order, scattered), (blocks, runs)):
        indices = np.concatenate(
            [asked.indices(1, 2, piece) for piece in np.array_split(positions, 200)]
        )
        assert len(np.unique(indices)) == len(positions)
        assert 0 <= indices.min() < indices.max() < 1_000_000_000
    grown, _ = tracemalloc.get_traced_memory()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20
    assert grown < 8 << 20


def test_the_hash_of_an_array_is_the_hash_of_each_word() -> None:
    words = [0, 1, 2**32, 2**63, MASK, *(hash64(Purpose.KEY, i) for i in range(100))]
    assert _mix(np.array(words, np.uint64)).tolist() == [mix(word) for word in words]


def test_walking_on_is_rare_so_that_the_cost_is_that_of_one_pass() -> None:
    for n in (257, 258, 1025, 65_537, 1_281_167, 10**9 + 7, (1 << 40) + 1):
        walk = FeistelPermutation(1, n)
        assert int(walk._a) * int(walk._b) - n < int(walk._a)


@pytest.mark.parametrize(
    ("n", "block"),
    [
        (10, 2),
        (11, 3),
        (12, 4),
        (100, 7),
        (1000, 64),
        (5000, 300),
        (5, 9),
        (9, 9),
        (10, 9),
        (3000, 257),
    ],
)
def test_blocks_stay_together_and_the_short_last_block_moves_as_one(n: int, block: int) -> None:
    order = Order(n, shuffle=block)
    places = set()
    for epoch in range(40):
        indices = epoch_of(order, epoch=epoch)
        assert sorted(indices) == list(range(n))
        runs = [
            (name, len(list(run))) for name, run in itertools.groupby(i // block for i in indices)
        ]
        assert len(runs) == -(-n // block), "a block was torn apart"
        places.add([name for name, _ in runs].index(n // block) if n % block else None)
    if n % block and n > 2 * block:
        assert len(places) > 1, "the short block never moves"


def test_blocks_and_what_is_in_them_are_permuted_evenly() -> None:
    n, block, trials = 12, 3, 6000
    order = Order(n, shuffle=block)
    first, inside, together = np.zeros((4, 4)), np.zeros((3, 3)), np.zeros((3, 3))
    for trial in range(trials):
        indices = np.array(epoch_of(order, trial // 60, trial % 60)).reshape(4, 3)
        first[np.arange(4), indices[:, 0] // 3] += 1
        inside[np.arange(3), indices[0] % 3] += 1
        together[indices[0, 0] % 3, indices[1, 0] % 3] += 1
    assert (abs(first - trials / 4) < 5 * math.sqrt(trials / 4)).all()
    assert (abs(inside - trials / 3) < 5 * math.sqrt(trials / 3)).all()
    assert (abs(together - trials / 9) < 5 * math.sqrt(trials / 9)).all(), (
        "two blocks are permuted in step"
    )


def test_the_two_parts_of_a_split_share_nothing_and_leave_nothing_out() -> None:
    for total in (20, 21, 999, 1000, 10_007):
        for shuffle in (0, 1, 16):
            train = epoch_of(Order(total, "0%:95%", shuffle=shuffle))
            val = epoch_of(Order(total, "95%:100%", shuffle=shuffle))
            assert sorted(train + val) == list(range(total))


def test_a_random_split_is_spread_over_the_data_and_a_stored_one_is_not() -> None:
    val = epoch_of(Order(10_000, "90%:100%"))
    assert min(val) < 100
    assert max(val) > 9900
    assert epoch_of(Order(10_000, "90%:100%", "stored")) == list(range(9000, 10_000))
    assert sorted(epoch_of(Order(10_000, "0:7", "stored", shuffle=1))) == list(range(7))
    assert epoch_of(Order(10_000, "90%:100%"), 1, 1) == val, "the split depends on the seed"


@pytest.mark.parametrize(
    ("text", "total", "bounds"),
    [
        ("0%:100%", 10, (0, 10)),
        ("0%:95%", 999, (0, 949)),
        ("95%:100%", 999, (949, 999)),
        ("33.3%:66.6%", 1000, (333, 666)),
        ("0%:0.1%", 1000, (0, 1)),
        ("0%:29%", 100, (0, 29)),
        ("100:200", 1000, (100, 200)),
        ("10%:200", 1000, (100, 200)),
        (":10%", 1000, (0, 100)),
        ("999:", 1000, (999, 1000)),
        (" 1 : 2 ", 3, (1, 2)),
        ("0%:0.0000001%", 10**9, (0, 1)),
    ],
)
def test_an_end_of_a_split_is_the_floor_of_the_exact_decimal(
    text: str, total: int, bounds: tuple[int, int]
) -> None:
    assert split_bounds(text, total) == bounds


@pytest.mark.parametrize(
    ("text", "total", "complaint"),
    [
        ("", 10, "LOW:HIGH"),
        ("50%", 10, "LOW:HIGH"),
        ("0:1:2", 10, "LOW:HIGH"),
        ("a:b", 10, "neither"),
        ("-1:5", 10, "neither"),
        ("0%:1e1%", 10, "neither"),
        ("0.5:5", 10, "neither"),
        ("0:11", 10, "beyond the end of 10"),
        ("0%:101%", 1000, "beyond the end"),
        ("5:5", 10, "empty"),
        ("60%:40%", 10, "empty"),
        ("0%:1%", 10, r"empty: it is \[0, 0\)"),
    ],
)
def test_a_split_that_makes_no_sense_is_named(text: str, total: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Order(total, text)


def test_a_dataset_without_samples_or_an_unknown_word_is_refused() -> None:
    with pytest.raises(ValueError, match="0 samples"):
        Order(0)
    with pytest.raises(ValueError, match="split_by"):
        Order(5, split_by="sorted")
    with pytest.raises(ValueError, match="shuffle"):
        Order(5, shuffle=-1)


def test_a_substitute_is_another_sample_of_the_split_and_differs_from_try_to_try() -> None:
    for order in (Order(1000, "20%:70%", shuffle=1), Order(40), Order(300, shuffle=8)):
        members = epoch_of(order)
        for position in range(0, order.samples, 7):
            drawn = [order.substitute(5, 2, position, t) for t in range(1, 17)]
            assert set(drawn) <= set(members) - {members[position]}
            assert len(set(drawn)) > 8
            assert drawn[3] == order.substitute(5, 2, position + order.samples, 4)
    assert Order(1).substitute(0, 0, 0, 1) == 0
    assert {Order(2).substitute(0, 0, 0, t) for t in range(1, 17)} == {1}


def test_substitutes_are_drawn_evenly() -> None:
    order = Order(9)
    seen = Counter(order.substitute(seed, 0, 4, t) for seed in range(500) for t in range(1, 17))
    assert set(seen) == set(range(9)) - {4}
    assert max(abs(count - 1000) for count in seen.values()) < 5 * math.sqrt(1000)


@pytest.mark.parametrize("tries", [0, 17, -1])
def test_a_substitute_beyond_the_sixteenth_is_refused(tries: int) -> None:
    with pytest.raises(ValueError, match="substitutes 1 to 16"):
        Order(10).substitute(0, 0, 0, tries)


GOLDEN_REPEATED = [3, 0, 3, 1, 0, 2, 2, 1, 0, 2, 3, 1]
GOLDEN_TEN = [3, 1, 9, 6, 2, 4, 7, 8, 0, 5]
GOLDEN_THOUSAND = [49, 580, 126, 868, 714, 129]
GOLDEN_SPLIT = [1273595, 623501, 289812, 1270131, 1069121, 152303]
GOLDEN_GREAT = [82828107, 25591787, 729228788, 503706142]
GOLDEN_BLOCKS = [9, 10, 2, 0, 1, 7, 6, 8, 4, 5, 3]
GOLDEN_LONG_BLOCKS = [3354, 3413, 3489, 3355]
GOLDEN_SUBSTITUTES = [215, 952, 368]


def test_each_sample_comes_as_often_as_it_is_repeated() -> None:
    order = Order(7, shuffle=1, repeat=3)
    assert order.samples == 21
    assert order.selected == 7
    assert Counter(epoch_of(order)) == dict.fromkeys(range(7), 3)
    assert epoch_of(Order(4, shuffle=1, repeat=3), 7, 3) == GOLDEN_REPEATED


def test_repeated_samples_without_shuffle_come_in_whole_passes() -> None:
    assert epoch_of(Order(3, repeat=2)) == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("shuffle", [0, 1, 4])
def test_each_occurrence_of_a_repeated_sample_has_randomness_of_its_own(shuffle: int) -> None:
    order = Order(10, shuffle=shuffle, repeat=3)
    indices, epochs = order.rows(5, 2, np.arange(30))
    assert indices.tolist() == epoch_of(order)
    assert len(set(zip(indices.tolist(), epochs.tolist(), strict=True))) == 30
    assert epochs.tolist().count(2) == 10, "the first one has that of the epoch"
    assert not set(epochs.tolist()) & set(order.rows(5, 3, np.arange(30))[1].tolist())
    assert order.origin(5, int(epochs[0]), 7) == (5, int(epochs[0]), 7)
    assert order.repeats
    assert not Order(10, shuffle=shuffle).repeats


@pytest.mark.parametrize("shuffle", [0, 1, 4])
def test_substitute_of_a_repeated_sample_is_another_one(shuffle: int) -> None:
    order = Order(5, shuffle=shuffle, repeat=4)
    for position in range(20):
        own = order.index(0, 0, position)
        assert own not in {order.substitute(0, 0, position, t) for t in range(1, 17)}


def test_list_of_samples_stands_for_the_stored_order() -> None:
    listed = np.array([40, 10, 30, 20])
    assert epoch_of(Order(4, listed=listed)) == [40, 10, 30, 20]
    assert epoch_of(Order(4, "25%:75%", "stored", listed=listed)) == [10, 30]
    assert sorted(epoch_of(Order(4, shuffle=1, listed=listed))) == [10, 20, 30, 40]
    assert Order(4, listed=listed).substitute(0, 0, 0, 1) in {10, 20, 30}


def test_repeat_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="repeat must be 1 or more, not 0"):
        Order(3, repeat=0)
