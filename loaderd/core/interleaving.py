"""Which of several sources each place of an endless sequence takes, by exact weights.

Pure integer arithmetic: nothing is drawn, and no place depends on another.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]

MOST_UNITS = 1 << 31  # of all weights together, so that products of two stay below 2**62


@dataclass(frozen=True, slots=True)
class _Fork:
    """Divides a sequence between two parts as evenly as whole numbers allow.

    Attributes:
        left: A source's number, or what divides the left part further.
        right: Likewise.
        share: Of each `units` elements, so many go to the left.
        units: Length after which everything repeats.
    """

    left: int | _Fork
    right: int | _Fork
    share: int
    units: int

    def lefts(self, count: int) -> int:
        """How many of the first `count` elements go to the left: the nearest whole number."""
        return (count * self.share + self.units // 2) // self.units

    def lefts_of(self, counts: Ints) -> Ints:
        """`lefts` of each."""
        periods, rest = np.divmod(counts, self.units)
        return periods * self.share + (rest * self.share + self.units // 2) // self.units

    def reach_left(self, wanted: int) -> int:
        """The least count of elements of which `wanted` go to the left; `wanted` is at least 1."""
        return -((self.units // 2 - wanted * self.units) // self.share)

    def reach_right(self, wanted: int) -> int:
        """The least count of elements of which `wanted` go to the right."""
        other = self.units - self.share
        # count - lefts(count) >= wanted, solved for count
        return ((wanted - 1) * self.units + self.units // 2) // other + 1


class Interleaving:
    """An endless sequence of sources in which each has its share of every window.

    In a window of n places a source of weight w has n * w / sum of weights of them, give or take
    less than 1 with two sources, less than 2 with three, and less than 4 with any number. Two
    parts are divided by a balanced (Sturmian) word. More are joined as in a Huffman tree, so that
    the error of a part is that of its own word and a small share of those above it.

    Attributes:
        units: The weights as the least whole numbers. The sequence repeats after their sum.
    """

    def __init__(self, weights: Sequence[Fraction]) -> None:
        """Divide by these weights.

        Args:
            weights: One a source, each above 0. Only their ratio counts.

        Raises:
            ValueError: There is none, one is not above 0, or their ratio takes too large numbers.
        """
        if not weights or any(weight <= 0 for weight in weights):
            raise ValueError("weights must be above 0")
        scale = lcm(*(weight.denominator for weight in weights))
        whole = [int(weight * scale) for weight in weights]
        total = sum(whole)
        common = gcd(*whole)
        self.units = [each // common for each in whole]
        if total // common >= MOST_UNITS:
            raise ValueError(
                f"the ratio of the weights takes numbers of {MOST_UNITS:,} or more: write whole "
                "numbers"
            )
        self._tree = _tree(self.units)

    def counts(self, places: int) -> list[int]:
        """How many of the first `places` places each source has."""
        found = [0] * len(self.units)

        def divide(part: int | _Fork, count: int) -> None:
            if isinstance(part, int):
                found[part] = count
                return
            left = part.lefts(count)
            divide(part.left, left)
            divide(part.right, count - left)

        divide(self._tree, places)
        return found

    def sources(self, places: Ints) -> tuple[Ints, Ints]:
        """Whose each place is, and the how-manieth of that source it is.

        Args:
            places: int64[n], each in [0, 2**62).

        Returns:
            int64[n], the source's number; int64[n], how many places before it the source has.
        """
        owners, numbers = np.empty_like(places), np.empty_like(places)

        def divide(part: int | _Fork, rows: NDArray[np.intp], counts: Ints) -> None:
            if isinstance(part, int):
                owners[rows], numbers[rows] = part, counts
                return
            before = part.lefts_of(counts)
            left = part.lefts_of(counts + 1) > before
            divide(part.left, rows[left], before[left])
            divide(part.right, rows[~left], (counts - before)[~left])

        divide(self._tree, np.arange(len(places)), places)
        return owners, numbers

    def reach(self, source: int, wanted: int) -> int:
        """The least count of places of which `wanted` are the source's; `wanted` is at least 1."""
        for fork, is_left in reversed(_path(self._tree, source)):
            wanted = fork.reach_left(wanted) if is_left else fork.reach_right(wanted)
        return wanted


def _tree(units: Sequence[int]) -> int | _Fork:
    """Join the two lightest parts until one is left."""
    parts: list[tuple[int, int, int | _Fork]] = [
        (weight, number, number) for number, weight in enumerate(units)
    ]
    heapq.heapify(parts)
    made = len(units)  # tells parts of one weight apart, in a fixed order
    while len(parts) > 1:
        light, _, right = heapq.heappop(parts)
        heavy, _, left = heapq.heappop(parts)
        heapq.heappush(parts, (light + heavy, made, _Fork(left, right, heavy, light + heavy)))
        made += 1
    return parts[0][2]


def _path(tree: int | _Fork, source: int) -> list[tuple[_Fork, bool]]:
    """The forks from the root to a source, each with whether the way goes left."""
    if isinstance(tree, int):
        return []
    for part, is_left in ((tree.left, True), (tree.right, False)):
        if part == source:
            return [(tree, is_left)]
        if not isinstance(part, int):
            below = _path(part, source)
            if below:
                return [(tree, is_left), *below]
    return []
