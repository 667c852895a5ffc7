"""Samples of several keys each, with the count in a key: StyleGAN2, video latents, DeePMD."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from loaderd.data.errors import SourceError
from loaderd.data.layouts.base import Database, KeyedLayout, SeveralKeysLayout
from loaderd.data.layouts.files import raw_value
from loaderd.data.layouts.keys import Keys
from loaderd.data.values.arrays import UnreadableValue, array_of, plain_dtype
from loaderd.data.values.codecs import ValueCodec
from loaderd.data.values.fields import fields_of
from loaderd.data.values.msgpacks import unpack

SIZES = tuple(1 << n for n in range(2, 12))


class Stylegan2Layout(SeveralKeysLayout):
    """Images of one size or several for each number: `image`, or `image.128`, `image.256`."""

    name = "stylegan2"
    marks = "`length`, and keys such as `256-00000`"

    @classmethod
    def seen(cls, db: Database) -> str:
        sizes = [size for size in SIZES if db.has(b"%d-00000" % size)]
        there = db.has(b"length") and sizes
        return f"it has length, and keys such as {sizes[-1]}-00000" if there else ""

    def __init__(self, db: Database) -> None:
        super().__init__(db)
        sizes = [size for size in SIZES if db.has(b"%d-00000" % size)]
        names = {f"image.{size}" if len(sizes) > 1 else "image": size for size in sizes}
        wanted = self.options.fields or tuple(names)
        absent = [name for name in wanted if name not in names]
        if absent:
            raise SourceError(f"{db.path}: has no field {absent[0]!r}; it has {', '.join(names)}")
        self._names = wanted
        patterns = [f"{names[name]}-{{i:05d}}" for name in wanted]
        self.find_keys(patterns, db.entries - 1, max(1, len(sizes)), db.count(b"length"))

    def parse(self, index: int, values: list[memoryview]) -> dict[str, Any]:
        return dict(zip(self._names, map(bytes, values), strict=True))


class LatentsLayout(SeveralKeysLayout):
    """A row of each array for each number.

    dtype is nowhere in such a database: numbers of 2 bytes are taken for float16, of 4 for
    float32, unless the config says otherwise.
    """

    name = "latents"
    marks = "keys such as `latents_0_data`, and `latents_shape`"

    @classmethod
    def seen(cls, db: Database) -> str:
        name = _array_of(db.first()[0][0]) if db.first() else ""
        there = name and db.has(f"{name}_shape".encode())
        return f"it has {name}_0_data and {name}_shape" if there else ""

    def __init__(self, db: Database) -> None:
        super().__init__(db)
        self.shapes = {name: _shape(db, name) for name in _array_names(db)}
        wanted = self.options.fields or tuple(self.shapes)
        absent = [name for name in wanted if name not in self.shapes]
        if absent:
            there = ", ".join(self.shapes)
            raise SourceError(f"{db.path}: has no array {absent[0]!r}; it has {there}")
        self._names = wanted
        patterns = [f"{name}_{{i}}_data" for name in wanted]
        each = len(self.shapes)
        self.find_keys(patterns, db.entries - each, each, self.shapes[wanted[0]][0])
        self._row = {name: self._row_of(name) for name in wanted}

    def _row_of(self, name: str) -> tuple[Any, Any]:
        """(dtype, shape) of a row."""
        shape = self.options.of_field("shape", name) or list(self.shapes[name][1:]) or None
        said = self.options.of_field("dtype", name)
        if said in ("text", "bytes"):
            return said, None
        if said:
            return plain_dtype(said), shape
        value = self.db.get(self._forms[self._names.index(name)].key(0)) or memoryview(b"")
        if shape is None:
            return ("text" if _is_text(value) else "bytes"), None
        width, rest = divmod(len(value), max(1, int(np.prod(shape))))
        guessed = {2: "float16", 4: "float32"}.get(width) if not rest else None
        if guessed is None:
            raise SourceError(
                f"{self.db.path}: a row of {name} has {len(value):,} bytes, which is no float16 or "
                f"float32 of shape {shape}: say dtype = {{{name} = ...}} and shape"
            )
        self.notes.append(
            f"{name} has numbers of {width} bytes, taken for {guessed}: if they are not, say dtype"
        )
        return plain_dtype(guessed), shape

    def parse(self, index: int, values: list[memoryview]) -> dict[str, Any]:
        return {
            name: raw_value(*self._row[name], value)
            for name, value in zip(self._names, values, strict=True)
        }


def _array_of(key: bytes) -> str:
    match = re.fullmatch(rb"([^\0]+?)_(?:[0-9]+_data|shape)", key)
    return match[1].decode("utf-8", "replace") if match else ""


def _array_names(db: Database) -> list[str]:
    """The arrays of the database: their keys lie together, so each is found by one look."""
    names: list[str] = []
    start: bytes | None = None
    for _ in range(256):
        item = next(iter(db.store.items(start=start)), None)
        name = _array_of(item[0]) if item is not None else ""
        if not name:
            break
        names.append(name)
        start = f"{name}_shape".encode() + b"\0"
    return names


def _shape(db: Database, name: str) -> tuple[int, ...]:
    text = bytes(db.get(f"{name}_shape".encode()) or b"")
    parts = text.split()
    if not parts or not all(part.isdigit() and len(part) < 10 for part in parts):
        raise SourceError(f"{db.path}: its {name}_shape is {text[:60]!r}, which is no shape")
    return tuple(map(int, parts))


def _is_text(value: memoryview) -> bool:
    try:
        return str(value, "utf-8").isprintable()
    except UnicodeDecodeError:
        return False


class DeepmdLayout(KeyedLayout):
    """A table of arrays for each frame."""

    name = "deepmd"
    marks = "`__metadata__`"

    @classmethod
    def seen(cls, db: Database) -> str:
        return "it has __metadata__" if db.has(b"__metadata__") else ""

    def find_keys(self) -> Keys:
        try:
            said = unpack(self.db.get(b"__metadata__") or b"")
            form, count = str(said["frame_idx_fmt"]), int(said["nframes"])
        except (UnreadableValue, KeyError, TypeError, ValueError):
            raise SourceError(f"{self.db.path}: its __metadata__ cannot be read") from None
        return self.numbered(f"{{i:{form}}}", count, 1)

    def find_codec(self) -> ValueCodec:
        return ValueCodec(("msgpack",))

    def parse(self, index: int, values: list[memoryview]) -> dict[str, Any]:
        table = unpack(values[0])
        if not isinstance(table, dict):
            raise UnreadableValue("it is no table of arrays")
        return fields_of({name: _frame(part) for name, part in table.items()}, self.options.fields)


def _frame(part: Any) -> Any:
    if isinstance(part, dict) and {"type", "shape", "data"} <= part.keys():
        return array_of(plain_dtype(part["type"]), part["shape"], part["data"])
    return part
