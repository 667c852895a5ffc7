"""The global generators that user code may draw from, seeded by what is being made and never by who makes it."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

from loaderd.core.digest import MASK
from loaderd.core.draws import Draws, keys, pcg_seeds, twister_states
from loaderd.drivers.twister import Twisters

BATCH = 1 << 62  # added to the position of a batch, to keep its seed apart from those of samples
AHEAD = 16  # samples whose states are computed together: most of what that costs does not depend on how many
MANY = 16  # samples whose rngs are seeded in less time together than one by one

_twisters: Twisters | None = None
_latest: tuple[Chance, int] | None = None  # whose sample is being made, and its number


def _ours() -> Twisters:
    global _twisters
    if _twisters is None:
        _twisters = Twisters()
    return _twisters


class Chance:
    """Seeds `random`, `numpy.random` and, if loaded, torch's default generator for samples of these `keys`, one at a time.

    What is drawn then is a pure function of (seed, epoch, index). The states of the first two come from the hash that all chance here
    comes from, and not from their own seeding, which takes four times as long: 2 us a sample, and 2 more for torch.
    """

    def __init__(self, halves: np.ndarray) -> None:
        self._keys = halves
        self._twisters = _ours()
        self._first = self._last = 0  # of those whose states have been computed
        self._states = memoryview(b"")
        self._seeds: np.ndarray | None = None

    @classmethod
    def of(cls, seed: int, epoch: int, indices: np.ndarray) -> Chance:
        """For these samples: int64."""
        return cls(keys(seed, epoch, indices))

    def seed(self, number: int) -> None:
        """For the sample that is number `number` of them."""
        if not self._first <= number < self._last:
            self._first, self._last = number, number + AHEAD
            self._states = twister_states(self._keys[number : self._last]).data.cast("B")
        global _latest
        _latest = self, number
        self._twisters.set(self._states, number - self._first)
        self.seed_torch(number)

    def seed_torch(self, number: int) -> None:
        """Its share of `seed`."""
        generator = torch_generator()
        if generator is not None:
            generator.manual_seed(int(self._keys[number, 1]) & ((1 << 63) - 1))

    def seeds(self, number: int) -> np.ndarray | None:
        """For the rng of sample `number`, which its transforms are given; None where it makes its own as quickly."""
        if self._seeds is None:
            if len(self._keys) < MANY:
                return None
            self._seeds = pcg_seeds(self._keys)
        return self._seeds[number]


class Kept:
    """The states of the global generators, to be put back: what is imported in the middle of a sample may draw, or seed them."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy = np.random.get_state(legacy=False)
        self._generator = torch_generator()
        self._torch = self._generator.get_state() if self._generator is not None else None

    def put_back(self) -> None:
        """As they were. One that has come meanwhile is seeded as it would have been, had it been there before the sample."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        if self._generator is not None:
            self._generator.set_state(self._torch)
        elif _latest is not None:
            chance, number = _latest
            chance.seed_torch(number)


def torch_generator() -> Any:
    """torch's default generator; None while torch is not loaded."""
    return getattr(sys.modules.get("torch"), "default_generator", None)


def seed_sample(seed: int, epoch: int, index: int) -> None:
    """For one sample, whatever the job. 15 us."""
    key = Draws(seed, epoch, index).key()
    Chance(np.array([[key >> 64, key & MASK]], np.uint64)).seed(0)


def seed_batch(seed: int, epoch: int, position: int) -> None:
    """For the collation of the batch that begins at `position`."""
    seed_sample(seed, epoch, BATCH + position)
