"""What `next()` returns: a dict or a tuple that also knows where it came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from loaderd_wire.errors import BadSample

if TYPE_CHECKING:
    import torch

    # whose TypeVar has a default; type checkers bring it themselves
    from typing_extensions import TypeVar

    Value = TypeVar("Value", default=torch.Tensor)
    BatchType = TypeVar("BatchType", bound="Batch[Any]", default="DictBatch[torch.Tensor]")
else:
    from typing import TypeVar

    Value = TypeVar("Value")
    BatchType = TypeVar("BatchType")

INDEX_TYPE = np.dtype("<i8")
Array: TypeAlias = "npt.NDArray[Any]"  # of any dtype: the stream decides
_NOT_KNOWN: Any = None


class Batch(Generic[Value]):
    """What one `next()` of a Loader returns: the fields of some samples, and where they came from.

    A batch is a dict by field name (`DictBatch`), or a tuple in the order of the stream's fields
    (`TupleBatch`). `Batch[torch.Tensor]`, or `Batch` alone, says in an annotation that its fields
    are tensors; with `output="numpy"` it is `Batch[numpy.ndarray]`.

    Fields of numbers are tensors or arrays of shape (rows, ...). Images are uint8: (rows, channels,
    height, width) as tensors, in channels_last memory, and (rows, height, width, channels) as
    arrays; after the op `to_chw` both are (rows, channels, height, width). Fields of text or bytes
    are lists, whatever their annotation says. A batch and its arrays belong to
    the caller: they may be kept and written to. The shared memory below them is used again once the
    last view of it is gone.

    A framework that rebuilds a batch (`type(batch)(...)`) gets one with the same fields, whose
    attributes are all None.

    Attributes:
        epoch: The epoch that it belongs to.
        step: Its number in the epoch, from 0.
        rows: How many samples it has.
        errors: The samples that were left out or replaced (`on_error = "skip"` or `"replace"`).
    """

    epoch: int = _NOT_KNOWN
    step: int = _NOT_KNOWN
    rows: int = _NOT_KNOWN
    errors: tuple[BadSample, ...] = _NOT_KNOWN
    _indices: bytes | None = None
    _keys: Callable[[], list[str]] | None = None  # None: the indices are the keys

    if TYPE_CHECKING:  # dict's own, and tuple's, are faster than any of ours

        def __getitem__(self, field: str, /) -> Value: ...

    @cached_property
    def indices(self) -> npt.NDArray[np.int64]:
        """Places of its samples in the dataset: int64, shape (rows,)."""
        return _NOT_KNOWN if self._indices is None else as_indices(self._indices)

    @cached_property
    def sample_keys(self) -> list[str]:
        """Names of its samples, one a row.

        A name is that of the file that `loaderd pack` read, else the key in the database, else the
        index.
        """
        if self._keys is not None:
            return self._keys()
        return _NOT_KNOWN if self._indices is None else as_keys(self._indices)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: indices and keys as they are; what makes them does not travel."""
        state: dict[str, Any] = {
            **self.__dict__,
            "indices": self.indices,
            "sample_keys": self.sample_keys,
        }
        state.pop("_indices", None)
        state.pop("_keys", None)
        return state

    def _text(self, names: Iterable[object], values: Iterable[object]) -> str:
        """One line a field: name, dtype, shape."""
        lines = [(str(name), *_described(value)) for name, value in zip(names, values, strict=True)]
        name_width, kind_width = (
            max((len(line[column]) for line in lines), default=0) for column in (0, 1)
        )
        known: Any = self.rows
        head = f"{type(self).__name__}" + (
            "" if known is None else f": epoch {self.epoch}, step {self.step}, rows {self.rows}"
        )
        return "\n".join(
            [
                head,
                *(
                    f"  {name:{name_width}}  {kind:{kind_width}}  {shape}".rstrip()
                    for name, kind, shape in lines
                ),
            ]
        )


class DictBatch(Batch[Value], dict[str, Value]):
    """A batch that is a dict: field name -> tensor, array or list. See `Batch`."""

    def __repr__(self) -> str:
        return self._text(self.keys(), self.values())


class TupleBatch(Batch[Value], tuple[Value, ...]):  # type: ignore[misc] # read by position, and not by name
    """A batch that is a tuple of tensors, arrays or lists, in the order of the stream's fields.

    See `Batch`.
    """

    def __repr__(self) -> str:
        return self._text(range(len(self)), self)


def as_indices(raw: bytes) -> npt.NDArray[np.int64]:
    """The indices of a batch: int64, shape (rows,), the caller's own."""
    return np.frombuffer(bytearray(raw), INDEX_TYPE)


def as_keys(raw: bytes) -> list[str]:
    """The indices of a batch as text."""
    return [str(i) for i in np.frombuffer(raw, INDEX_TYPE).tolist()]


def describe(
    batch: DictBatch[Any] | TupleBatch[Any],
    epoch: int,
    step: int,
    rows: int,
    indices: bytes,
    keys: Callable[[], list[str]] | None,
    errors: tuple[BadSample, ...],
) -> None:
    """Fill the attributes of a batch.

    Args:
        batch: The batch.
        epoch: Number of its epoch.
        step: Number of its step.
        rows: Number of its rows.
        indices: As they lie in the slot, little-endian int64, a private copy: few ask for them, and
            whoever does pays for the array.
        keys: Makes its keys. None: the indices are the keys.
        errors: Its bad samples.
    """
    batch.epoch, batch.step, batch.rows, batch.errors = epoch, step, rows, errors
    batch._indices, batch._keys = indices, keys  # pyright: ignore[reportPrivateUsage] - the one place that fills them


def _described(value: Any) -> tuple[str, str]:
    """(dtype or type, shape or length) of a field."""
    name = type(value).__name__
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        device = str(getattr(value, "device", "cpu"))
        where = "" if device == "cpu" else f" on {device}"
        return str(value.dtype).removeprefix("torch."), f"{tuple(value.shape)}{where}"
    if isinstance(value, (list, tuple)):
        items = [*cast("Iterable[object]", value)]
        kinds = sorted({type(item).__name__ for item in items})
        return " of ".join([name, *([" and ".join(kinds)] if kinds else [])]), f"({len(items)},)"
    return name, ""
