"""Sampling with replacement: each sample is drawn as often as its weight says."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loaderd.core.hashing import FIRST, SECOND, STRIDE, below

Ints = NDArray[np.int64]

BITS = 53  # of a draw; a sample whose share of all weights is below 2**-53 is never drawn
ALL = 1 << BITS


def weight_ends(weights: NDArray[np.float64]) -> Ints:
    """Cut [0, 2**53) into a range for each weight, as long as its share of all of them.

    Args:
        weights: float64[n], finite, none negative, not all 0.

    Returns:
        int64[n]: where each range ends. It begins where the one before ends.

    Raises:
        ValueError: They are not such weights; the text names the first that is wrong.
    """
    bad = np.flatnonzero(~((weights >= 0) & np.isfinite(weights)))
    if len(bad):
        raise ValueError(
            f"weight {int(bad[0])} is {float(weights[bad[0]])}: weights are numbers of 0 or more"
        )
    largest = float(weights.max(initial=0.0))
    if largest == 0.0:
        raise ValueError(f"all {len(weights):,} weights are 0: nothing could be drawn")
    sums = np.cumsum(weights / largest)
    return np.floor(sums / sums[-1] * float(ALL)).astype(np.int64)


class WeightedDraw:
    """Draws places of a list of samples. It has no state."""

    def __init__(self, ends: Ints) -> None:
        """Draw by weights.

        Args:
            ends: int64[n], as `weight_ends` returns them. They may be mapped from a file.
        """
        self._ends = ends

    def places(self, key: int, positions: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """What is drawn at some positions.

        Args:
            key: Hash of what names the epoch.
            positions: uint64[n].

        Returns:
            A new array, uint64[n], of places in the list.
        """
        words = (positions ^ np.uint64(key)) + np.uint64(STRIDE)
        words = (words ^ (words >> np.uint64(30))) * np.uint64(FIRST)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(SECOND)
        words ^= words >> np.uint64(31)
        drawn = (words >> np.uint64(64 - BITS)).astype(np.int64)
        return np.searchsorted(self._ends, drawn, side="right").astype(np.uint64)

    def other(self, value: int, place: int) -> int:
        """Draw once more, but not this place.

        Args:
            value: A hash, in [0, 2**64).
            place: What must not be drawn.

        Returns:
            Another place; the same where no other has a weight.
        """
        begin, end = int(self._ends[place - 1]) if place else 0, int(self._ends[place])
        others = ALL - (end - begin)
        if others == 0:
            return place
        drawn = below(value, others)
        drawn += end - begin if drawn >= begin else 0
        return int(np.searchsorted(self._ends, drawn, side="right"))
