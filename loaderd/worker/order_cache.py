"""An order as a worker asks it, computed for many positions at once.

Most of what it costs does not depend on how many.
"""

from __future__ import annotations

import numpy as np

from loaderd.core.mixture import MixedOrder
from loaderd.core.order import Order, StreamOrder

SPAN = 4096  # positions, 32 KB of indices
KEPT = 8  # spans of several sessions, or of two epochs


class OrderCache:
    """Remembers the last KEPT spans of an order; its memory does not grow with the dataset.

    Attributes:
        order: The order.
        mixed: The same if its rows have epochs of their own, by `rows`, else None.
    """

    def __init__(self, order: StreamOrder) -> None:
        self.order = order
        self.mixed: MixedOrder | Order | None = None
        if isinstance(order, MixedOrder) or (isinstance(order, Order) and order.repeats):
            self.mixed = order
        self._kept: dict[tuple[int, int, int], np.ndarray] = {}

    def indices(self, seed: int, epoch: int, first: int, last: int) -> np.ndarray:
        """Order.indices of the positions [first, last): int64[last - first], the caller's own."""
        if self.mixed is not None:
            return self.rows(seed, epoch, first, last)[0].view(np.int64)
        if last - first >= SPAN:
            return self.order.indices(seed, epoch, np.arange(first, last, dtype=np.int64))
        return self._piece(seed, epoch, first, last).copy()

    def rows(self, seed: int, epoch: int, first: int, last: int) -> np.ndarray:
        """MixedOrder.rows of the positions [first, last).

        Returns:
            uint64[2, last - first], the caller's own: the indices, and the rows' own epochs.
        """
        if last - first >= SPAN:
            return self._made(seed, epoch, first, last)
        return self._piece(seed, epoch, first, last).copy()

    def _piece(self, seed: int, epoch: int, first: int, last: int) -> np.ndarray:
        number, offset = divmod(first, SPAN)
        span = self._span(seed, epoch, number)
        end = offset + last - first
        if end <= SPAN:
            return span[..., offset:end]
        following = self._span(seed, epoch, number + 1)[..., : end - SPAN]
        return np.concatenate((span[..., offset:], following), axis=-1)

    def _span(self, seed: int, epoch: int, number: int) -> np.ndarray:
        key = (seed, epoch, number)
        span = self._kept.pop(key, None)
        if span is None:
            while len(self._kept) >= KEPT:
                del self._kept[next(iter(self._kept))]
            span = self._made(seed, epoch, number * SPAN, (number + 1) * SPAN)
        self._kept[key] = span  # the last one used is the last one to go
        return span

    def _made(self, seed: int, epoch: int, first: int, last: int) -> np.ndarray:
        positions = np.arange(first, last, dtype=np.int64)
        if self.mixed is None:
            return self.order.indices(seed, epoch, positions)
        indices, epochs = self.mixed.rows(seed, epoch, positions)
        return np.stack((indices.view(np.uint64), epochs))
