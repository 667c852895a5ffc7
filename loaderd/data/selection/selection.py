"""What a stream's settings have selected, as it travels between processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Tick = Callable[[int], object]  # called now and then with a count, to show that it goes on


@dataclass(frozen=True, slots=True)
class SampleSelection:
    """What the order of a stream needs, besides its settings and the number of samples.

    Attributes:
        listed: File of the samples' indices, in the order in which they are stored or listed; "":
            all samples, as they are stored.
        ends: File of what `weight_ends` made of the samples' weights; "" without weights.
        keys_hash: Of the file of keys; "" without one.
        weights_hash: Of the file of weights; "" without one.
        notes: Lines to be told.
    """

    listed: str = ""
    ends: str = ""
    keys_hash: str = ""
    weights_hash: str = ""
    notes: tuple[str, ...] = ()


ALL = SampleSelection()
