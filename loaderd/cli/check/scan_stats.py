"""What a scan has seen so far, in a few numbers a field.

Memory depends on the fields and not on the samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from loaderd.data.pipeline.sample_summary import COUNT, HIGH, LOW, MEAN, NOTHING, ODD, SQUARES

SUB_BITS = 6  # sizes from 128 on are known to 1 part in 64
MOST_SHAPES = 1000  # that are told apart


@dataclass(slots=True)
class Sizes:
    """Byte sizes: how many of each, the larger ones in classes no wider than 1.6 %.

    The greatest is kept exactly.
    """

    counts: dict[int, int] = field(default_factory=dict[int, int])
    most: int = 0

    def add(self, sizes: np.ndarray) -> None:
        """Count sizes in bytes, in an array of any shape."""
        for value, count in zip(*np.unique(sizes, return_counts=True), strict=True):
            size = int(value)
            drop = max(0, size.bit_length() - SUB_BITS - 1)
            least = size >> drop << drop
            self.counts[least] = self.counts.get(least, 0) + int(count)
            self.most = max(self.most, size)

    @property
    def median(self) -> int:
        """In bytes, the least of the class that the middle size is in; 0 if there is none."""
        left = (sum(self.counts.values()) + 1) // 2
        for least in sorted(self.counts):
            left -= self.counts[least]
            if left <= 0:
                return least
        return 0


@dataclass(slots=True)
class ScanStats:
    """What has been seen of the samples.

    Attributes:
        fields: How many there are.
        samples: So far.
        stored: Bytes of samples as their source gives them.
        sizes: Of each field, in the order of the stream's.
        channels: Of each field; known after the first sample.
        numbers: float64[all channels, 6] as in a Surveyor's summary.
        odd_samples: Of each field, samples that have values that are not finite.
        shapes: How many samples have which, in the Surveyor's words.
    """

    fields: int
    samples: int = 0
    stored: Sizes = field(default_factory=Sizes)
    sizes: list[Sizes] = field(default_factory=list[Sizes])
    channels: list[int] = field(default_factory=list[int])
    numbers: np.ndarray = field(default_factory=lambda: np.zeros((0, 6)))
    odd_samples: list[int] = field(default_factory=list[int])
    shapes: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, rows: Mapping[str, Any]) -> None:
        """The summaries of a batch: field -> array over its rows, or list of text."""
        if not len(rows["hash"]):
            return
        if not self.channels:
            self.channels = rows["channels"][0].tolist()
            self.sizes = [Sizes() for _ in range(self.fields)]
            self.numbers = np.tile(np.array(NOTHING), (rows["numbers"].shape[1], 1))
            self.odd_samples = [0] * self.fields
        self.samples += len(rows["hash"])
        self.stored.add(rows["stored"])
        for n, sizes in enumerate(self.sizes):
            sizes.add(rows["bytes"][:, n])
        merge(self.numbers, rows["numbers"])
        for n, (first, last) in enumerate(self.spans()):
            self.odd_samples[n] += int(np.count_nonzero(rows["numbers"][:, first:last, ODD].any(1)))
        self._shapes(rows["shapes"])

    def _shapes(self, shapes: Iterable[str]) -> None:
        for shape in shapes:
            known = shape if shape in self.shapes or len(self.shapes) < MOST_SHAPES else "other"
            self.shapes[known] = self.shapes.get(known, 0) + 1

    def spans(self) -> list[tuple[int, int]]:
        """[first, last) of each field's rows of `numbers`."""
        ends = np.cumsum([0, *self.channels]).tolist()
        return list(pairwise(ends))

    def shapes_of(self, array: int) -> dict[str, int]:
        """How many samples have which shape of an array field, frequent ones first.

        Args:
            array: Place of the field among those that are arrays.

        Returns:
            "224x224x3" -> count.
        """
        found: dict[str, int] = {}
        for shapes, count in self.shapes.items():
            words = shapes.split(";")
            name = "other" if shapes == "other" else words[array].replace(",", "x") or "scalar"
            found[name] = found.get(name, 0) + count
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "fields": self.fields,
            "samples": self.samples,
            "stored": [self.stored.most, list(self.stored.counts.items())],
            "sizes": [[sizes.most, list(sizes.counts.items())] for sizes in self.sizes],
            "channels": self.channels,
            "numbers": self.numbers.tolist(),
            "odd_samples": self.odd_samples,
            "shapes": self.shapes,
        }

    @classmethod
    def from_dict(cls, made: Mapping[str, Any]) -> ScanStats:
        """What `to_dict` has written, as JSON has it."""
        return cls(
            made["fields"],
            made["samples"],
            _sizes(made["stored"]),
            [_sizes(each) for each in made["sizes"]],
            made["channels"],
            np.array(made["numbers"], np.float64).reshape(-1, 6),
            made["odd_samples"],
            made["shapes"],
        )


def _sizes(made: Sequence[Any]) -> Sizes:
    return Sizes({int(least): int(count) for least, count in made[1]}, made[0])


def merge(into: np.ndarray, rows: np.ndarray) -> None:
    """Add the numbers of samples to those of all before, in place.

    Means and squared distances are merged as Chan, Golub and LeVeque (1979) do, so that nothing
    cancels out.

    Args:
        into: float64[channels, 6].
        rows: float64[samples, channels, 6].
    """
    both = np.concatenate([into[None], rows])
    count = both[:, :, COUNT]
    total = count.sum(0)
    mean = (count * both[:, :, MEAN]).sum(0) / np.maximum(total, 1)
    into[:, SQUARES] = (both[:, :, SQUARES] + count * (both[:, :, MEAN] - mean) ** 2).sum(0)
    into[:, COUNT], into[:, MEAN] = total, mean
    into[:, LOW], into[:, HIGH] = both[:, :, LOW].min(0), both[:, :, HIGH].max(0)
    into[:, ODD] = both[:, :, ODD].sum(0)
