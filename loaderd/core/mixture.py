"""The order of a mixture: position -> (source, place in the source's own endless order).

Each source goes through its own epochs, one behind the other, and is reshuffled in each. A mixture
of one source is its endless order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from loaderd.core.hashing import MASK
from loaderd.core.interleaving import Interleaving, Ints
from loaderd.core.order import Order, StreamOrder


@dataclass(frozen=True, slots=True)
class MixedSource:
    """One source of a mixture.

    Attributes:
        order: The order of its epochs.
        total: Samples of its dataset.
        seed: Its own seed, to which that of the session is added.
    """

    order: StreamOrder
    total: int
    seed: int = 0


def epoch_of_mixture(word: Interleaving, samples: Sequence[int], stop: str) -> int:
    """Positions of an epoch that ends when sources are used up.

    Args:
        word: Which source each place takes.
        samples: Samples of an epoch of each source, at least 1.
        stop: "first": the epoch ends when one source has been used up once. "all": when each has.

    Returns:
        The number of positions. The source that ends the epoch has exactly its samples in it.
    """
    ends = [word.reach(number, wanted) for number, wanted in enumerate(samples)]
    return min(ends) if stop == "first" else max(ends)


class MixedOrder:
    """The order of a mixture, for every (seed, epoch). Has the methods of an `Order`.

    A sample's index counts through the datasets of the sources, one behind the other.

    Attributes:
        samples: Length of an epoch.
        offsets: The first index of each source.
    """

    def __init__(
        self, sources: Sequence[MixedSource], word: Interleaving, samples: int, *, endless: bool
    ) -> None:
        """Describe an order.

        Args:
            sources: What is mixed.
            word: Which of them each place takes.
            samples: Length of an epoch, at least 1.
            endless: The word goes on from epoch to epoch. Else it begins anew with each, so that
                every epoch has the same number of samples of each source.

        Raises:
            ValueError: An epoch has no sample.
        """
        if samples < 1:
            raise ValueError(f"an epoch of {samples} samples has no order")
        self.samples = samples
        self.offsets = [0, *accumulate(source.total for source in sources)][:-1]
        self._sources = list(sources)
        self._word = word
        self._endless = endless
        self._period = sum(word.units)

    def source_of(self, index: int) -> tuple[int, int]:
        """(number of the source, index in its dataset) of a sample."""
        number = bisect_right(self.offsets, index) - 1
        return number, index - self.offsets[number]

    def rows(self, seed: int, epoch: int, positions: Ints) -> tuple[Ints, NDArray[np.uint64]]:
        """Which samples are at positions of an epoch, and in which epochs of their sources.

        Args:
            seed: The session's seed.
            epoch: Number of the mixture's epoch, from 0.
            positions: int64[n], each taken modulo `samples`.

        Returns:
            int64[n], the samples' indices; uint64[n], the number of the source's own epoch, modulo
            2**64, of which the sample's randomness is a function.
        """
        begin, before = self._begin(epoch)
        owners, numbers = self._word.sources(begin + np.remainder(positions, self.samples))
        indices, epochs = np.empty_like(numbers), np.empty(len(numbers), np.uint64)
        for number, source in enumerate(self._sources):
            mine = np.flatnonzero(owners == number)
            if not len(mine):
                continue
            passed, ahead = divmod(before[number], source.order.samples)
            passes, places = np.divmod(numbers[mine] + ahead, source.order.samples)
            for one in np.unique(passes).tolist():
                chosen, own = passes == one, (passed + one) & MASK
                found, epochs[mine[chosen]] = _rows(
                    source.order, seed + source.seed, own, places[chosen]
                )
                indices[mine[chosen]] = self.offsets[number] + found
        return indices, epochs

    def origin(self, seed: int, own_epoch: int, index: int) -> tuple[int, int, int]:
        """Whose randomness a sample has: (seed, epoch, index) of its source.

        Args:
            seed: The session's seed.
            own_epoch: The epoch of its source, as `rows` has it.
            index: The sample.
        """
        number, own_index = self.source_of(index)
        return seed + self._sources[number].seed, own_epoch, own_index

    def indices(self, seed: int, epoch: int, positions: Ints) -> Ints:
        """As `Order.indices`."""
        return self.rows(seed, epoch, positions)[0]

    def index(self, seed: int, epoch: int, position: int) -> int:
        """As `Order.index`."""
        return int(self.indices(seed, epoch, np.array([position % self.samples], np.int64))[0])

    def substitute(self, seed: int, epoch: int, position: int, tries: int) -> int:
        """As `Order.substitute`: another sample of the same source and the same epoch of it."""
        begin, before = self._begin(epoch)
        place = np.array([begin + position % self.samples], np.int64)
        owners, numbers = self._word.sources(place)
        owner = int(owners[0])
        source = self._sources[owner]
        own, at = divmod(before[owner] + int(numbers[0]), source.order.samples)
        return self.offsets[owner] + source.order.substitute(
            seed + source.seed, own & MASK, at, tries
        )

    def candidate(self, seed: int, epoch: int, position: int, candidate: int) -> int:
        """As `Order.candidate`."""
        return (
            self.substitute(seed, epoch, position, candidate)
            if candidate
            else self.index(seed, epoch, position)
        )

    def _begin(self, epoch: int) -> tuple[int, list[int]]:
        """Where an epoch begins.

        Returns:
            A place of the word, below its period; how many samples of each source lie before that
            place and its periods, over all epochs.
        """
        if not self._endless:
            return 0, [epoch * each for each in self._word.counts(self.samples)]
        periods, begin = divmod(epoch * self.samples, self._period)
        return begin, [periods * each for each in self._word.units]


def _rows(
    order: StreamOrder, seed: int, epoch: int, positions: Ints
) -> tuple[Ints, NDArray[np.uint64] | int]:
    """What a source has at some positions of one of its epochs, and the epochs of its samples."""
    if isinstance(order, Order) and order.repeats:
        return order.rows(seed, epoch, positions)
    return order.indices(seed, epoch, positions), epoch


class JoinedOrder:
    """Every sample of several orders once, one order behind the other. Has the methods of `Order`.

    Attributes:
        samples: Length of an epoch.
    """

    def __init__(self, sources: Sequence[MixedSource], shuffle: int) -> None:
        """Describe an order.

        Args:
            sources: What is joined.
            shuffle: As for an `Order`, of all samples together.
        """
        self._sources = list(sources)
        ends = list(accumulate(source.order.samples for source in sources))
        self._ends = np.array(ends, np.int64)
        self._offsets = [0, *accumulate(source.total for source in sources)]
        self._all = Order(ends[-1], shuffle=shuffle)
        self.samples = self._all.samples

    def indices(self, seed: int, epoch: int, positions: Ints) -> Ints:
        """As `Order.indices`; an index counts through the datasets, as in a `MixedOrder`."""
        places = self._all.indices(seed, epoch, positions)
        owners = np.searchsorted(self._ends, places, side="right")
        found = np.empty_like(places)
        for number, source in enumerate(self._sources):
            mine = owners == number
            first = self._ends[number] - source.order.samples
            found[mine] = self._offsets[number] + source.order.indices(
                seed, epoch, places[mine] - first
            )
        return found

    def index(self, seed: int, epoch: int, position: int) -> int:
        """As `Order.index`."""
        return int(self.indices(seed, epoch, np.array([position % self.samples], np.int64))[0])

    def substitute(self, seed: int, epoch: int, position: int, tries: int) -> int:
        """The sample so many positions behind."""
        return self.index(seed, epoch, position + tries)

    def candidate(self, seed: int, epoch: int, position: int, candidate: int) -> int:
        """As `Order.candidate`."""
        return self.index(seed, epoch, position + candidate)
