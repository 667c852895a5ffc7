"""From a decoded value to the named fields of a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loaderd.data.sample import BadValue, is_image_file

NUMBERS = (int, float, bool, np.number, np.bool_)


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
    return isinstance(item, (bytes, memoryview)) and is_image_file(item)


def plain(item: Any) -> Any:
    """A field's value: lists of numbers as an array, an image file's bytes as bytes."""
    if isinstance(item, np.ndarray):
        if item.ndim == 1 and item.dtype == np.uint8 and is_image_file(item[:16].tobytes()):
            return item.tobytes()
        return str(item[()]) if item.ndim == 0 and item.dtype.kind == "U" else item
    if isinstance(item, (list, tuple)):
        return np.array(item) if _numeric(item) else [plain(part) for part in item]
    if isinstance(item, Mapping):
        return {_name(key): plain(part) for key, part in item.items()}
    return item


def _numeric(value: Any) -> bool:
    """Whether a list is numbers of one kind, or lists of numbers that are all of one shape."""
    if not value or not isinstance(value, (list, tuple)):
        return False
    if isinstance(value[0], (list, tuple)):
        if not all(isinstance(row, (list, tuple)) and len(row) == len(value[0]) for row in value):
            return False
        return all(map(_numeric, value))
    whole = all(type(part) is int and -(1 << 63) <= part < 1 << 63 for part in value)
    return (
        whole
        or all(type(part) in (int, float) for part in value)
        or all(type(part) is bool for part in value)
    )


def _name(key: Any) -> str:
    return key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else str(key)
