"""The order of an epoch: a pure function from positions to dataset indices.

Its memory does not grow with the dataset.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from math import isqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from loaderd.core.hashing import FIRST, MASK, SECOND, STRIDE, Purpose, below, hash64, mix_in
from loaderd.core.jobs import MAX_SUBSTITUTES
from loaderd.core.weighted_draw import WeightedDraw

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

SORTED = 256  # a permutation of up to so many elements is a table; above, it is computed
ROUNDS = 6
TABLE_BLOCKS = 1024  # blocks whose tables are made at once
REMEMBERED = 8  # permutations whose keys are kept: some sessions, each at the end of an epoch

_END = re.compile(r"\s*(?:(\d+(?:\.\d*)?|\.\d+)\s*%|(\d+))?\s*")


def _word(n: int) -> Words:
    """A constant for array arithmetic.

    With an array without dimensions a numpy call costs a third less than with a scalar.
    """
    return np.array(n, np.uint64)


_30, _27, _31, _32 = map(_word, (30, 27, 31, 32))
_FIRST, _SECOND, _STRIDE = map(_word, (FIRST, SECOND, STRIDE))


def split_bounds(text: str, total: int) -> tuple[int, int]:
    """The half-open range of samples that a split stands for.

    Args:
        text: "LOW:HIGH". An end is a percentage ("12.5%", rounded down exactly), a count ("1000"),
            or left out.
        total: Samples that are split.

    Raises:
        ValueError: The text is not of that form, or its range is empty or beyond the end.
    """
    parts = text.split(":")
    if len(parts) != 2:
        raise ValueError(f"split {text!r} is not LOW:HIGH, as in '0%:95%' or '0:1000'")
    low, high = (
        _split_end(part, default, text, total)
        for part, default in zip(parts, (0, total), strict=True)
    )
    if low >= high:
        raise ValueError(f"split {text!r} of {total} samples is empty: it is [{low}, {high})")
    return low, high


def _split_end(part: str, default: int, text: str, total: int) -> int:
    match = _END.fullmatch(part)
    if match is None:
        raise ValueError(f"split {text!r}: {part!r} is neither a percentage nor a count")
    percent, count = match.groups()
    if percent is None and count is None:
        return default
    end = int(count) if percent is None else Fraction(percent) * total // 100
    if end > total:
        raise ValueError(f"split {text!r}: {part!r} is beyond the end of {total} samples")
    return int(end)


class StreamOrder(Protocol):
    """What every order is asked; `Order` says what each means."""

    samples: int

    def indices(self, seed: int, epoch: int, positions: Ints) -> Ints:
        """Dataset indices at positions of an epoch."""
        ...

    def index(self, seed: int, epoch: int, position: int) -> int:
        """The dataset index at one position."""
        ...

    def substitute(self, seed: int, epoch: int, position: int, tries: int) -> int:
        """The dataset index to try in place of a bad sample."""
        ...

    def candidate(self, seed: int, epoch: int, position: int, candidate: int) -> int:
        """The dataset index that a row may be made from."""
        ...


class Order:
    """The order of a stream: position -> dataset index, for every (seed, epoch).

    Attributes:
        samples: Length of an epoch.
        selected: Number of different samples that the stream has.
    """

    def __init__(
        self,
        total: int,
        split: str = "0%:100%",
        split_by: str = "random",
        shuffle: int = 0,
        *,
        listed: Ints | None = None,
        draw: WeightedDraw | None = None,
        repeat: int = 1,
    ) -> None:
        """Describe an order.

        Args:
            total: Samples of the dataset, or of the list.
            split: Which of them, as for `split_bounds`.
            split_by: Of what the split is a slice. "random": of one fixed pseudo-random order of
                all samples. "stored": of the stored order. A split of all samples is in the stored
                order.
            shuffle: 0: none. 1: a permutation of all samples. N >= 2: blocks of N samples are
                permuted, and the samples inside each block; the short last block moves as one.
            listed: int64[total], dataset indices that stand for the samples, in their stored order.
                None: all samples of the dataset.
            draw: Draws from the samples of the split, in stored order; `shuffle` changes nothing
                then. None: each sample comes as often as any other.
            repeat: How often each sample comes in an epoch, or how many times as long as the split
                an epoch is in which they are drawn.

        Raises:
            ValueError: A value makes no sense.
        """
        if total < 1:
            raise ValueError(f"a dataset of {total} samples has no order")
        if split_by not in ("random", "stored"):
            raise ValueError(f"split_by must be 'random' or 'stored', not {split_by!r}")
        if shuffle < 0:
            raise ValueError(f"shuffle must be 0, 1 or a block of samples, not {shuffle}")
        if repeat < 1:
            raise ValueError(f"repeat must be 1 or more, not {repeat}")
        self._low, high = split_bounds(split, total)
        self.selected = high - self._low
        self.samples = self.selected * repeat
        self._scattered = split_by == "random" and self.selected < total
        self._listed = listed
        self._draw = draw
        self._repeat = repeat
        self._total = total
        self._shuffle = shuffle

    def indices(self, seed: int, epoch: int, positions: Ints) -> Ints:
        """Dataset indices at positions of an epoch.

        Args:
            seed: The session's seed.
            epoch: Number of the epoch, from 0.
            positions: int64[n], each taken modulo `samples`.

        Returns:
            A new array, int64[n].
        """
        return self._of_split(self._places(seed, epoch, positions))

    def index(self, seed: int, epoch: int, position: int) -> int:
        """The dataset index at one position, which may be any int."""
        return int(self.indices(seed, epoch, np.array([position % self.samples], np.int64))[0])

    def substitute(self, seed: int, epoch: int, position: int, tries: int) -> int:
        """The dataset index to try in place of a bad sample, with on_error = "replace".

        It is never the position's own, if the stream has more than one sample.

        Args:
            seed: The session's seed.
            epoch: Number of the epoch.
            position: Any int.
            tries: Number of the try, from 1 to MAX_SUBSTITUTES.
        """
        if not 1 <= tries <= MAX_SUBSTITUTES:
            raise ValueError(f"there are substitutes 1 to {MAX_SUBSTITUTES}, not {tries}")
        position %= self.samples
        value = hash64(Purpose.SUBSTITUTE, seed, epoch, position, tries)
        ahead = 1 + below(value, max(1, self.selected - 1))
        if self._draw is None and self._repeat == 1:
            return self.index(seed, epoch, position + ahead)
        place = int(self._places(seed, epoch, np.array([position], np.int64))[0])
        if self._draw is not None:
            place = self._draw.other(value, place)
        else:
            place = (place + ahead) % self.selected
        return int(self._of_split(np.array([place], np.uint64))[0])

    def candidate(self, seed: int, epoch: int, position: int, candidate: int) -> int:
        """The dataset index that a row may be made from.

        Args:
            seed: The session's seed.
            epoch: Number of the epoch.
            position: Any int.
            candidate: 0 for the position's own sample, n for its n-th substitute.
        """
        return (
            self.substitute(seed, epoch, position, candidate)
            if candidate
            else self.index(seed, epoch, position)
        )

    @property
    def repeats(self) -> bool:
        """Whether a sample may come several times in an epoch."""
        return self._draw is not None or self._repeat > 1

    def rows(self, seed: int, epoch: int, positions: Ints) -> tuple[Ints, Words]:
        """Which samples are at positions of an epoch, and what their randomness is a function of.

        Args:
            seed: The session's seed.
            epoch: Number of the epoch.
            positions: int64[n], each taken modulo `samples`.

        Returns:
            int64[n], dataset indices. uint64[n], in place of the epoch: the epoch itself where a
            sample comes for the first time; no two positions with one sample have the same.
        """
        if self._draw is not None:
            occurrences = np.remainder(positions, self.samples).astype(np.uint64)
        else:
            occurrences = self._passes(seed, epoch, positions) // np.uint64(self.selected)
        epochs = _mix((occurrences ^ np.uint64(hash64(Purpose.REPETITION, epoch))) + _STRIDE)
        epochs[occurrences == 0] = np.uint64(epoch & MASK)
        return self.indices(seed, epoch, positions), epochs

    def origin(self, seed: int, own_epoch: int, index: int) -> tuple[int, int, int]:
        """Whose randomness a sample has that `rows` gave this epoch: (seed, epoch, index)."""
        return seed, own_epoch, index

    def _places(self, seed: int, epoch: int, positions: Ints) -> Words:
        """Places in [0, selected), in stored order, of the samples at some positions."""
        if self._draw is not None:
            places = np.remainder(positions, self.samples).astype(np.uint64)
            return self._draw.places(hash64(Purpose.WEIGHTED, seed, epoch), places)
        places = self._passes(seed, epoch, positions)
        return places if self._repeat == 1 else places % np.uint64(self.selected)

    def _passes(self, seed: int, epoch: int, positions: Ints) -> Words:
        """Likewise in [0, samples): `repeat` passes over the stored order, one behind the other."""
        places = np.remainder(positions, self.samples).astype(np.uint64)
        if self._shuffle == 1:
            places = permutation(hash64(Purpose.EPOCH, seed, epoch), self.samples)(places)
        elif self._shuffle > 1:
            places = self._in_blocks(hash64(Purpose.EPOCH, seed, epoch), places)
        return places

    def _of_split(self, places: Words) -> Ints:
        places += np.uint64(self._low)
        if self._scattered:
            places = permutation(hash64(Purpose.SPLIT), self._total)(places)
        indices = places.astype(np.int64)
        return indices if self._listed is None else self._listed[indices]

    def _in_blocks(self, key: int, places: Words) -> Words:
        """Permute the full blocks among themselves.

        The short one, if any, is put before a drawn block.
        """
        size = self._shuffle
        full, short = divmod(self.samples, size)
        # where the short block begins
        short_at = below(hash64(Purpose.SHORT_BLOCK, key), full + 1) * size
        behind = places >= np.uint64(short_at + short)
        in_short = (places >= np.uint64(short_at)) & ~behind
        places[behind] -= np.uint64(short)
        block, offset = np.divmod(places, np.uint64(size))
        out = np.empty_like(places)
        if full:
            chosen = ~in_short
            moved = permutation(key, full)(block[chosen])
            out[chosen] = moved * np.uint64(size) + _inside(key, moved, offset[chosen], size)
        if in_short.any():
            offset = places[in_short] - np.uint64(short_at)
            out[in_short] = np.uint64(full * size) + _inside(
                key, np.full_like(offset, full), offset, short
            )
        return out


def _inside(key: int, blocks: Words, offsets: Words, size: int) -> Words:
    """Each offset, permuted in [0, size) by the permutation of its own block."""
    out = np.empty_like(offsets)
    names = np.unique(blocks)
    which = np.searchsorted(names, blocks)
    inside = hash64(Purpose.INSIDE_BLOCK, key)
    if size > SORTED:
        for i, name in enumerate(names.tolist()):
            rows = which == i
            out[rows] = permutation(mix_in(inside, name), size)(offsets[rows])
        return out
    for first in range(0, len(names), TABLE_BLOCKS):
        rows = (which >= first) & (which < first + TABLE_BLOCKS)
        keys = _mix((names[first : first + TABLE_BLOCKS] ^ np.uint64(inside)) + _STRIDE)
        out[rows] = _tables(keys, size)[which[rows] - first, offsets[rows].astype(np.int64)]
    return out


def _mix(words: Words) -> Words:
    """`mix` of each word of an array."""
    words = (words ^ (words >> _30)) * _FIRST
    words = (words ^ (words >> _27)) * _SECOND
    return words ^ (words >> _31)


def _tables(keys: Words, n: int) -> Words:
    """A permutation of [0, n) for each key: the numbers sorted by their hash.

    Equal hashes keep their order.

    Returns:
        uint64[len(keys), n].
    """
    hashes = _mix((keys[:, None] ^ np.arange(n, dtype=np.uint64)) + _STRIDE)
    return np.argsort(hashes, axis=1, kind="stable").astype(np.uint64)


@lru_cache(maxsize=REMEMBERED)
def permutation(key: int, n: int) -> Callable[[Words], Words]:
    """The keyed bijection of [0, n): a function from uint64 arrays to new uint64 arrays."""
    if n <= SORTED:
        table = _tables(np.array([key], np.uint64), n)[0]
        return lambda words: table[words.astype(np.int64)]
    return FeistelPermutation(key, n)


class FeistelPermutation:
    """A bijection of [0, n) without a table, for n < 2**62.

    It is a Feistel network on [0, a) x [0, b), where a * b is just above n. A result that is not
    below n goes through the network again until it is ("cycle walking").

    A word is x * b + y. The rounds add in turn to x a hash of y, modulo a, and to y a hash of x,
    modulo b. a and b are near the square root of n, so a * b exceeds n by less than a, and at most
    one element in sqrt(n) has to go through the network again.
    """

    def __init__(self, key: int, n: int) -> None:
        a = isqrt(n - 1) + 1
        self._n, self._a, self._b = _word(n), _word(a), _word(-(-n // a))
        self._keys = [_word(hash64(Purpose.ROUND, key, i)) for i in range(ROUNDS)]

    def __call__(self, words: Words) -> Words:
        """Where some numbers below n go: a new uint64 array of the same shape."""
        words = self._once(words)
        beyond = np.flatnonzero(words >= self._n)
        while len(beyond):
            words[beyond] = self._once(words[beyond])
            beyond = beyond[words[beyond] >= self._n]
        return words

    def _once(self, words: Words) -> Words:
        x = words // self._b
        y = words - x * self._b
        left, right = self._a, self._b
        for key in self._keys:
            h = y + key
            h *= _FIRST
            h ^= h >> _32
            h *= _SECOND
            h >>= _32
            h *= left
            h >>= _32
            x += h
            # x modulo `left`: x is below 2 * left, and where it is below `left` the difference
            # wraps around to a number far above it.
            x, y = y, np.minimum(x, x - left)
            left, right = right, left
        return x * self._b + y  # an even number of rounds: x and y are back in their places
