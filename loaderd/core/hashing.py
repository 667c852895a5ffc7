"""The one source of chance in loaderd: a counter-based 64-bit hash.

It is the same in every version, process and library. Orders, splits, substitutes and augmentation
all draw `digest(purpose, ...)` of whole numbers. Golden values in the tests freeze it. It has no
state.
"""

from __future__ import annotations

from enum import IntEnum

MASK = (1 << 64) - 1
STRIDE = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio, odd: keeps the places of the words apart
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # multipliers of `mix`, public domain


class Purpose(IntEnum):
    """The first word of every hash, so that no two uses ever share a value."""

    EPOCH = 1
    SHORT_BLOCK = 2
    INSIDE_BLOCK = 3
    SPLIT = 4
    SUBSTITUTE = 5
    DRAW = 6
    KEY = 7
    ROUND = 8
    BATCHES = 9
    IN_BUCKET = 10
    WEIGHTED = 11
    REPETITION = 12


def mix(word: int) -> int:
    """A bijection of [0, 2**64) in which every bit of the result depends on every bit of `word`.

    Source: Stafford's thirteenth variant of the finalizer of MurmurHash3, as in SplitMix64.
    """
    word = ((word ^ (word >> 30)) * FIRST) & MASK
    word = ((word ^ (word >> 27)) * SECOND) & MASK
    return word ^ (word >> 31)


def mix_in(state: int, *words: int) -> int:
    """Hash further words into a state.

    Args:
        state: A hash, in [0, 2**64).
        words: Each is taken modulo 2**64.

    Returns:
        A hash that depends on the state and on each word in its place:
        absorb(absorb(s, a), b) == absorb(s, a, b).
    """
    for word in words:
        # `mix`, written out here, because this runs for every sample.
        word = ((state ^ (word & MASK)) + STRIDE) & MASK
        word = ((word ^ (word >> 30)) * FIRST) & MASK
        word = ((word ^ (word >> 27)) * SECOND) & MASK
        state = word ^ (word >> 31)
    return state


def hash64(purpose: Purpose, *words: int) -> int:
    """A value in [0, 2**64) that depends on the purpose and on each word in its place."""
    return mix_in(0, purpose, *words)


def below(value: int, n: int) -> int:
    """Map a hash to [0, n), in exact integer arithmetic.

    Args:
        value: In [0, 2**64).
        n: Below 2**63. No value of [0, n) is preferred by more than n / 2**64.
    """
    return (value * n) >> 64
