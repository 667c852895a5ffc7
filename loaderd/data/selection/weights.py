"""The weights of a stream's samples: from a file, or so that each class comes equally often."""

from __future__ import annotations

import io
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from loaderd.data.errors import SampleFault, SourceError
from loaderd.data.labels import is_whole, label_field
from loaderd.data.selection.keys_file import Ints
from loaderd.data.selection.selection import Tick


class Labelled(Protocol):
    """Samples that can be read: a `Source`."""

    def key(self, index: int) -> str:
        """The name of a sample."""
        ...

    def read(self, index: int) -> Any:
        """The fields of a sample."""
        ...

    @property
    def targets(self) -> list[int] | None:
        """The label of every sample, where that is known without reading them."""
        ...


def of_file(path: str, data: bytes, total: int, chosen: Ints) -> NDArray[np.float64]:
    """The weights in a file.

    Args:
        path: Of the file.
        data: What it holds: an array as `numpy.save` writes it, with a number for each sample.
        total: Samples that are split.
        chosen: int64[n], which of them the stream has, as places in [0, total).

    Returns:
        float64[n], in the order of `chosen`.

    Raises:
        SourceError: It is no such array.
    """
    try:
        weights = np.load(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # noqa: BLE001 - of a damaged file numpy raises errors of its parsers
        raise SourceError(
            f"{path}: is not an array of numbers as numpy.save writes it: {error}"
        ) from None
    if not isinstance(weights, np.ndarray) or weights.ndim != 1 or weights.dtype.kind not in "fiub":
        shape = f"{weights.dtype}, shape {weights.shape}" if isinstance(weights, np.ndarray) else ""
        raise SourceError(
            f"{path}: holds {shape or 'several arrays'}: weights are one row of numbers, one for "
            "each sample"
        )
    if len(weights) not in (total, len(chosen)):
        part = "" if total == len(chosen) else f", or for each of the {len(chosen):,} of the split"
        raise SourceError(
            f"{path}: has {len(weights):,} weights: write one for each of the {total:,} "
            f"samples{part}"
        )
    weights = weights.astype(np.float64)
    return weights if len(weights) == len(chosen) else weights[chosen]


def balanced(
    source: Labelled, indices: Ints, tick: Tick, *, skipping: bool
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Weights with which each class comes equally often.

    Args:
        source: The dataset.
        indices: int64[n], the samples of the stream.
        tick: Called now and then.
        skipping: A sample that cannot be read has no weight. Else it is an error.

    Returns:
        float64[n], and lines to be told.

    Raises:
        SourceError: A sample has no label, or cannot be read.
    """
    known = source.targets
    if known is not None:
        _, classes, counts = np.unique(
            np.array(known)[indices], return_inverse=True, return_counts=True
        )
        return 1.0 / counts[classes], ()
    numbers: dict[Any, int] = {}
    classes = np.empty(len(indices), np.int64)
    name, bad, first_bad = "", 0, ""
    for place, index in enumerate(indices):
        tick(place)  # one sample may take long
        try:
            sample = source.read(int(index))
            name = name or label_field(sample)
            classes[place] = numbers.setdefault(_label(sample, name), len(numbers))
        except SourceError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
            why = f"sample {source.key(int(index))!r}: {SampleFault.of('read', error).message}"
            if not skipping:
                raise SourceError(f'weights = "balanced" needs every label: {why}') from None
            bad, first_bad = bad + 1, first_bad or why
            classes[place] = -1
    good = classes >= 0
    if not good.any():
        raise SourceError(f'weights = "balanced" needs labels, and no sample has one: {first_bad}')
    counts = np.bincount(classes[good], minlength=1)
    weights = np.zeros(len(indices))
    weights[good] = 1.0 / counts[classes[good]]
    notes = (
        f'weights = "balanced": {bad:,} samples have no label that could be read, and are not '
        f"drawn; the first is {first_bad}"
    )
    return weights, (notes,) if bad else ()


def _label(sample: Any, name: str) -> Any:
    value = sample[name]
    if isinstance(value, str):
        return value
    if not is_whole(value):
        raise ValueError(f"field {name!r} is not the number or the name of a class")
    return int(value)
