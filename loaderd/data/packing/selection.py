"""Which samples of a source are packed, and in what order."""

from __future__ import annotations

import numpy as np

from loaderd.core.order import Order
from loaderd.data.errors import SourceError

ALL = "0%:100%"
AHEAD = 4096  # places that are computed at once


class Selection:
    """The samples of a split in the stored order, or shuffled once.

    The split is the one that a stream with the same `split` has, so that two databases of one
    source share no sample.

    Attributes:
        samples: How many there are.
        words: What tells this selection from others; "" for all in the stored order.
    """

    def __init__(self, total: int, split: str = ALL, seed: int | None = None) -> None:
        """Choose.

        Args:
            total: Samples of the source.
            split: "LOW:HIGH", as of a stream.
            seed: Of the shuffled order; None for the stored one.

        Raises:
            SourceError: The split makes no sense.
        """
        try:
            self._order = Order(total, split, "random", 0 if seed is None else 1)
        except ValueError as error:
            raise SourceError(f"--split: {error}") from None
        self.samples = self._order.samples
        self._seed = seed
        self._first = 0  # place of the first of `_ahead`
        self._ahead = np.empty(0, np.int64)
        self._chosen: np.ndarray | None = None
        whole = self.samples == total
        if seed is None and not whole:
            self._chosen = np.sort(self._order.indices(0, 0, np.arange(self.samples)))
        said = [] if whole else [f"split {split}"]
        self.words = " ".join(said if seed is None else [*said, f"shuffle {seed}"])

    def __getitem__(self, place: int) -> int:
        """The index of the sample that comes at this place."""
        if self._chosen is not None:
            return int(self._chosen[place])
        if self._seed is None:
            return place
        at = place - self._first
        if not 0 <= at < len(self._ahead):
            places = np.arange(place, min(place + AHEAD, self.samples))
            self._first, at = place, 0
            self._ahead = self._order.indices(self._seed, 0, places)
        return int(self._ahead[at])
