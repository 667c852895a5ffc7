"""Which buckets samples of similar length fall into, and how many rows a batch of each has.

Whole numbers alone: the daemon asks without numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_BATCHES = 4  # of a bucket, so that few of its batches are short


@dataclass(frozen=True, slots=True)
class LengthClass:
    """Samples of nearly one length.

    Attributes:
        count: How many there are, at least 1.
        longest: The greatest length among them.
    """

    count: int
    longest: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """Samples that share batches.

    Attributes:
        first: Place of the first one among all samples sorted by length.
        count: How many there are.
        rows: Rows of a batch of them.
    """

    first: int
    count: int
    rows: int

    @property
    def batches(self) -> int:
        """Batches of an epoch; the last one may have fewer rows."""
        return -(-self.count // self.rows)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What a batch may hold.

    Attributes:
        rows: Most rows.
        tokens: Most rows times the length of the longest, 0 for no limit.
        multiple: Lengths are rounded up to a multiple of this before they are counted.
    """

    rows: int
    tokens: int = 0
    multiple: int = 1

    def rows_of(self, longest: int) -> int:
        """Rows of a batch whose longest sample has this length.

        Raises:
            ValueError: Not even one such sample fits.
        """
        each = max(1, -(-longest // self.multiple) * self.multiple)
        if not self.tokens:
            return self.rows
        if each > self.tokens:
            raise ValueError(
                f"a sample of length {longest:,} alone is over max_tokens = {self.tokens:,}"
            )
        return min(self.rows, self.tokens // each)


def buckets_of(classes: Sequence[LengthClass], limits: BatchLimits) -> tuple[Bucket, ...]:
    """The buckets of a stream: neighbouring classes, joined where they are small.

    Args:
        classes: From the shortest lengths to the longest.
        limits: What a batch may hold.

    Raises:
        ValueError: A sample fits into no batch.
    """
    buckets: list[Bucket] = []
    first = count = 0
    for number, each in enumerate(classes):
        count += each.count
        rows = limits.rows_of(each.longest)
        if count >= LEAST_BATCHES * rows or number == len(classes) - 1:
            buckets.append(Bucket(first, count, rows))
            first, count = first + count, 0
    return tuple(buckets)


def batches_of(buckets: Sequence[Bucket]) -> int:
    """Batches of an epoch."""
    return sum(bucket.batches for bucket in buckets)
