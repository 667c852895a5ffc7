"""What a scan of a whole stream wants to know of a sample.

It is one small row of numbers: the sample itself never leaves the worker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import numpy as np

from loaderd.data.errors import SampleFault
from loaderd.data.pipeline.context import SampleContext
from loaderd.data.sample import Sample
from loaderd.data.sample_schema import TYPES, SampleSchema
from loaderd.data.whole_sample import MOST_NESTED
from loaderd_wire.slots import FieldSpec

COUNT, LOW, HIGH, MEAN, SQUARES, ODD = range(6)  # columns of "numbers"
COLUMNS = 6
NOTHING = (0.0, np.inf, -np.inf, 0.0, 0.0, 0.0)
BITS = 64


class Surveyor:
    """Turns each finished sample of a stream into a summary of it.

    That is a Sample whose fields always are:

    hash: uint64, of the content as its source gave it; scalars such as labels count only if there
        is nothing else.
    stored: int64, bytes as its source gave it.
    bytes: int64[fields], of each field.
    channels: int64[fields], how many rows of "numbers" are the field's.
    numbers: float64[all channels, 6]: how many finite values, the least, the greatest, their
        mean, the sum of squared distances from it, and how many values are not finite; a uint8
        picture counts as 0 to 1.
    shapes: text, of all arrays in order.
    fault: text, "" or what makes the sample unfit for its stream; then its numbers count nothing.
    """

    def __init__(self, wanted: Mapping[str, Any], where: str) -> None:
        """Begin with no sample.

        Args:
            wanted: `specs`, as dicts, of the fields that samples should have; `collated`, as in a
                SamplePipeline.
            where: The stream, for errors.
        """
        self._specs = specs = tuple(
            FieldSpec(**{**spec, "shape": tuple(spec["shape"])}) for spec in wanted["specs"]
        )
        self._types = SampleSchema(specs, collated=True, where=where)
        self._schema = SampleSchema(specs, collated=False, where=where, free=wanted.get("free", ()))
        self._whole = bool(wanted["collated"])
        self._mark = (0, 0)

    def begin(self, making: SampleContext) -> None:
        """The first step of a pipeline: remembers what the source gave."""
        self._mark = mark(making.sample)

    def end(self, making: SampleContext) -> None:
        """The last step of a pipeline: puts the summary in place of the sample.

        Raises as `summary` does.
        """
        making.sample = self.summary(making.sample, self._mark)

    def summary(self, sample: Sample, mark: tuple[int, int]) -> Sample:
        """The summary of a finished sample.

        A sample that is collated may have any fields: only those of the stream's first sample are
        measured.

        Args:
            sample: The finished sample.
            mark: Of the sample as it was read.

        Raises:
            SampleFault: ("check") It has other fields or dtypes than the stream.
        """
        fault = ""
        if self._whole:
            sample = self._measurable(sample)
        else:
            self._schema.take_empty(sample)
            self._types.check(sample)
            try:
                self._schema.check(sample)
            except SampleFault as unfit:
                fault = unfit.message
        channels = [self._channels(sample, spec) for spec in self._specs]
        numbers = np.empty((max(1, sum(channels)), COLUMNS))
        numbers[:] = NOTHING
        at = 0
        for spec, count in zip(self._specs, channels, strict=True):
            if count and not fault:
                fault = _measure(sample[spec.name], numbers[at : at + count], spec.name, sample)
            at += count
        if fault:
            numbers[:] = NOTHING
        shapes = ";".join(
            ",".join(map(str, sample[spec.name].shape))
            for spec in self._specs
            if spec.kind == "array"
        )
        return Sample(
            {
                "hash": np.array(mark[0], np.uint64),
                "stored": np.array(mark[1], np.int64),
                "bytes": np.array([_size(sample[spec.name]) for spec in self._specs], np.int64),
                "channels": np.array(channels, np.int64),
                "numbers": numbers,
                "shapes": shapes,
                "fault": fault,
            }
        )

    def _measurable(self, sample: Sample) -> Sample:
        """The fields of the stream's first sample, without values where this one has others."""
        found = Sample({name: sample.get(name) for name in (spec.name for spec in self._specs)})
        found.images, found.planar = sample.images, sample.planar
        for spec, kind in zip(self._specs, self._types.types, strict=True):
            value = found[spec.name]
            if spec.kind != "array":
                found[spec.name] = value if type(value) is kind else TYPES[spec.kind]()
                continue
            channels = self._channels(found, spec)
            fits = isinstance(value, np.ndarray) and value.dtype == kind and (
                channels == 1 or (value.ndim == 3 and channels in (value.shape[0], value.shape[2]))
            )  # fmt: skip
            found[spec.name] = value if fits else np.empty((0,) * 2 + (channels,), kind)
        return found

    def _channels(self, sample: Sample, spec: FieldSpec) -> int:
        if spec.kind != "array":
            return 0
        if len(spec.shape) == 3 and spec.name in sample.planar:
            return spec.shape[0]
        return spec.shape[2] if spec.image and len(spec.shape) == 3 else 1


def mark(sample: Sample) -> tuple[int, int]:
    """(hash, bytes) of a sample as its source gave it."""
    solid = [
        name
        for name, value in sample.items()
        if value is not None
        and not isinstance(value, str)
        and not (isinstance(value, np.ndarray) and value.ndim == 0)
    ]
    digest = hashlib.blake2b(digest_size=BITS // 8)
    for name in solid or sample:
        _digested(sample[name], digest.update)
    return int.from_bytes(digest.digest(), "little"), sum(map(_size, sample.values()))


def _digested(value: Any, update: Callable[[Any], None], depth: int = 0) -> None:
    if isinstance(value, np.ndarray) and value.dtype != object:
        update(f"{value.dtype.str}{value.shape}".encode())
        update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    elif isinstance(value, (str, bytes, memoryview)):
        update(b"%d:" % len(value))
        update(value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value)
    elif isinstance(value, (Mapping, list, tuple)) and depth < MOST_NESTED:
        update(b"%s:%d:" % (type(value).__name__.encode(), len(value)))
        parts: Any = chain.from_iterable(value.items()) if isinstance(value, Mapping) else value
        for part in parts:
            _digested(part, update, depth + 1)
    else:  # an object of the user's: if it does not say what it holds, no two are the same
        update(repr(value).encode("utf-8", "surrogatepass"))


def _size(value: Any, depth: int = 0) -> int:
    """Bytes of the content, as far as it is known."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, (Mapping, list, tuple)):
        parts: Any = value.values() if isinstance(value, Mapping) else value
        return sum(_size(part, depth + 1) for part in parts) if depth < MOST_NESTED else 0
    if isinstance(value, (bytes, memoryview)):
        return len(value)
    return int(getattr(value, "nbytes", 8))


def _measure(value: np.ndarray, rows: np.ndarray, name: str, sample: Sample) -> str:
    """Fill the field's rows of "numbers"; returns what is wrong with it, or ""."""
    count = len(rows)
    if count == 1:
        parts = [value.reshape(-1)]
    elif name in sample.planar and value.ndim == 3 and len(value) == count:
        parts = list(value.reshape(count, -1))
    elif value.ndim == 3 and value.shape[2] == count:
        flat = value.reshape(-1, count)
        parts = [flat[:, channel] for channel in range(count)]
    else:
        return (
            f"field {name!r} is of shape {value.shape}, which does not have the {count} "
            "channels of the stream's first sample"
        )
    picture = name in sample.images or name in sample.planar
    for row, part in zip(rows, parts, strict=True):
        if part.size:
            row[:] = (
                _of_bytes(part, 255.0 if picture else 1.0)
                if part.dtype == np.uint8
                else _of_numbers(part)
            )
    return ""


def _of_bytes(part: np.ndarray, scale: float) -> tuple[float, ...]:
    """From the counts of the 256 values: exact, and faster than arithmetic on all of them."""
    counts = np.bincount(part, minlength=256)
    there = np.flatnonzero(counts)
    values, weights = there / scale, counts[there]
    mean = float((values * weights).sum() / part.size)
    return part.size, values[0], values[-1], mean, float((weights * (values - mean) ** 2).sum()), 0


def _of_numbers(part: np.ndarray) -> tuple[float, ...]:
    odd = 0
    if part.dtype.kind == "c":
        part = np.abs(part)
    if part.dtype.kind == "f":
        finite = np.isfinite(part)
        if not finite.all():
            odd = part.size - int(np.count_nonzero(finite))
            part = part[finite]
    if not part.size:
        return (*NOTHING[:ODD], odd)
    mean = float(part.mean(dtype=np.float64))
    apart = part.astype(np.float64)
    apart -= mean
    return part.size, float(part.min()), float(part.max()), mean, float(np.dot(apart, apart)), odd
