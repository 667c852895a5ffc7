"""The one source of chance in loaderd: a counter-based 64-bit hash, the same in every version, process and library.

Whatever is random (orders, splits, substitutes, augmentation) is `digest(purpose, ...)` of whole numbers; the golden values in the
tests freeze it. Nothing here has state.
"""

from __future__ import annotations

from enum import IntEnum

MASK = (1 << 64) - 1
STRIDE = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio, odd: keeps the places of the words apart
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # the multipliers of Stafford's thirteenth mix, public domain


class Purpose(IntEnum):
    """The first word of every digest, so that no two uses ever share a value."""

    EPOCH = 1
    SHORT_BLOCK = 2
    INSIDE_BLOCK = 3
    SPLIT = 4
    SUBSTITUTE = 5
    DRAW = 6
    KEY = 7
    ROUND = 8


def mix(word: int) -> int:
    """A bijection of [0, 2**64) in which every bit of the answer depends on every bit of `word`."""
    word = ((word ^ (word >> 30)) * FIRST) & MASK
    word = ((word ^ (word >> 27)) * SECOND) & MASK
    return word ^ (word >> 31)


def absorb(state: int, *words: int) -> int:
    """`state` with further words (each taken modulo 2**64) stirred in, in order: absorb(absorb(s, a), b) == absorb(s, a, b)."""
    for word in words:
        word = ((state ^ (word & MASK)) + STRIDE) & MASK  # `mix` of it, written out: every sample pays for this
        word = ((word ^ (word >> 30)) * FIRST) & MASK
        word = ((word ^ (word >> 27)) * SECOND) & MASK
        state = word ^ (word >> 31)
    return state


def digest(purpose: Purpose, *words: int) -> int:
    """A value in [0, 2**64) that depends on the purpose and on each word in its place."""
    return absorb(0, purpose, *words)


def below(value: int, n: int) -> int:
    """Map a digest to [0, n), n < 2**63: exact integer arithmetic, uneven by less than n / 2**64."""
    return (value * n) >> 64
