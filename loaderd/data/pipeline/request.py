"""What a pipeline is asked for: one sample, and all that it is a function of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from loaderd.core.jobs import Stage

if TYPE_CHECKING:
    import numpy as np

Note = Callable[[Stage], None]  # called with each stage before it begins
NOTHING: Mapping[str, np.ndarray] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One sample that is to be made.

    Attributes:
        seed: Of the stream. All that is random in the sample is a function of (seed, epoch, index).
        epoch: Counted from 0.
        index: Its place in the dataset.
        out: By field, an array that may be written to, whether it is used or not. An image of its
            shape and dtype may be made in it, and is that array then. User code never gets it.
        rng_seeds: `pcg_seeds` of the sample's key, if the caller has them.
        trainer_epoch: The epoch that the trainer counts, where `epoch` is a pass of the samples
            that is counted apart; -1: `epoch`.
    """

    seed: int
    epoch: int
    index: int
    out: Mapping[str, np.ndarray] = field(default_factory=dict)
    rng_seeds: np.ndarray | None = None
    trainer_epoch: int = -1
