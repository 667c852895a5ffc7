"""What is asked of a pipeline: one sample, and all that it is a function of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from loaderd.core.jobs import Stage

if TYPE_CHECKING:
    import numpy as np

Note = Callable[[Stage], None]  # told each stage before it begins
NOTHING: Mapping[str, np.ndarray] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One sample that is to be made.

    seed, epoch, index: what everything random in it is a function of; index is its place in the dataset. out: by field, an array that may
    be written to, even in vain: a picture of its shape and dtype may be made there, and is that array then; somebody else's code never
    sees it. rng_seeds: `pcg_seeds` of the sample's key, if they are known.
    """

    seed: int
    epoch: int
    index: int
    out: Mapping[str, np.ndarray] = field(default_factory=dict)
    rng_seeds: np.ndarray | None = None
