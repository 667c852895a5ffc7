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
    from typing_extensions import Self, TypeVar

    from loaderd_client.devices.interface import Uses

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
    _uses: Uses | None = None  # of the slot, if it is in page-locked memory

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

    def to(self, device: str | torch.device, non_blocking: bool = False) -> Self:
        """Copy the tensors to a device.

        Args:
            device: As for `torch.Tensor.to`.
            non_blocking: Go on while the copies run. Safe here, also with `pin_memory=True`: the
                batch may be dropped at once.

        Returns:
            A batch of the same kind, with the same attributes. Texts stay as they are.

        Raises:
            TypeError: The batch has arrays and no tensors (`output="numpy"`).
        """
        moved = self._with(lambda value: _moved(value, device, non_blocking))
        if self._uses is not None:
            self._uses.copied()
        return moved

    def record_stream(self, stream: Any) -> None:
        """Say that work on a stream reads the batch, as `torch.Tensor.record_stream` does.

        With `pin_memory=True`, after copies with `non_blocking=True` on a stream that is not the
        current one at the next call of the Loader. Else it does nothing.

        Args:
            stream: A `torch.cuda.Stream`.
        """
        if self._uses is not None:
            self._uses.record_stream(stream)

    def _with(self, change: Callable[[Any], Any]) -> Self:
        """A batch of changed fields that knows the same of itself."""
        whole: Any = self
        fields: Any = (
            {name: change(value) for name, value in whole.items()}
            if isinstance(self, dict)
            else map(change, whole)
        )
        kind: Any = type(self)
        changed = kind(fields)
        changed.__dict__.update(self.__dict__)
        changed._uses = None
        return changed

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: indices and keys as they are; what makes them does not travel."""
        state: dict[str, Any] = {
            **self.__dict__,
            "indices": self.indices,
            "sample_keys": self.sample_keys,
        }
        state.pop("_indices", None)
        state.pop("_keys", None)
        state.pop("_uses", None)
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

    def __missing__(self, name: str) -> Value:
        raise KeyError(f"{name}: this batch has the fields {', '.join(map(repr, self))}")

    def __repr__(self) -> str:
        return self._text(self.keys(), self.values())


class TupleBatch(Batch[Value], tuple[Value, ...]):  # read by position, and not by name
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
    uses: Uses | None = None,
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
        uses: Keeps in mind which work of a device reads its slot; or None.
    """
    batch.epoch, batch.step, batch.rows, batch.errors = epoch, step, rows, errors
    batch._indices, batch._keys = indices, keys  # pyright: ignore[reportPrivateUsage] - the one place that fills them
    if uses is not None:
        batch._uses = uses  # pyright: ignore[reportPrivateUsage] - likewise


def _moved(value: Any, device: Any, non_blocking: bool) -> Any:
    """A field, or each tensor of a list, on a device."""
    if isinstance(value, list):
        return [_moved(each, device, non_blocking) for each in cast("list[Any]", value)]
    if isinstance(value, (str, bytes)):
        return value
    if not hasattr(value, "to"):
        raise TypeError(
            f"batch.to({device!r}): this batch has arrays of numpy; make the Loader with "
            "output='torch'"
        )
    return value.to(device, non_blocking=non_blocking)


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
