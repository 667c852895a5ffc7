"""Rows of numbers copied straight from the database into a batch.

One call copies all rows of a job; no object is made for a field of a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import numpy as np

from loaderd.data.errors import SourceError
from loaderd.data.lmdb import record_format
from loaderd.data.lmdb.page_reader import Pages
from loaderd_wire.slots import FieldSpec

# bytes of a value from which on rows are copied one by one; smaller ones are gathered first
LARGE = 16_384


class Values(Protocol):
    """What rows are copied from."""

    def values(self, indices: Sequence[int] | np.ndarray) -> list[memoryview | None]:
        """The stored values of some samples.

        Args:
            indices: Places in the dataset.

        Returns:
            One value a sample; None for one that is not there.

        Raises:
            SourceError: A page is damaged.
        """
        ...

    def pages(self, row_bytes: int) -> Pages | None:
        """The same values without an object for each.

        Args:
            row_bytes: About what a value has.

        Returns:
            The pages, or None where that is not to be had.
        """
        ...


class RowCopier(Protocol):
    """What copies many samples of a stream at once."""

    def write(self, indices: np.ndarray, arrays: Mapping[str, np.ndarray]) -> bool:
        """As `BulkReader.write`."""
        ...


class BulkReader:
    """Copies samples of loaderd's own layout that all have the same fields.

    These are arrays of numbers, and the samples have no names. `bulk_of` makes it.
    """

    def __init__(self, source: Values, specs: tuple[FieldSpec, ...], finite: bool) -> None:
        """Work out where the fields lie in a stored value.

        Args:
            source: Where the values are.
            specs: The fields of every sample, in the order of the stored value.
            finite: Values that are not finite are bad.
        """
        parts = [
            record_format.RecordPart(
                s.name,
                record_format.FieldKind.PICTURE if s.image else record_format.FieldKind.ARRAY,
                s.dtype,
                s.shape,
                s.row_bytes,
            )
            for s in specs
        ]
        head = record_format.pack_head(parts)
        places = record_format.places(record_format.SIZES.size + len(head), parts)
        self._source = source
        self._finite = finite
        self._start = record_format.SIZES.pack(len(head), 0) + head
        self._expected = np.frombuffer(self._start, np.uint8)
        self._size = places[-1]
        self._places = {part.name: (at, part.size) for part, at in zip(parts, places, strict=False)}
        self._pages = source.pages(self._size)

    def fits(self, index: int) -> bool:
        """True if this sample is one of those.

        Raises:
            SourceError: A page is damaged.
        """
        return self._fits(self._source.values([index])[0])

    def _fits(self, value: memoryview | None) -> bool:
        return (
            value is not None
            and len(value) == self._size
            and value[: len(self._start)].tobytes() == self._start
        )

    def write(self, indices: np.ndarray, arrays: Mapping[str, np.ndarray]) -> bool:
        """Copy samples into the rows of arrays.

        Args:
            indices: Places in the dataset: int64, shape (n,).
            arrays: By field name, any of the fields: contiguous, of the field's dtype, shape
                (n, *shape). Row i becomes the field of sample indices[i].

        Returns:
            False if one of the samples cannot be read so, or has values that the stream calls bad.
            Then nothing is known of any row: making them one by one tells which it is and why.

        Raises:
            ValueError: The arrays have other dtypes or shapes.
        """
        targets = []
        for name, array in arrays.items():
            at, size = self._places[name]
            if (
                len(array) != len(indices)
                or array.nbytes != size * len(indices)
                or not array.flags.c_contiguous
            ):
                raise ValueError(
                    f"field {name!r}: an array {array.dtype}{list(array.shape)} is none for "
                    f"{len(indices)} rows of {size} bytes"
                )
            targets.append((array, at, size))
        if self._pages is not None:
            done = self._pages.copy(indices, self._start, self._size, targets)
        else:
            done = self._by_value(
                indices,
                [
                    (array.reshape(-1).view(np.uint8).reshape(len(indices), size), at, size)
                    for array, at, size in targets
                ],
            )
        if not done:
            return False
        return not self._finite or all(
            bool(np.isfinite(array).all()) for array in arrays.values() if array.dtype.kind in "fc"
        )

    def _by_value(self, indices: np.ndarray, targets: list[tuple[np.ndarray, int, int]]) -> bool:
        """Copy through an object for each value.

        Args:
            indices: Places in the dataset.
            targets: (bytes of shape (n, length), place in the value, length) of each field.
        """
        try:
            values = self._source.values(indices)
        except SourceError:
            return False
        return (self._one_by_one if self._size >= LARGE else self._gathered)(values, targets)

    def _gathered(
        self, values: list[memoryview | None], targets: list[tuple[np.ndarray, int, int]]
    ) -> bool:
        size, there = self._size, cast("list[memoryview]", values)
        try:
            if set(map(len, there)) - {size}:
                return False
        except TypeError:  # a None: looking for it costs more than all else here
            return False
        rows = np.frombuffer(b"".join(there), np.uint8).reshape(len(there), size)
        if not (rows[:, : len(self._expected)] == self._expected).all():
            return False
        for target, at, length in targets:
            target[...] = rows[:, at : at + length]
        return True

    def _one_by_one(
        self, values: list[memoryview | None], targets: list[tuple[np.ndarray, int, int]]
    ) -> bool:
        size, begin, head = self._size, self._start, len(self._start)
        good = [
            value
            for value in values
            if value is not None and len(value) == size and value[:head].tobytes() == begin
        ]
        if len(good) != len(values):
            return False
        for target, at, length in targets:
            if length < LARGE:
                target[...] = np.frombuffer(
                    b"".join([value[at : at + length] for value in good]), np.uint8
                ).reshape(target.shape)
                continue
            to, places = target.reshape(-1).data, range(0, len(good) * length, length)
            # between two memoryviews it is one memcpy, and little else
            for to_at, value in zip(places, good, strict=True):
                to[to_at : to_at + length] = value[at : at + length]
        return True


def bulk_of(source: Values, specs: tuple[FieldSpec, ...], finite: bool) -> BulkReader | None:
    """A reader for a stream that delivers its samples' fields as they are stored.

    Args:
        source: Where the values are.
        specs: The fields of every sample.
        finite: Values that are not finite are bad.

    Returns:
        The reader, or None if the stream's first sample is not stored so.
    """
    if not specs or any(spec.kind != "array" for spec in specs):
        return None
    bulk = BulkReader(source, specs, finite)
    try:
        return bulk if bulk.fits(0) else None
    except SourceError:
        return None
