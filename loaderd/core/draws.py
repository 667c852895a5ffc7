"""A sample's own randomness: what an op draws depends on (seed, epoch, index), the op and the draw's number, and on nothing else."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from loaderd.core.digest import FIRST, MASK, SECOND, STRIDE, Purpose, absorb, below, digest, mix

TWISTER_WORDS = 312  # uint64: the 624 words of 32 bits that a Mersenne Twister has for a state


class Draws:
    """The draws of one sample. Any order of asking gives the same values; there is no state to share or to save.

    seed: the session's; epoch and index (the sample's place in the dataset): whole numbers from 0.
    """

    __slots__ = ("_seed", "_words")

    def __init__(self, seed: int, epoch: int, index: int) -> None:
        self._words = (seed, epoch, index)
        self._seed: int | None = None  # a sample without chance has no use for it

    def _draw(self, op: int, k: int) -> int:
        if self._seed is None:
            seed, epoch, index = self._words
            self._seed = absorb(_begun(Purpose.DRAW, seed, epoch), index)
        return absorb(self._seed, op, k)

    def uniform(self, op: int, k: int) -> float:
        """Draw k of op `op` (its place among the stream's transforms): a multiple of 2**-53 in [0, 1)."""
        return (self._draw(op, k) >> 11) * 2.0**-53

    def integer(self, op: int, k: int, n: int) -> int:
        """Draw k of op `op` as a whole number in [0, n). Raises ValueError unless 1 <= n < 2**63."""
        if not 1 <= n < 1 << 63:
            raise ValueError(f"cannot draw a whole number below {n}")
        return below(self._draw(op, k), n)

    def key(self) -> int:
        """128 bits for `numpy.random.Generator(numpy.random.PCG64(key))`, the generator that user code gets."""
        seed, epoch, index = self._words
        high = absorb(_begun(Purpose.KEY, seed, epoch), index)
        return (high << 64) | absorb(high, 1)


@lru_cache(maxsize=64)
def _begun(purpose: Purpose, seed: int, epoch: int) -> int:
    """What the digests of all samples of an epoch begin with."""
    return digest(purpose, seed, epoch)


def keys(seed: int, epoch: int, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
    """uint64[n, 2]: the upper and the lower half of the key of each sample's Draws."""
    begun = np.uint64(_begun(Purpose.KEY, seed, epoch))
    halves = np.empty((len(indices), 2), np.uint64)
    halves[:, 0] = _mixed((indices.astype(np.uint64) ^ begun) + np.uint64(STRIDE))
    halves[:, 1] = _mixed((halves[:, 0] ^ np.uint64(1)) + np.uint64(STRIDE))
    return halves


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`digest.mix` of each."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(FIRST)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(SECOND)
    return words ^ (words >> np.uint64(31))


def twister_states(halves: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """uint64[n, 2, TWISTER_WORDS]: for each of these `keys` the states of two Mersenne Twisters, neither all zeros.

    Each word is the upper half of a key, made odd, times an odd constant of its own (multiplicative hashing: what two keys have in common
    is lost), its upper bits folded into the lower ones. For a few samples at a time: 5 KB each, which are to be used from the cache.
    """
    words: NDArray[np.uint64] = (halves[:, :1, None] | np.uint64(1)) * _FACTORS
    words ^= words >> np.uint64(32)
    return words


_FACTORS = np.array([[mix((k + 1) * STRIDE & MASK) | 1 for k in range(n, n + TWISTER_WORDS)] for n in (0, TWISTER_WORDS)], np.uint64)
