"""A sample's own random values.

What an op draws depends on (seed, epoch, index), on the op and on the number of the draw, and on
nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from loaderd.core.hashing import FIRST, MASK, SECOND, STRIDE, Purpose, below, hash64, mix, mix_in

BOTH = slice(0, 2)
VIEW = 1 << 32  # no op has this number
TWISTER_WORDS = 312  # uint64: the 624 words of 32 bits that a Mersenne Twister has for a state


class CounterRng:
    """The random values of one sample. They may be asked for in any order; there is no state."""

    __slots__ = ("_seed", "_view", "_words")

    def __init__(self, seed: int, epoch: int, index: int, view: int = 0) -> None:
        """Name the sample, and which of its views.

        Args:
            seed: The session's seed.
            epoch: Number of the epoch, from 0.
            index: The sample's place in the dataset.
            view: Number of the view; the draws of each differ.
        """
        self._words = (seed, epoch, index)
        self._view = view
        self._seed: int | None = None  # a sample without chance has no use for it

    def _viewed(self, state: int) -> int:
        return mix_in(state, VIEW, self._view) if self._view else state

    def _draw(self, op: int, k: int) -> int:
        if self._seed is None:
            seed, epoch, index = self._words
            self._seed = self._viewed(mix_in(_begun(Purpose.DRAW, seed, epoch), index))
        return mix_in(self._seed, op, k)

    def uniform(self, op: int, k: int) -> float:
        """A multiple of 2**-53 in [0, 1).

        Args:
            op: The op's place among the stream's transforms.
            k: Number of the draw within the op.
        """
        return (self._draw(op, k) >> 11) * 2.0**-53

    def integer(self, op: int, k: int, n: int) -> int:
        """A whole number in [0, n).

        Args:
            op: The op's place among the stream's transforms.
            k: Number of the draw within the op.
            n: The range.

        Raises:
            ValueError: n is not in [1, 2**63).
        """
        if not 1 <= n < 1 << 63:
            raise ValueError(f"cannot draw a whole number below {n}")
        return below(self._draw(op, k), n)

    def key(self) -> int:
        """128 bits for `numpy.random.Generator(numpy.random.PCG64(key))`, which user code gets."""
        seed, epoch, index = self._words
        high = self._viewed(mix_in(_begun(Purpose.KEY, seed, epoch), index))
        return (high << 64) | mix_in(high, 1)


@lru_cache(maxsize=64)
def _begun(purpose: Purpose, seed: int, epoch: int) -> int:
    """What the hashes of all samples of an epoch begin with."""
    return hash64(purpose, seed, epoch)


def keys(seed: int, epoch: int, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The keys of many samples.

    Args:
        seed: The session's seed.
        epoch: Number of the epoch.
        indices: int64[n], places in the dataset.

    Returns:
        uint64[n, 2]: upper and lower half of `Draws.key` of each.
    """
    begun = np.uint64(_begun(Purpose.KEY, seed, epoch))
    halves = np.empty((len(indices), 2), np.uint64)
    halves[:, 0] = _mixed((indices.astype(np.uint64) ^ begun) + np.uint64(STRIDE))
    halves[:, 1] = _mixed((halves[:, 0] ^ np.uint64(1)) + np.uint64(STRIDE))
    return halves


def keys_of(origins: Iterable[tuple[int, int, int]]) -> NDArray[np.uint64]:
    """The keys of samples of different epochs, as `keys` has them.

    Args:
        origins: (seed, epoch, index) of each.
    """
    whole = [CounterRng(*origin).key() for origin in origins]
    halves = np.empty((len(whole), 2), np.uint64)
    halves[:, 0] = [key >> 64 for key in whole]
    halves[:, 1] = [key & MASK for key in whole]
    return halves


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`digest.mix` of each."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(FIRST)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(SECOND)
    return words ^ (words >> np.uint64(31))


def twister_states(halves: NDArray[np.uint64], which: slice = BOTH) -> NDArray[np.uint64]:
    """The states of two Mersenne Twisters for each key, neither all zeros.

    Each word is the upper half of a key, made odd, times an odd constant of its own (multiplicative
    hashing: what two keys have in common is lost), its upper bits folded into the lower ones. For a
    few samples at a time: 5 KB each, which are to be used from the cache.

    Args:
        halves: What `keys` returned: uint64, shape (n, 2).
        which: Which of the two to make.

    Returns:
        uint64, shape (n, 2 or 1, TWISTER_WORDS).
    """
    words: NDArray[np.uint64] = (halves[:, :1, None] | np.uint64(1)) * _FACTORS[which]
    words ^= words >> np.uint64(32)
    return words


_FACTORS = np.array(
    [
        [mix((k + 1) * STRIDE & MASK) | 1 for k in range(n, n + TWISTER_WORDS)]
        for n in (0, TWISTER_WORDS)
    ],
    np.uint64,
)


def pcg_seeds(halves: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """What numpy.random.SeedSequence(key).generate_state(4, numpy.uint64) returns for each key.

    Its algorithm, which numpy keeps, over all keys at once: 200 us for up to a few hundred, where
    numpy takes 15 us for each.

    Args:
        halves: What `keys` returned: uint64, shape (n, 2).

    Returns:
        uint64, shape (n, 4).
    """
    words = [
        (halves[:, half] >> np.uint64(shift)).astype(np.uint32)
        for half in (1, 0)
        for shift in (0, 32)
    ]
    turn, pool = _Turn(0x43B0D7E5, 0x931E8875), list[NDArray[np.uint32]]()
    for word in words:
        pool.append(turn.hashed(word))
    for source in range(4):
        for to in range(4):
            if to != source:
                mixed = pool[to] * np.uint32(0xCA01F9DD) - turn.hashed(pool[source]) * np.uint32(
                    0x4973F715
                )
                pool[to] = mixed ^ (mixed >> np.uint32(16))
    turn = _Turn(0x8B51F9DD, 0x58F38DED)
    made = [turn.hashed(pool[k % 4]).astype(np.uint64) for k in range(8)]
    return np.stack(
        [low | (high << np.uint64(32)) for low, high in zip(made[::2], made[1::2], strict=True)],
        axis=1,
    )


class _Turn:
    """The hash of SeedSequence, whose constant changes from word to word."""

    def __init__(self, constant: int, factor: int) -> None:
        self._constant, self._factor = constant, factor

    def hashed(self, words: NDArray[np.uint32]) -> NDArray[np.uint32]:
        words = words ^ np.uint32(self._constant)
        self._constant = self._constant * self._factor & 0xFFFFFFFF
        words = words * np.uint32(self._constant)
        return words ^ (words >> np.uint32(16))
