"""The variable parts of a batch: msgpack maps in the slot's tail, one a job, each for a range of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs] - it has none

from loaderd_wire.errors import ProtocolError, by_handler


def unpack(parts: Sequence[bytes]) -> list[dict[str, Any]]:
    """The chunks' maps in the order of their rows. Raises ProtocolError, whatever the bytes are."""
    maps: list[dict[str, Any]] = []
    for part in parts:
        try:
            value = cast(Any, msgpack.unpackb(part, max_ext_len=0))  # pyright: ignore[reportUnknownMemberType] - it has no stubs
        except Exception as error:
            if by_handler(error, "msgpack"):
                raise
            raise ProtocolError(f"a chunk that cannot be read: {type(error).__name__}: {error}") from None
        if type(value) is not dict:
            raise ProtocolError(f"a chunk that is no map: {value!r:.60}")
        maps.append(value)  # pyright: ignore[reportUnknownArgumentType] - each entry is checked where it is used
    return maps


def joined(maps: Sequence[dict[str, Any]], name: str, field: str = "") -> list[Any]:
    """The entries of all chunks, one list: `name` of each map, or with a field, `map[name][field]`."""
    whole: list[Any] = []
    for part in maps:
        entry = part.get(name)
        if field and isinstance(entry, dict):
            entry = entry.get(field)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - checked in the next line
        if not isinstance(entry, list):
            raise ProtocolError(f"a chunk without {name} {field}".rstrip())
        whole += entry
    return whole


def texts(maps: Sequence[dict[str, Any]], field: str, rows: int | None) -> list[str | bytes]:
    """A text or bytes field of all rows. `rows`: how many there must be, None where a collated batch may have any number."""
    values = joined(maps, "text", field)
    if (rows is not None and len(values) != rows) or not all(isinstance(v, (str, bytes)) for v in values):
        raise ProtocolError(f"field {field!r} has {len(values)} texts for {rows} rows")
    return values


def keys(parts: Sequence[bytes], rows: int) -> list[str]:
    """The stored names of all rows."""
    values = joined(unpack(parts), "keys")
    if len(values) != rows or not all(isinstance(v, str) for v in values):
        raise ProtocolError(f"{len(values)} keys for {rows} rows")
    return values


def arrays(maps: Sequence[dict[str, Any]], field: str) -> tuple[str, list[int], int] | None:
    """(dtype, shape, offset) of an array of a collated batch; None if this batch has no such array."""
    for part in maps:
        try:
            entry: Any = part["arrays"][field]
        except (KeyError, TypeError):
            continue
        try:
            dtype, shape, offset = entry
            numbers: list[Any] = [*shape, offset]
        except (TypeError, ValueError):
            dtype, numbers = None, []
        if type(dtype) is str and all(type(n) is int and n >= 0 for n in numbers):
            return dtype, numbers[:-1], numbers[-1]
        raise ProtocolError(f"array {field!r} of a collated batch is described by {entry!r:.60}")
    return None
