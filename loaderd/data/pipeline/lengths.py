"""Batches of samples of different lengths.

Some fields are padded, some stay ragged, and all others are stacked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loaderd.config.stream import StreamConfig
from loaderd.data.ops.mixing import make_mixing
from loaderd.data.sample import BadValue, Sample

LENGTH = "__length__"


class LengthBatcher:
    """Makes the batches of a stream with `pad` or `ragged`."""

    def __init__(self, plan: StreamConfig) -> None:
        self._pad = plan.pad
        self._ragged = frozenset(plan.ragged)
        self._flat = plan.ragged_as == "flat"
        self._mixes = [make_mixing(step.op or "", step.args) for step in plan.mixes]

    def mix(
        self, batch: dict[str, Any], samples: Sequence[Sample], rng: np.random.Generator
    ) -> None:
        """Mix the rows of a batch that was made of these samples, if the stream asks for it.

        Raises OpError.
        """
        pictures = {
            name: name in samples[0].planar
            for name in samples[0]
            if name in samples[0].images | samples[0].planar
        }
        for mixing in self._mixes:
            mixing(batch, pictures, rng)

    def __call__(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """The batch of samples that have the stream's fields.

        Args:
            samples: At least one. Padded and ragged fields may differ in shape, others do not.

        Returns:
            Stacked fields [rows, *shape]; padded ones [rows, *longest], their masks int64 of 1 and
            0 [rows, longest], and "__length__" int64 [rows], lengths of the first padded field;
            ragged ones as a list of arrays, or as [sum of lengths, ...] with offsets int64
            [rows + 1]; lists of str or bytes.

        Raises:
            BadValue: A field that is named is missing or text, or a name is taken.
        """
        batch: dict[str, Any] = {}
        lengths: np.ndarray | None = None
        for name in (*self._pad, *self._ragged):
            if not isinstance(samples[0].get(name), np.ndarray):
                raise BadValue(
                    f"field {name!r} is named in pad or ragged, and the samples have no array of "
                    f"that name: they have {', '.join(map(repr, samples[0]))}"
                )
        for name in samples[0]:
            values = [sample[name] for sample in samples]
            if name in self._pad:
                rule = self._pad[name]
                batch[name], own = padded(values, rule["value"], rule["multiple"], name)
                lengths = own if name == next(iter(self._pad)) else lengths
                if rule["mask"]:
                    mask = np.arange(batch[name].shape[1]) < own[:, np.newaxis]
                    _add(batch, samples, rule["mask"], mask.astype(np.int64))
            elif name in self._ragged and self._flat:
                batch[name] = np.concatenate([np.atleast_1d(value) for value in values])
                sizes = [len(np.atleast_1d(value)) for value in values]
                _add(batch, samples, f"{name}.offsets", np.cumsum([0, *sizes], dtype=np.int64))
            elif isinstance(values[0], np.ndarray) and name not in self._ragged:
                batch[name] = np.stack(values)
            else:
                batch[name] = values
        if lengths is not None:
            _add(batch, samples, LENGTH, lengths)
        return batch


def padded(
    values: Sequence[np.ndarray], fill: float, multiple: int, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Arrays of different lengths as one array, and their lengths.

    They are filled up behind their ends on every axis. The first axis is a multiple of `multiple`
    long.

    Returns:
        ([rows, *longest], lengths on the first axis, int64 [rows]).

    Raises:
        BadValue: Numbers without axes, or a fill that their dtype cannot hold.
    """
    dtype = values[0].dtype
    if values[0].ndim == 0:
        raise BadValue(f"field {name!r} is a number, which has no length: leave it out of pad")
    with np.errstate(over="ignore"):
        held = np.array(fill).astype(dtype)
    if dtype.kind in "iub" and held != fill:
        raise BadValue(f"field {name!r} is {dtype}, which cannot hold {fill} of pad")
    shape = [max(sizes) for sizes in zip(*(value.shape for value in values), strict=True)]
    shape[0] = -(-shape[0] // multiple) * multiple
    batch = np.full((len(values), *shape), held, dtype)
    for row, value in zip(batch, values, strict=True):
        row[tuple(map(slice, value.shape))] = value
    return batch, np.array([len(value) for value in values], np.int64)


def _add(batch: dict[str, Any], samples: Sequence[Sample], name: str, value: np.ndarray) -> None:
    if name in batch or name in samples[0]:
        raise BadValue(f"two fields are called {name!r}: rename yours")
    batch[name] = value
