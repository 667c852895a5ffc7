"""The global generators that user code may draw from, seeded by what is being made and never by who makes it."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

from loaderd.core.draws import Draws

BATCH = 1 << 62  # added to the position of a batch, to keep its seed apart from those of samples


def seed_sample(seed: int, epoch: int, index: int) -> None:
    """Seed `random`, `numpy.random` and, if loaded, torch's default generator for the sample `index`. 30 us: only where user code runs."""
    _seed_all(Draws(seed, epoch, index).key())


def seed_batch(seed: int, epoch: int, position: int) -> None:
    """The same for the collation of the batch that begins at `position`."""
    _seed_all(Draws(seed, epoch, BATCH + position).key())


def _seed_all(key: int) -> None:
    random.seed(key)
    np.random.seed(key >> 96)  # one word: seeding with an array takes ten times as long
    torch: Any = sys.modules.get("torch")
    generator = getattr(torch, "default_generator", None)
    if generator is not None:
        generator.manual_seed(key & ((1 << 63) - 1))
