"""What `next()` returns: a dict or a tuple that also knows where it came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loaderd_wire.errors import BadSample


class About:
    """What a batch knows of itself. In a copy that a framework builds by `type(batch)(...)` everything is None.

    epoch, step: its place, step counted from the epoch's begin. rows: samples in it. indices: int64[rows], places in the dataset.
    sample_keys: list of str. errors: its bad samples under "skip" and "replace".
    """

    epoch: int | None = None
    step: int | None = None
    rows: int | None = None
    indices: Any = None
    errors: tuple[BadSample, ...] | None = None
    _keys: list[str] | Callable[[], list[str]] | None = None

    @property
    def sample_keys(self) -> list[str] | None:
        """Decoded when first asked for."""
        if callable(self._keys):
            self._keys = self._keys()
        return self._keys

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: the keys as they are, for what makes them does not travel."""
        state: dict[str, Any] = dict(self.__dict__)
        if "_keys" in state:
            state["_keys"] = self.sample_keys
        return state


class DictBatch(About, dict[str, Any]):
    """Field name -> tensor, array or list."""


class TupleBatch(About, tuple[Any, ...]):
    """Tensors, arrays or lists, in the order of the stream's fields."""


def describe(
    batch: DictBatch | TupleBatch,
    epoch: int,
    step: int,
    rows: int,
    indices: Any,
    keys: Callable[[], list[str]],
    errors: tuple[BadSample, ...],
) -> None:
    batch.epoch, batch.step, batch.rows, batch.indices, batch.errors = epoch, step, rows, indices, errors
    batch._keys = keys  # pyright: ignore[reportPrivateUsage] - the one place that fills it
