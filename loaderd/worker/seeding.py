"""The global generators that user code may draw from.

They are seeded by what is being made and never by who makes it.
"""

from __future__ import annotations

import random
import struct
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from loaderd.core.rng import keys, pcg_seeds, twister_states
from loaderd.worker.generator_watch import GeneratorUse, installed

BATCH = 1 << 62  # added to the position of a batch, to keep its seed apart from those of samples
BUILD = BATCH - 1  # in place of an index, while a dataset is built
EPOCH = 1 << 61  # in place of a sample's index, for what belongs to a whole epoch
# samples whose states are computed together: most of what that costs does not depend on how many
AHEAD = 16
MANY = 16  # samples whose rngs are seeded in less time together than one by one
WORDS = 624  # uint32 in the state of a Mersenne Twister, which both generators are
PYTHON, NUMPY = slice(0, 1), slice(1, 2)  # whose state is which of a sample's two
# the position at which a generator makes new numbers before it draws one; that of one just seeded
SPENT = WORDS

_words = struct.Struct(f"{WORDS}I")
_words_and_position = struct.Struct(f"{WORDS + 1}I")  # as random.setstate takes them
_latest: tuple[GlobalSeeder, int] | None = None  # whose sample is being made, and its number


class GlobalSeeder:
    """Seeds the global generators for samples of one job, one at a time.

    These are `random`, `numpy.random` and, if loaded, torch's default generator.

    What is drawn then is a pure function of (seed, epoch, index). Seeding takes longer than many a
    sample: `random` alone 15 us. So the generators of `random` and numpy are only watched until the
    stream's code uses one: then `again` tells that the sample is to be made a second time, and from
    there on this generator is seeded for every sample of the stream. Where nobody watches, both are
    seeded from the start.
    """

    def __init__(
        self,
        seed: int,
        epoch: int,
        indices: np.ndarray,
        use: GeneratorUse,
        halves: np.ndarray | None = None,
    ) -> None:
        """Begin with no sample.

        Args:
            seed: Of the session.
            epoch: Of the job.
            indices: The samples.
            use: What the stream's code has been seen to use.
            halves: Of the samples' keys, where they are not all of this seed and epoch.
        """
        self._place = (seed, epoch, indices)
        self._use = use
        self._watch = installed()
        self._halves = halves
        self._first = self._last = 0  # of those whose states have been computed
        self._python = self._numpy = b""  # their states, one behind the other
        self._seeds: np.ndarray | None = None
        if self._watch is None:
            use.python = use.numpy = True
        elif not (use.python and use.numpy):
            self._watch.arm(use)

    def seed(self, number: int) -> None:
        """For the sample that is number `number` of them."""
        global _latest
        _latest = self, number
        use = self._use
        if use.python or use.numpy:
            if not self._first <= number < self._last:
                self._compute(number)
            at = number - self._first
            if use.python:
                random.setstate(
                    (
                        3,
                        _words_and_position.unpack_from(
                            self._python, at * _words_and_position.size
                        ),
                        None,
                    )
                )
            if use.numpy:
                self._set_numpy(self._numpy[at * _words.size : (at + 1) * _words.size])
        self.seed_torch(number)

    def _compute(self, number: int) -> None:
        """The states of the samples from this one on."""
        self._first, self._last = number, number + AHEAD
        halves = self._keys()[number : self._last]
        if self._use.python:
            python = np.full((len(halves), WORDS + 1), SPENT, np.uint32)
            python[:, :WORDS] = twister_states(halves, PYTHON).view(np.uint32)[:, 0]
            self._python = python.tobytes()
        if self._use.numpy:
            self._numpy = twister_states(halves, NUMPY).tobytes()

    def _set_numpy(self, state: bytes) -> None:
        if self._watch is None or not self._watch.set_numpy(state):
            words: Any = _words.unpack(state)  # numpy takes them in a tenth of the time of an array
            np.random.set_state(("MT19937", words, SPENT, 0, 0.0))

    def seed_torch(self, number: int) -> None:
        """Its share of `seed`."""
        generator = torch_generator()
        if generator is not None:
            generator.manual_seed(int(self._keys()[number, 1]) & ((1 << 63) - 1))

    def again(self) -> bool:
        """Whether what was made since `seed` is to be made again, seeded anew.

        It has used a generator that was only watched then.
        """
        use = self._use
        if self._watch is None or (use.python and use.numpy) or not self._watch.notices(use):
            return False
        self._last = self._first  # those that have been computed lack a generator
        return True

    def seeds(self, number: int) -> np.ndarray | None:
        """For the rng of sample `number`, which its transforms are given.

        None where it makes its own as quickly.
        """
        if self._seeds is None:
            if len(self._place[2]) < MANY:
                return None
            self._seeds = pcg_seeds(self._keys())
        return self._seeds[number]

    def _keys(self) -> np.ndarray:
        if self._halves is None:
            self._halves = keys(*self._place)
        return self._halves


class Kept:
    """The states of the global generators, to be put back.

    What is imported in the middle of a sample may draw, or seed them.
    """

    def __init__(self) -> None:
        watch = installed()
        self._read = replace(watch.read) if watch is not None else None
        self._python = random.getstate()
        self._numpy = np.random.get_state(legacy=False)
        self._generator = torch_generator()
        self._torch = self._generator.get_state() if self._generator is not None else None

    def put_back(self) -> None:
        """As they were.

        One that has come meanwhile is seeded as it would have been, had it been there before the
        sample.
        """
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        if self._generator is not None:
            self._generator.set_state(self._torch)
        elif _latest is not None:
            seeder, number = _latest
            seeder.seed_torch(number)
        watch = installed()
        if watch is not None and self._read is not None:
            watch.read = self._read  # neither this nor what was imported is the sample's own code


def torch_generator() -> Any:
    """The default generator of torch; None while torch is not loaded."""
    return getattr(sys.modules.get("torch"), "default_generator", None)


def seed_sample(seed: int, epoch: int, index: int) -> None:
    """For one sample, whatever the job, with nobody watching."""
    GlobalSeeder(seed, epoch, np.array([index]), GeneratorUse(True, True)).seed(0)


def seed_batch(seed: int, epoch: int, position: int) -> None:
    """For the collation of the batch that begins at `position`.

    It is not made again: it may have written into its samples.
    """
    seed_sample(seed, epoch, BATCH + position)


def seed_epoch(seed: int, epoch: int) -> None:
    """For a dataset's `set_epoch`, which any sample of the epoch may be the first to need."""
    seed_sample(seed, epoch, EPOCH)


def seed_build() -> None:
    """For a dataset that is built: what it shuffles or splits then is the same in all workers."""
    seed_sample(0, 0, BUILD)
