"""Caffe's `Datum` and Caffe2's `TensorProtos`."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from loaderd.data.layouts.base import Database, KeyedLayout
from loaderd.data.layouts.keys import Keys
from loaderd.data.layouts.protobuf import messages, signed, varints
from loaderd.data.sample import is_image_file
from loaderd.data.values.arrays import UnreadableValue, array_of
from loaderd.data.values.codecs import ValueCodec
from loaderd.data.values.fields import chosen

DATUM_KEY = re.compile(rb"[0-9]{5,10}(_.*)?", re.DOTALL)


class CaffeLayout(KeyedLayout):
    """Caffe's Datum.

    Raw pictures are stored as channels x height x width, blue first: they are delivered as
    height x width x channels, red first. `float_data` is delivered as stored, as `data`.
    """

    name = "caffe"
    marks = "keys such as `00000000` or `00000000_name.jpg`, and values that are `Datum` messages"
    pictures = frozenset(["image"])

    @classmethod
    def seen(cls, db: Database) -> str:
        first = db.first()[:3]
        if not first or not all(DATUM_KEY.fullmatch(key) for key, _ in first):
            return ""
        if not all(is_datum(value) for _, value in first):
            return ""
        return "its keys begin with digits, and its values are Datum messages"

    def find_keys(self) -> Keys:
        key = self.db.first()[0][0]
        if key.isdigit():
            return self.numbered(f"{{i:0{len(key)}d}}", self.db.entries, 0)
        return self.listed()

    def find_codec(self) -> ValueCodec:
        return ValueCodec(("datum",))

    def parse(self, index: int, values: list[memoryview]) -> dict[str, Any]:
        return chosen(read_datum(values[0]), self.options.fields)


# The fields of a Datum, and the wire types that each has.
DATUM = {1: (0,), 2: (0,), 3: (0,), 4: (2,), 5: (0,), 6: (2, 5), 7: (0,)}


def is_datum(value: bytes | memoryview) -> bool:
    """Whether these bytes are a Datum, also an empty one."""
    try:
        found = [(number, kind) for number, kind, _ in messages(value)]
    except UnreadableValue:
        return False
    sized = {number for number, _ in found} >= {1, 2, 3}
    return sized and all(kind in DATUM.get(number, ()) for number, kind in found)


def read_datum(value: bytes | memoryview) -> dict[str, Any]:
    """Read image or data, and label. Raises UnreadableValue."""
    sizes: dict[int, int] = {1: 0, 2: 0, 3: 0, 5: 0, 7: 0}
    data: Any = b""
    floats: list[bytes] = []
    for number, kind, item in messages(value):
        if number in sizes and kind == 0:
            sizes[number] = signed(item)
        elif number == 4 and kind == 2:
            data = item
        elif number == 6 and kind in (2, 5):
            floats.append(_four_bytes(item))
        else:
            raise UnreadableValue(f"it is no Datum message: it has a field {number} of kind {kind}")
    shape, label = (sizes[1], sizes[2], sizes[3]), sizes[5]
    if sizes[7] or (len(data) and is_image_file(data)):
        return {"image": bytes(data), "label": label}
    if floats:
        return {"data": array_of(np.dtype("<f4"), shape, b"".join(floats)), "label": label}
    if 0 in shape:
        raise UnreadableValue(
            f"it is a Datum message of an empty picture, {shape}: its writer could not read it"
        )
    planes = array_of(np.dtype("u1"), shape, data)
    colours = planes[::-1] if shape[0] == 3 else planes
    return {"image": np.ascontiguousarray(colours.transpose(1, 2, 0)), "label": label}


class Caffe2Layout(KeyedLayout):
    """The tensors of a sample by their numbers.

    Image or data is the first, label the second where it is one number.
    """

    name = "caffe2"
    marks = "keys `0`, `1`, ..., and values that are `TensorProtos` messages"

    @classmethod
    def seen(cls, db: Database) -> str:
        first = db.first()[:3]
        if not first or not all(key.isdigit() for key, _ in first):
            return ""
        try:
            for _, value in first:
                read_tensors(value)
        except UnreadableValue:
            return ""
        return "its keys are numbers, and its values are TensorProtos messages"

    def find_keys(self) -> Keys:
        return self.numbered("{i}", None, 0)

    def find_codec(self) -> ValueCodec:
        return ValueCodec(("tensorprotos",))

    def parse(self, index: int, values: list[memoryview]) -> dict[str, Any]:
        parts = read_tensors(values[0])
        names = list(self.options.fields) or [str(at) for at in range(len(parts))]
        if not self.options.fields and len(parts) == 2 and isinstance(parts[1], int):
            names = ["image" if is_image_file(parts[0]) else "data", "label"]
        if len(names) != len(parts):
            raise UnreadableValue(f"it has {len(parts)} tensors, and fields names {len(names)}")
        return dict(zip(names, parts, strict=True))


# data_type: (field that has the numbers, numpy's dtype)
TENSORS = {1: (3, "<f4"), 2: (4, "<i4"), 3: (5, "u1"), 4: (6, ""), 10: (10, "<i8")}


def read_tensors(value: bytes | memoryview) -> list[Any]:
    """The tensors: bytes, a whole number, or an array. Raises UnreadableValue."""
    found: list[Any] = []
    for number, kind, item in messages(value):
        if number != 1 or kind != 2:
            raise UnreadableValue("it is no TensorProtos message")
        found.append(_tensor(item))
    if not found:
        raise UnreadableValue("it is a TensorProtos message without a tensor")
    return found


def _four_bytes(item: Any) -> bytes:
    """A repeated field of 4 bytes each: one of them, or several packed."""
    return bytes(item) if isinstance(item, memoryview) else int(item).to_bytes(4, "little")


def _tensor(data: memoryview) -> Any:
    dims: list[int] = []
    kind, parts = 0, dict[int, list[Any]]()
    for number, wire, item in messages(data):
        if number == 1:
            dims += varints(item)
        elif number == 2 and wire == 0:
            kind = item
        else:
            parts.setdefault(number, []).append(item)
    if kind not in TENSORS:
        raise UnreadableValue(f"it has a tensor of type {kind}")
    where, dtype = TENSORS[kind]
    items = parts.get(where, [])
    if kind == 4:
        return bytes(items[0]) if len(items) == 1 else [bytes(item) for item in items]
    if kind in (1, 3):
        raw = b"".join(map(_four_bytes, items))
        return array_of(np.dtype(dtype), dims or (len(raw) // np.dtype(dtype).itemsize,), raw)
    numbers = [signed(number) for item in items for number in varints(item)]
    if len(numbers) == 1 and not dims:
        return numbers[0]
    try:
        return np.array(numbers, dtype).reshape(dims or -1)
    except (ValueError, OverflowError) as error:
        raise UnreadableValue(f"it has a tensor that is damaged: {error}") from None
