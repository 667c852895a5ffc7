"""Rows of a batch as they lie in a slot, made small enough for a page. Pure, and without numpy.

The daemon's process does this in a turn of its loop. So pixels are left out, not averaged, and
only lines that are shown are read. What pictures take is bounded: the more there are of a batch,
and the longer each takes, the smaller they are.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loaderd_wire.slots import FieldSpec, itemsize

ROWS = 8  # of a batch
SIDE = 112  # pixels of a picture, at most
LEAST = 8  # pixels of the longer side; there is no smaller picture of an image
TEXT = 200  # characters of a text
LINE_BYTES = 1 << 20  # of one line of pixels; there is no picture of wider ones
# What making a picture takes, about: by line, by 1,024 bytes that are read, and by number that is
# shown.
LINE_NS = 1_500
KIB_NS = 80
NUMBER_NS = {"|u1": 3, "<f4": 80}

Read = Callable[[int, int], bytes]  # (offset in the slot, bytes)

NUMBERS = {
    "|b1": "?", "|i1": "b", "|u1": "B", "<i2": "<h", "<u2": "<H", "<i4": "<i", "<u4": "<I",
    "<i8": "<q", "<u8": "<Q", "<f2": "<e", "<f4": "<f", "<f8": "<d",
}  # fmt: skip


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


@dataclass(frozen=True, slots=True)
class Thinned:
    """An image of which some pixels are shown.

    Attributes:
        placed: Where it lies.
        height: Of the image, in pixels.
        width: Of the image, in pixels.
        channels: How many.
        first: The channels come before height and width.
        step: One of so many pixels is shown, in both directions.
    """

    placed: Placed
    height: int
    width: int
    channels: int
    first: bool
    step: int

    @property
    def line_bytes(self) -> int:
        """Bytes that are read for a line."""
        numbers = self.width * (1 if self.first else self.channels)
        return numbers * itemsize(self.placed.spec.dtype)

    @property
    def cost_ns(self) -> int:
        """What a picture takes, about."""
        high, wide = -(-self.height // self.step), -(-self.width // self.step)
        reads = high * (self.channels if self.first else 1)
        shown = high * wide * self.channels
        return (
            reads * (LINE_NS + self.line_bytes * KIB_NS // 1024)
            + shown * NUMBER_NS[self.placed.spec.dtype]
        )


def thinned(placed: Placed, most_ns: int) -> Thinned | None:
    """How to make pictures of a field.

    Args:
        placed: The field.
        most_ns: What one picture may take.

    Returns:
        None where it is no image, or one of which not a few pixels can be shown in this time.
    """
    spec, shape = placed.spec, placed.spec.shape
    if spec.dtype not in NUMBER_NS or len(shape) != 3 or min(shape) <= 0:
        return None
    first = not spec.image
    channels, height, width = shape if first else (shape[2], *shape[:2])
    looks_so = channels in (1, 3) and min(height, width) >= 8 if first else channels in (1, 3, 4)
    if not looks_so:
        return None
    side = max(height, width)
    found = Thinned(placed, height, width, channels, first, step=max(1, -(-side // SIDE)))
    if found.line_bytes > LINE_BYTES:
        return None
    while found.cost_ns > most_ns:
        found = replace(found, step=found.step + 1)
        if found.step * LEAST > side:
            return None
    return found


def picture(shown: Thinned, row: int, read: Read) -> dict[str, Any]:
    """A row as a small picture.

    Returns:
        width, height and channels; and the pixels: base64 of a byte each, for each line those of
        each channel.
    """
    numbers = b"".join(line.tobytes() for line in _lines(shown, row, read))
    if shown.placed.spec.dtype != "|u1":
        numbers = _spread(memoryview(numbers).cast("f").tolist())
    return {
        "width": -(-shown.width // shown.step),
        "height": -(-shown.height // shown.step),
        "channels": shown.channels,
        "pixels": base64.b64encode(numbers).decode("ascii"),
    }


def _lines(shown: Thinned, row: int, read: Read) -> Iterator[memoryview[Any]]:
    """The numbers that are shown of each line, channel by channel."""
    spec, size, step = shown.placed.spec, shown.line_bytes, shown.step
    begin = shown.placed.offset + row * spec.row_bytes
    code = "B" if spec.dtype == "|u1" else "f"
    for y in range(0, shown.height, step):
        if shown.first:  # channels x height x width
            for channel in range(shown.channels):
                at = begin + (channel * shown.height + y) * size
                yield memoryview(read(at, size)).cast(code)[::step]
        else:
            line = memoryview(read(begin + y * size, size)).cast(code)
            for channel in range(shown.channels):
                yield line[channel :: shown.channels * step]


def _spread(numbers: Sequence[float]) -> bytes:
    """A byte each: 0 for the least, 255 for the greatest; 0 for what is not finite."""
    if not math.isfinite(sum(numbers)):
        finite = [number for number in numbers if math.isfinite(number)]
        least = min(finite, default=0.0)
        numbers = [number if math.isfinite(number) else least for number in numbers]
    low, high = min(numbers), max(numbers)
    scale = 255 / (high - low) if high > low else 0.0
    return bytes([int((number - low) * scale) for number in numbers])


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
    """Keys, or the texts of a field, of the first rows, as far as there are any."""
    found: list[str] = []
    for chunk in chunks:
        entry = chunk.get(part, [])
        values = entry.get(field, []) if isinstance(entry, dict) else entry
        found += [
            (value if isinstance(value, str) else f"{len(value):,} bytes")[:TEXT]
            for value in values[: ROWS - len(found)]
        ]
    return found
