"""An order as a worker asks it: computed for many positions at once, because most of what it costs
does not depend on how many.
"""

from __future__ import annotations

import numpy as np

from loaderd.core.order import Order

SPAN = 4096  # positions, 32 KB of indices
KEPT = 8  # spans of several sessions, or of two epochs


class OrderCache:
    """Remembers the last KEPT spans of an order; its memory does not grow with the dataset."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._kept: dict[tuple[int, int, int], np.ndarray] = {}

    def indices(self, seed: int, epoch: int, first: int, last: int) -> np.ndarray:
        """Order.indices of the positions [first, last): int64[last - first], the caller's own."""
        if last - first >= SPAN:
            return self._order.indices(seed, epoch, np.arange(first, last, dtype=np.int64))
        number, offset = divmod(first, SPAN)
        span = self._span(seed, epoch, number)
        end = offset + last - first
        if end <= SPAN:
            return span[offset:end].copy()
        return np.concatenate((span[offset:], self._span(seed, epoch, number + 1)[: end - SPAN]))

    def _span(self, seed: int, epoch: int, number: int) -> np.ndarray:
        key = (seed, epoch, number)
        span = self._kept.pop(key, None)
        if span is None:
            while len(self._kept) >= KEPT:
                del self._kept[next(iter(self._kept))]
            span = self._order.indices(
                seed, epoch, np.arange(number * SPAN, (number + 1) * SPAN, dtype=np.int64)
            )
        self._kept[key] = span  # the last one used is the last one to go
        return span
