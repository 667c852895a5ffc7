"""Databases of ml-pyxis: two named databases, one with samples, one with facts of them."""

from __future__ import annotations

from typing import Any

from loaderd.data.errors import SourceError
from loaderd.data.layouts.base import Database, KeyedLayout
from loaderd.data.layouts.keys import KeyFormat, Keys, ListedKeys, NumberedKeys
from loaderd.data.values.arrays import UnreadableValue, array_of, plain_dtype
from loaderd.data.values.codecs import ValueCodec
from loaderd.data.values.fields import fields_of
from loaderd.data.values.msgpacks import unpack
from loaderd_wire.packing import packed

CODEC = ValueCodec(("msgpack",))


class PyxisLayout(KeyedLayout):
    """Arrays by name, as version 0 and 1 of ml-pyxis have them."""

    name = "pyxis"
    marks = "named databases `data_db` and `meta_db`"
    named = b"data_db"

    @classmethod
    def seen(cls, db: Database) -> str:
        there = all(_is_database(db, name) for name in (b"data_db", b"meta_db"))
        return "it has the named databases data_db and meta_db" if there else ""

    def find_keys(self) -> Keys:
        value = self.db.get(b"nb_samples", b"meta_db")
        text = bytes(value or b"")
        form = KeyFormat(self.options.key_format or "{i:010d}")
        if not text.isdigit() or self.db.get(form.key(int(text) - 1), self.named) is None:
            raise SourceError(f"{self.db.path}: its nb_samples is {text[:20]!r}, which is wrong")
        return NumberedKeys(form, 0, int(text))

    def find_codec(self) -> ValueCodec:
        return CODEC

    def parse(self, index: int, values: list[memoryview]) -> dict[str, Any]:
        table = unpack(values[0])
        if not isinstance(table, dict):
            raise UnreadableValue("it is no table of arrays")
        return fields_of({name: _array(part) for name, part in table.items()}, self.options.fields)


def _array(data: Any) -> Any:
    """A part of a sample: msgpack of an array, or a table that is one."""
    part = unpack(data) if isinstance(data, bytes) else data
    if not isinstance(part, dict):
        return part
    said = {str(k, "latin-1") if isinstance(k, bytes) else k: v for k, v in part.items()}
    if {"dtype", "shape", "data"} <= said.keys():
        shape = said["shape"]
        if isinstance(shape, bytes):
            shape = unpack(shape)
        return array_of(plain_dtype(said["dtype"]), shape, said["data"])
    return part


class PyxisMsgpackLayout(PyxisLayout):
    """The rewrite: names and keys are msgpack."""

    name = "pyxis2"
    marks = "named databases called `main` and `metadata` in msgpack"
    named = packed("main")

    @classmethod
    def seen(cls, db: Database) -> str:
        there = all(_is_database(db, packed(name)) for name in ("main", "metadata"))
        return "it has the named databases main and metadata" if there else ""

    def find_keys(self) -> Keys:
        value = self.db.get(packed("__indices"), packed("metadata"))
        try:
            numbers = unpack(value if value is not None else b"")
            return ListedKeys(packed(number) for number in numbers)
        except (UnreadableValue, TypeError, ValueError):
            raise SourceError(f"{self.db.path}: its list of samples cannot be read") from None


def _is_database(db: Database, name: bytes) -> bool:
    value = db.get(name)
    return value is not None and db.store.is_database(name, value)
