"""From a decoded value to the named fields of a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import numpy as np

from loaderd.data.sample import BadValue, is_image_file
from loaderd.data.values.arrays import MAX_DEPTH

MAX_AXES = 8  # of an array that is made of lists


def fields_of(value: Any, names: Sequence[str]) -> dict[str, Any]:
    """The fields of a decoded value.

    Args:
        value: A table gives a field each. A list or tuple gives one each, called by `names` or by
            their numbers; an image and a number are called image and label. A single value is
            called by what it is.
        names: Of the fields that are wanted, all if there are none.

    Returns:
        Field -> value, with lists of numbers as arrays, and arrays of an image file's bytes as
        these bytes.

    Raises:
        BadValue: A wanted field is not there.
    """
    if isinstance(value, Mapping):
        table = {_name(key): item for key, item in value.items()}
        return {name: plain(item) for name, item in chosen(table, names).items()}
    items = list(value) if isinstance(value, (tuple, list)) and not _numeric(value) else None
    if items is None:
        item = plain(value)
        return {names[0] if len(names) == 1 else kind_of(item): item}
    if names and len(names) != len(items):
        raise BadValue(f"it has {len(items)} parts and the stream's fields are {len(names)}")
    return dict(zip(names or names_of(items), map(plain, items), strict=True))


def chosen(table: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The wanted ones of these fields, all without names. Raises BadValue if one is absent."""
    absent = [name for name in names if name not in table]
    if absent:
        raise BadValue(f"it has no field {absent[0]!r}; it has {', '.join(map(repr, table))}"[:500])
    return {name: table[name] for name in names} if names else table


def names_of(items: Sequence[Any]) -> list[str]:
    """Names for the parts of a list: image and label where they are those, else their numbers."""
    first = plain(items[0]) if items else None
    if len(items) == 2 and is_image(first) and isinstance(items[1], (int, np.integer)):
        return ["image", "label"]
    return [str(at) for at in range(len(items))]


def kind_of(item: Any) -> str:
    """What a single value is called."""
    if is_image(item):
        return "image"
    if isinstance(item, str):
        return "text"
    return "data" if isinstance(item, (bytes, memoryview)) else "array"


def is_image(item: Any) -> bool:
    """Whether a value is bytes that begin as an image file of a known format."""
    return isinstance(item, (bytes, memoryview)) and is_image_file(item)


def plain(item: Any, depth: int = 0) -> Any:
    """A field's value: lists of numbers as an array, an image file's bytes as bytes.

    Raises BadValue where lists and tables are more than MAX_DEPTH deep.
    """
    if depth > MAX_DEPTH:
        raise BadValue(f"its lists and tables are more than {MAX_DEPTH} deep")
    if isinstance(item, np.ndarray):
        if item.ndim == 1 and item.dtype == np.uint8 and is_image_file(item[:16].tobytes()):
            return item.tobytes()
        return str(item[()]) if item.ndim == 0 and item.dtype.kind == "U" else item
    if isinstance(item, (list, tuple)):
        return np.array(item) if _numeric(item) else [plain(part, depth + 1) for part in item]
    if isinstance(item, Mapping):
        return {_name(key): plain(part, depth + 1) for key, part in item.items()}
    return item


def _numeric(value: Any) -> bool:
    """Whether a list is numbers of one kind, or lists of numbers that are all of one shape."""
    return isinstance(value, (list, tuple)) and _shape_and_kind(value, 0) is not None


def _shape_and_kind(value: Any, axes: int) -> tuple[tuple[int, ...], type] | None:
    """Shape and kind (bool, or float for all other numbers) of a list; None if it is no array."""
    if not value or axes >= MAX_AXES:
        return None
    if isinstance(value[0], (list, tuple)):
        rows = {
            _shape_and_kind(row, axes + 1) if isinstance(row, (list, tuple)) else None
            for row in value
        }
        first = rows.pop()
        return None if rows or first is None else ((len(value), *first[0]), first[1])
    if all(type(part) is bool for part in value):
        return (len(value),), bool
    numbers = all(
        type(part) is float or (type(part) is int and -(1 << 63) <= part < 1 << 63)
        for part in value
    )
    return ((len(value),), float) if numbers else None


def _name(key: Any) -> str:
    return key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else str(key)


def table_of(value: Any) -> Any:
    """The parts of an object that a trusted pickle made, by name.

    Such are a torch_geometric `Data`, a named tuple, a dataclass, any object with attributes. Every
    other value is returned as it is.
    """
    if isinstance(value, (Mapping, list, str, bytes)) or type(value) is tuple:
        return value
    for name in ("to_dict", "_asdict"):
        made = getattr(value, name, None)
        if callable(made) and not hasattr(value, "dtype"):
            return made()
    if is_dataclass(value) or (hasattr(value, "__dict__") and not hasattr(value, "dtype")):
        return dict(vars(value))
    return value
