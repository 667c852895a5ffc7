"""The one source of chance: frozen, sensitive to every bit of every word and to the order of words."""

from __future__ import annotations

from loaderd.core.hashing import MASK, Purpose, below, hash64, mix, mix_in


def test_the_digest_has_not_changed_since_it_was_frozen() -> None:
    assert [
        hash64(Purpose.EPOCH),
        hash64(Purpose.EPOCH, 0),
        hash64(Purpose.EPOCH, 1, 0),
        hash64(Purpose.KEY, 2**62, 5),
    ] == GOLDEN
    assert (mix(0), mix(1), mix(MASK)) == (0, 0x5692161D100B05E5, 0xB4D055FCF2CBBD7B)


def test_words_count_by_their_place_number_and_purpose() -> None:
    tuples = [(), (0,), (1,), (0, 0), (1, 0), (0, 1), (0, 0, 0), (1, 0, 0), (0, 0, 1)]
    assert len({hash64(purpose, *words) for purpose in Purpose for words in tuples}) == len(
        tuples
    ) * len(Purpose)


def test_words_may_be_stirred_in_one_by_one() -> None:
    assert mix_in(mix_in(hash64(Purpose.DRAW), 5), 6) == hash64(Purpose.DRAW, 5, 6)


def test_each_bit_of_a_word_changes_half_the_bits_of_the_digest() -> None:
    for bit in range(64):
        changed = [
            (hash64(Purpose.DRAW, i, 7) ^ hash64(Purpose.DRAW, i ^ (1 << bit), 7)).bit_count()
            for i in range(200)
        ]
        assert 30 < sum(changed) / len(changed) < 34


def test_below_covers_its_range_evenly() -> None:
    assert below(0, 10) == 0
    assert below(MASK, 10) == 9
    counts = [0] * 10
    for i in range(10_000):
        counts[below(hash64(Purpose.DRAW, i), 10)] += 1
    assert max(abs(count - 1000) for count in counts) < 150


GOLDEN = [10451216379200822465, 6791897765849424158, 6301985355436268297, 8550315294620116332]
