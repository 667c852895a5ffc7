"""Reads the bytes of a slot: numpy views of its arrays, its texts and its keys.

Client, worker and `check` read slots with this alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from msgpack import unpackb

from loaderd_wire.errors import ProtocolError, by_handler
from loaderd_wire.slots import SlotLayout, itemsize

Array: TypeAlias = np.ndarray[Any, Any]
# Rows of a field: shape, dtype, offset in the slot, bytes.
Cut: TypeAlias = tuple[tuple[int, ...], np.dtype[Any], int, int]
ChunkMap: TypeAlias = dict[str, Any]
Description: TypeAlias = tuple[str, list[int], int]  # of an array: dtype, shape, offset in the slot

INDEX_DTYPE = np.dtype("<i8")
INDEX_BYTES = INDEX_DTYPE.itemsize
MAX_CUTS = 64  # numbers of rows whose cuts are kept; nearly all batches have the same number


class SlotReader:
    """Reads the slots of one layout.

    Every method takes `memory`, an object that exports the bytes, and `begin`, the byte of it at
    which the slot begins. While a view lives the bytes stay exported, so that an mmap cannot be
    closed. A view can be written to if `memory` can.

    Attributes:
        layout: The layout.
    """

    def __init__(self, layout: SlotLayout) -> None:
        self.layout = layout
        self._fields = [
            (spec.name, np.dtype(spec.dtype), spec.shape, offset, spec.row_bytes)
            for spec, offset in zip(layout.fields, layout.offsets, strict=True)
            if spec.kind == "array"
        ]
        self._cuts: dict[int, tuple[Cut, ...]] = {}

    def cuts(self, rows: int) -> tuple[Cut, ...]:
        """Where the first `rows` rows of each array field lie, in the order of the layout.

        It is the same for every slot.
        """
        cuts = self._cuts.get(rows)
        if cuts is None:
            if len(self._cuts) >= MAX_CUTS:
                self._cuts.clear()
            cuts = self._cuts[rows] = tuple(
                ((rows, *shape), dtype, offset, rows * row_bytes)
                for _, dtype, shape, offset, row_bytes in self._fields
            )
        return cuts

    def arrays(self, memory: Any, rows: int, begin: int = 0) -> dict[str, Array]:
        """Views of the first `rows` rows of each array field.

        Returns:
            name -> array [rows, *shape] of the field's dtype.
        """
        return {
            name: _view(memory, dtype, shape, begin + offset)
            for (name, *_), (shape, dtype, offset, _) in zip(
                self._fields, self.cuts(rows), strict=True
            )
        }

    def indices(self, memory: Any, rows: int, begin: int = 0) -> Array:
        """A view of the dataset indices of the first `rows` rows: int64[rows]."""
        return _view(memory, INDEX_DTYPE, (rows,), begin)

    def tail(self, memory: Any, offset: int, size: int, begin: int = 0) -> bytes:
        """A copy of bytes [offset, offset + size) of the slot.

        Raises:
            ProtocolError: They do not lie in the tail.
        """
        if offset < self.layout.tail_offset or offset + size > self.layout.slot_bytes:
            raise ProtocolError(
                f"bytes [{offset}, {offset + size}) are not in the tail, which begins at "
                f"{self.layout.tail_offset}"
            )
        return bytes(memoryview(memory)[begin + offset : begin + offset + size])

    def described(
        self, memory: Any, dtype: str, shape: Sequence[int], offset: int, begin: int = 0
    ) -> Array:
        """A view of an array of a collated batch.

        Args:
            memory: Exports the bytes.
            dtype: Of the array, from its description in the tail.
            shape: Likewise.
            offset: Likewise: its first byte in the slot.
            begin: The byte of `memory` at which the slot begins.

        Raises:
            ProtocolError: It is no array of plain numbers, or does not lie in the slot's body.
        """
        try:
            size = itemsize(dtype)
        except ValueError as error:
            raise ProtocolError(str(error)) from None
        for n in shape:
            size *= n
        low, high = self.layout.body_offset, self.layout.body_offset + self.layout.body_bytes
        if offset < low or offset + size > high:
            raise ProtocolError(
                f"array [{offset}, {offset + size}) is not within the body [{low}, {high})"
            )
        return _view(memory, np.dtype(dtype), tuple(shape), begin + offset)

    def collated(
        self, memory: Any, description: Description | list[Description], begin: int = 0
    ) -> Array | list[Array]:
        """A view of a field of a collated batch: of an array, or of each of a list of arrays.

        Raises:
            ProtocolError: As `described`.
        """
        if isinstance(description, list):
            return [self.described(memory, *each, begin) for each in description]
        return self.described(memory, *description, begin)


def _view(memory: Any, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> Array:
    # Not numpy.ndarray(..., buffer): that keeps the object alive, but lets its bytes go.
    flat: Any = np.frombuffer(memory, dtype, math.prod(shape), offset)
    return flat.reshape(shape)


# Chunks: the variable parts of a batch, as msgpack maps in the slot's tail. Each is of some rows.


def unpack_chunks(parts: Sequence[bytes]) -> list[ChunkMap]:
    """The maps of all chunks, in the order of their rows.

    Raises:
        ProtocolError: A part is not a msgpack map.
    """
    maps: list[ChunkMap] = []
    for part in parts:
        try:
            value = unpackb(part, max_ext_len=0, unicode_errors="surrogatepass")
        except Exception as error:
            if by_handler(error, "msgpack"):
                raise
            raise ProtocolError(
                f"a chunk that cannot be read: {type(error).__name__}: {error}"
            ) from None
        if type(value) is not dict:
            raise ProtocolError(f"a chunk that is no map: {value!r:.60}")
        maps.append(value)  # pyright: ignore[reportUnknownArgumentType] - each entry is checked where it is used
    return maps


def field_names(maps: Sequence[ChunkMap], part: str) -> list[str]:
    """The fields that the chunks describe, in order.

    Args:
        maps: The chunks' maps.
        part: "text" or "arrays".
    """
    names: dict[str, None] = {}
    for chunk in maps:
        entry: Any = chunk.get(part)
        if isinstance(entry, dict):
            names |= dict.fromkeys(map(str, entry))  # pyright: ignore[reportUnknownArgumentType] - made text here
    return list(names)


def text_values(maps: Sequence[ChunkMap], field: str, rows: int | None) -> list[str | bytes]:
    """The values of a text or bytes field in all rows.

    Args:
        maps: The chunks' maps.
        field: Name of the field.
        rows: How many there must be; None: any number, in a collated batch.

    Raises:
        ProtocolError: There is another number of them, or one is no text.
    """
    values = _joined(maps, "text", field)
    if (rows is not None and len(values) != rows) or not all(
        isinstance(v, (str, bytes)) for v in values
    ):
        raise ProtocolError(f"field {field!r} has {len(values)} texts for {rows} rows")
    return values


def stored_keys(maps: Sequence[ChunkMap], rows: int) -> list[str]:
    """The stored keys of all rows.

    Raises:
        ProtocolError: There is another number of them, or one is no text.
    """
    values = _joined(maps, "keys")
    if len(values) != rows or not all(isinstance(v, str) for v in values):
        raise ProtocolError(f"{len(values)} keys for {rows} rows")
    return values


def array_description(
    maps: Sequence[ChunkMap], field: str
) -> Description | list[Description] | None:
    """(dtype, shape, offset) of an array of a collated batch; of a list of arrays that of each.

    Returns:
        None if this batch has no such field of arrays.

    Raises:
        ProtocolError: The description is malformed.
    """
    for part in maps:
        try:
            entry: Any = part["arrays"][field]
        except (KeyError, TypeError):
            continue
        if isinstance(entry, list) and entry and isinstance(entry[0], list):
            return [_description(each, field) for each in entry]  # pyright: ignore[reportUnknownVariableType] - looked at there
        return _description(entry, field)
    return None


def _description(entry: Any, field: str) -> Description:
    try:
        dtype, shape, offset = entry
        numbers: list[Any] = [*shape, offset]
    except (TypeError, ValueError):
        dtype, numbers = None, []
    if type(dtype) is str and all(type(n) is int and n >= 0 for n in numbers):
        return dtype, numbers[:-1], numbers[-1]
    raise ProtocolError(f"array {field!r} of a collated batch is described by {entry!r:.60}")


def _joined(maps: Sequence[ChunkMap], name: str, field: str = "") -> list[Any]:
    """The entries of all chunks in one list: map[name], or map[name][field]."""
    whole: list[Any] = []
    for part in maps:
        entry = part.get(name)
        if field and isinstance(entry, dict):
            entry = entry.get(field)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - checked in the next line
        if not isinstance(entry, list):
            raise ProtocolError(f"a chunk without {name} {field}".rstrip())
        whole += entry
    return whole
