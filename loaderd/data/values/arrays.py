"""Arrays from a dtype's name, a shape and bytes that somebody else wrote.

They are checked before numpy sees them, since numpy itself follows a forged dtype to memory that is
not the value's.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from loaderd.data.sample import BadValue

PLAIN_CODE = re.compile(r"[<>|=]?([?biufcSU]\d{0,7}|[BHIQLGFDlqhed])|bool|u?int(8|16|32|64)|"
                        r"float(16|32|64)|complex(64|128)")  # fmt: skip
MAX_AXES = 32
MAX_ITEMS = 1 << 20  # of one value: entries of its lists and tables together, each time it is named
MAX_DEPTH = 64  # of lists and tables in one another


class UnreadableValue(BadValue):
    """A stored value that is not what it was taken for, is cut short, or is refused."""


def plain_dtype(code: Any) -> np.dtype[Any]:
    """The dtype of numbers, bytes or text that `code` names, such as "<f4" or "uint8".

    Raises UnreadableValue for every other: objects, records, dates, what is no dtype at all.
    """
    if isinstance(code, (bytes, bytearray, memoryview)):
        code = bytes(code).decode("latin-1")
    if not isinstance(code, str) or not PLAIN_CODE.fullmatch(code):
        raise UnreadableValue(f"it has an array of dtype {code!r:.60}, which is not plain numbers")
    try:
        return np.dtype(code)
    except (TypeError, ValueError):
        raise UnreadableValue(
            f"it has an array of dtype {code!r:.60}, which there is not"
        ) from None


def plain_shape(shape: Any) -> tuple[int, ...]:
    """The shape, checked: at most MAX_AXES whole numbers from 0 on. Raises UnreadableValue."""
    if not isinstance(shape, (tuple, list)) or len(shape) > MAX_AXES:
        raise UnreadableValue(f"it has an array of shape {shape!r:.60}")
    if any(type(n) is not int or not 0 <= n < 1 << 48 for n in shape):
        raise UnreadableValue(f"it has an array of shape {tuple(shape)!r:.60}")
    return tuple(shape)


def array_of(dtype: np.dtype[Any], shape: Any, data: Any, order: str = "C") -> np.ndarray[Any, Any]:
    """The array of these bytes, a read-only view of them.

    Args:
        dtype: As `plain_dtype` gives it.
        shape: Whatever the value says.
        data: Bytes, exactly as many as the shape needs.
        order: "C" or "F".

    Raises:
        UnreadableValue: Shape, bytes and dtype do not fit together.
    """
    sizes = plain_shape(shape)
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise UnreadableValue(f"it has an array whose data is a {type(data).__name__}")
    raw = memoryview(data).cast("B").toreadonly()
    needed = math.prod(sizes) * dtype.itemsize
    if len(raw) != needed:
        raise UnreadableValue(
            f"it has an array of shape {sizes} and dtype {dtype}, {needed:,} bytes, and "
            f"{len(raw):,} bytes of data"
        )
    try:
        return np.ndarray(sizes, dtype, raw, order="F" if order == "F" else "C")
    except (ValueError, TypeError, MemoryError) as error:
        raise UnreadableValue(f"it has an array of shape {sizes}: {error}") from None
