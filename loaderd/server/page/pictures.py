"""Rows of a batch as they lie in a slot, made small enough for a page. Pure, and without numpy.

The daemon's process does this in a turn of its loop. So pixels are left out, not averaged, and
only bytes that are shown are read.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loaderd_wire.slots import FieldSpec, itemsize

ROWS = 8  # of a batch
SIDE = 112  # pixels of a picture, at most
TEXT = 200  # characters of a text
LINE_BYTES = 1 << 20  # of one line of pixels; there is no picture of wider ones

Read = Callable[[int, int], bytes]  # (offset in the slot, bytes)

NUMBERS = {
    "|b1": "?", "|i1": "b", "|u1": "B", "<i2": "<h", "<u2": "<H", "<i4": "<i", "<u4": "<I",
    "<i8": "<q", "<u8": "<Q", "<f2": "<e", "<f4": "<f", "<f8": "<d",
}  # fmt: skip
PIXELS = ("|u1", "<f4")  # dtypes of images


@dataclass(frozen=True, slots=True)
class Placed:
    """An array of rows in a slot.

    Attributes:
        spec: Its name, dtype and the shape of one row.
        offset: Byte of the slot at which the first row begins.
    """

    spec: FieldSpec
    offset: int


def number(placed: Placed, row: int, read: Read) -> float | int | bool | None:
    """The value of a field that is one number a row; None for any other."""
    code = NUMBERS.get(placed.spec.dtype)
    if code is None or placed.spec.shape:
        return None
    size = itemsize(placed.spec.dtype)
    (value,) = struct.unpack(code, read(placed.offset + row * size, size))
    return value


def picture(placed: Placed, row: int, read: Read) -> dict[str, Any] | None:
    """A row as a small picture; None where it is no image.

    Returns:
        width, height and channels; dtype "u1" or "f4"; and the pixels: base64, for each line the
        values of each channel.
    """
    shaped = _image_shape(placed.spec)
    if shaped is None:
        return None
    height, width, channels, first = shaped
    size = itemsize(placed.spec.dtype)
    step = max(1, -(-max(height, width) // SIDE))
    begin = placed.offset + row * placed.spec.row_bytes
    lines: list[bytes] = []
    for y in range(0, height, step):
        if first:  # channels x height x width
            for channel in range(channels):
                at = begin + (channel * height + y) * width * size
                lines.append(_values(read(at, width * size), size)[::step].tobytes())
        else:
            line = width * channels * size
            values = _values(read(begin + y * line, line), size)
            lines += [values[c :: channels * step].tobytes() for c in range(channels)]
    return {
        "width": -(-width // step),
        "height": -(-height // step),
        "channels": channels,
        "dtype": placed.spec.dtype[1:],
        "pixels": base64.b64encode(b"".join(lines)).decode("ascii"),
    }


def _values(data: bytes, size: int) -> memoryview[int] | memoryview[float]:
    """Pixels of one line, each of so many bytes."""
    return memoryview(data) if size == 1 else memoryview(data).cast("f")


def _image_shape(spec: FieldSpec) -> tuple[int, int, int, bool] | None:
    """(height, width, channels, whether the channels come first); None where it is no image."""
    shape = spec.shape
    if spec.dtype not in PIXELS or len(shape) != 3 or not all(shape):
        return None
    first = not spec.image
    if first:
        channels, height, width = shape
        looks_so = channels in (1, 3) and min(height, width) >= 8
    else:
        height, width, channels = shape
        looks_so = channels in (1, 3, 4)
    if not looks_so:
        return None
    if width * channels * itemsize(spec.dtype) > LINE_BYTES:
        return None
    return height, width, channels, first


def described(spec: FieldSpec, chunks: Sequence[Mapping[str, Any]]) -> Placed | None:
    """Where an array of a collated batch lies, whose first axis are the rows; None if nowhere.

    Args:
        spec: The field, of which the name counts.
        chunks: What the slot's tail says.
    """
    for chunk in chunks:
        entry = chunk.get("arrays", {}).get(spec.name)
        if entry and isinstance(entry[0], str) and entry[1]:
            dtype, (_, *shape), offset = entry
            return Placed(FieldSpec(spec.name, dtype, tuple(shape), image=spec.image), offset)
    return None


def texts(chunks: Sequence[Mapping[str, Any]], part: str, field: str = "") -> list[str]:
    """Keys, or the texts of a field, of the rows, as far as there are any."""
    found: list[str] = []
    for chunk in chunks:
        entry = chunk.get(part, [])
        values = entry.get(field, []) if isinstance(entry, dict) else entry
        found += [
            (value if isinstance(value, str) else f"{len(value):,} bytes")[:TEXT]
            for value in values
        ]
    return found
