"""Batches of samples of similar length: a pure order whose batches have different numbers of rows.

The samples of a stream, sorted by length once, are cut into buckets. In each epoch the samples are
permuted inside their bucket, a bucket is cut into batches of as many rows as its longest sample
allows, and the batches of all buckets are permuted. Nothing is kept of an epoch.

Each batch has `batch_size` positions of the epoch, so that it is a slice of the order like any
other. Those behind its rows have no sample.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loaderd.core.bucket_plan import Bucket, LengthClass, batches_of
from loaderd.core.hashing import Purpose, below, hash64
from loaderd.core.jobs import MAX_SUBSTITUTES
from loaderd.core.order import Ints, permutation

ABSENT = -1  # in place of an index, at a position without a sample
GROWTH = 8  # a class of lengths ends an eighth above its shortest, and not before the next number


def length_classes(ascending: NDArray[np.integer]) -> tuple[LengthClass, ...]:
    """The classes that lengths fall into.

    Args:
        ascending: int[n], all lengths, in order.
    """
    classes: list[LengthClass] = []
    first = 0
    while first < len(ascending):
        shortest = int(ascending[first])
        end = int(np.searchsorted(ascending, shortest + shortest // GROWTH, side="right"))
        classes.append(LengthClass(end - first, int(ascending[end - 1])))
        first = end
    return tuple(classes)


class BucketOrder:
    """The order of a stream in buckets, for every (seed, epoch). Has the methods of an `Order`.

    Position p of an epoch is row p % batch_size of batch p // batch_size.

    Attributes:
        samples: Positions of an epoch: batch_size for each batch.
    """

    def __init__(
        self, ranked: Ints, buckets: Sequence[Bucket], batch_size: int, *, shuffle: bool
    ) -> None:
        """Describe an order.

        Args:
            ranked: int[n], the dataset indices of all samples, from the shortest to the longest.
            buckets: What they are cut into.
            batch_size: Positions of a batch, at least as many as any bucket's rows.
            shuffle: Whether samples and batches are permuted. Else they come as in `ranked`.

        Raises:
            ValueError: There is no batch.
        """
        if not buckets:
            raise ValueError("an order of no samples has no batches")
        self._ranked = ranked
        self._buckets = buckets
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._batches = batches_of(buckets)
        self._ends = np.cumsum([bucket.batches for bucket in buckets])
        self.samples = self._batches * batch_size

    def indices(self, seed: int, epoch: int, positions: Ints) -> Ints:
        """As `Order.indices`, with ABSENT at positions behind the rows of their batch."""
        owners, places = self._places(seed, epoch, np.remainder(positions, self.samples))
        found = np.full(len(places), ABSENT, np.int64)
        for number in np.unique(owners[places != ABSENT]).tolist():
            mine = np.flatnonzero((owners == number) & (places != ABSENT))
            found[mine] = self._of_bucket(seed, epoch, number, places[mine])
        return found

    def index(self, seed: int, epoch: int, position: int) -> int:
        """As `Order.index`."""
        return int(self.indices(seed, epoch, np.array([position % self.samples], np.int64))[0])

    def substitute(self, seed: int, epoch: int, position: int, tries: int) -> int:
        """As `Order.substitute`: another sample of the same bucket."""
        if not 1 <= tries <= MAX_SUBSTITUTES:
            raise ValueError(f"there are substitutes 1 to {MAX_SUBSTITUTES}, not {tries}")
        position %= self.samples
        owners, places = self._places(seed, epoch, np.array([position], np.int64))
        owner, count = int(owners[0]), self._buckets[int(owners[0])].count
        ahead = 1 + below(
            hash64(Purpose.SUBSTITUTE, seed, epoch, position, tries), max(1, count - 1)
        )
        return int(self._of_bucket(seed, epoch, owner, (places + ahead) % count)[0])

    def candidate(self, seed: int, epoch: int, position: int, candidate: int) -> int:
        """As `Order.candidate`."""
        return (
            self.substitute(seed, epoch, position, candidate)
            if candidate
            else self.index(seed, epoch, position)
        )

    def _places(self, seed: int, epoch: int, positions: Ints) -> tuple[Ints, Ints]:
        """(number of its bucket, place there or ABSENT) of each position."""
        batches, rows = np.divmod(positions, self._batch_size)
        if self._shuffle:
            key = hash64(Purpose.BATCHES, seed, epoch)
            batches = permutation(key, self._batches)(batches.astype(np.uint64)).astype(np.int64)
        owners = np.searchsorted(self._ends, batches, side="right")
        before = self._ends[owners] - np.array([b.batches for b in self._buckets])[owners]
        most = np.array([bucket.rows for bucket in self._buckets])[owners]
        counts = np.array([bucket.count for bucket in self._buckets])[owners]
        places = (batches - before) * most + rows
        places[(rows >= most) | (places >= counts)] = ABSENT
        return owners, places

    def _of_bucket(self, seed: int, epoch: int, number: int, places: Ints) -> Ints:
        """The dataset indices at places of a bucket."""
        bucket = self._buckets[number]
        if self._shuffle:
            key = hash64(Purpose.IN_BUCKET, seed, epoch, number)
            places = permutation(key, bucket.count)(places.astype(np.uint64)).astype(np.int64)
        return np.asarray(self._ranked[bucket.first + places], np.int64)
