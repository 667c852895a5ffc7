"""A sample's own randomness: what an op draws depends on (seed, epoch, index), the op and the draw's number, and on nothing else."""

from __future__ import annotations

from functools import lru_cache

from loaderd.core.digest import Purpose, absorb, below, digest


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
