"""What `next()` returns: a dict or a tuple that also knows where it came from."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from loaderd_wire.errors import BadSample

INDEX_TYPE = np.dtype("<i8")


class Batch:
    """What a batch knows of itself. In a copy that a framework builds by `type(batch)(...)` everything is None.

    epoch, step: its place, step counted from the epoch's begin. rows: samples in it. indices: int64[rows], places in the dataset.
    sample_keys: list of str. errors: its bad samples under "skip" and "replace".
    """

    epoch: int | None = None
    step: int | None = None
    rows: int | None = None
    errors: tuple[BadSample, ...] | None = None
    _indices: bytes | None = None
    _keys: Callable[[], list[str]] | None = None  # None: the indices are the keys

    @cached_property
    def indices(self) -> Any:
        return None if self._indices is None else as_indices(self._indices)

    @cached_property
    def sample_keys(self) -> list[str] | None:
        """Decoded when first asked for."""
        if self._keys is not None:
            return self._keys()
        return None if self._indices is None else as_keys(self._indices)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: indices and keys as they are, for what makes them does not travel."""
        state: dict[str, Any] = {**self.__dict__, "indices": self.indices, "sample_keys": self.sample_keys}
        state.pop("_indices", None)
        state.pop("_keys", None)
        return state


class DictBatch(Batch, dict[str, Any]):
    """Field name -> tensor, array or list."""


class TupleBatch(Batch, tuple[Any, ...]):
    """Tensors, arrays or lists, in the order of the stream's fields."""


def as_indices(raw: bytes) -> Any:
    """int64[rows], the caller's own."""
    return np.frombuffer(bytearray(raw), INDEX_TYPE)


def as_keys(raw: bytes) -> list[str]:
    return [str(i) for i in np.frombuffer(raw, INDEX_TYPE).tolist()]


def describe(
    batch: DictBatch | TupleBatch,
    epoch: int,
    step: int,
    rows: int,
    indices: bytes,
    keys: Callable[[], list[str]] | None,
    errors: tuple[BadSample, ...],
) -> None:
    """indices: as they lie in the slot, a private copy: few ask for them, and whoever does pays for the array."""
    batch.epoch, batch.step, batch.rows, batch.errors = epoch, step, rows, errors
    batch._indices, batch._keys = indices, keys  # pyright: ignore[reportPrivateUsage] - the one place that fills them
