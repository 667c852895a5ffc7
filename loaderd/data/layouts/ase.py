"""Databases of ASE's LMDB backend (`.aselmdb`): OMat24, OMol25 and others."""

from __future__ import annotations

from typing import Any

import numpy as np

from loaderd.data.layouts.base import Database, KeyedLayout
from loaderd.data.layouts.keys import Keys
from loaderd.data.values.arrays import MAX_DEPTH, UnreadableValue, plain_dtype, plain_shape
from loaderd.data.values.codecs import ValueCodec, read_json
from loaderd.data.values.fields import fields_of
from loaderd.data.values.packed import unzlib

OTHERS = (b"nextid", b"deleted_ids", b"metadata")
CODEC = ValueCodec(("zlib", "json"))


class AseLayout(KeyedLayout):
    """Ids from 1 on, without those that were deleted. Fields without a value are left out."""

    name = "ase"
    marks = "`nextid`"

    @classmethod
    def seen(cls, db: Database) -> str:
        return "it has nextid" if db.has(b"nextid") else ""

    def find_keys(self) -> Keys:
        following = _said(self.db, b"nextid")
        deleted = _said(self.db, b"deleted_ids") or []
        stated = following - 1 - len(deleted) if type(following) is int else None
        return self.numbered("{i}", stated, sum(map(self.db.has, OTHERS)))

    def find_codec(self) -> ValueCodec:
        return CODEC

    def parse(self, index: int, values: list[memoryview]) -> dict[str, Any]:
        row = revived(CODEC.decode(values[0]), 0)
        if not isinstance(row, dict):
            raise UnreadableValue("it is no table of an atomic structure")
        return fields_of(
            {name: value for name, value in row.items() if value is not None}, self.options.fields
        )


def _said(db: Database, key: bytes) -> Any:
    value = db.get(key)
    try:
        return None if value is None else read_json(unzlib(value))
    except UnreadableValue:
        return None


def revived(value: Any, depth: int) -> Any:
    """JSON as ASE writes it, with its arrays and complex numbers. Raises UnreadableValue."""
    if depth > MAX_DEPTH:
        raise UnreadableValue(f"its lists and tables are more than {MAX_DEPTH} deep")
    if isinstance(value, list):
        return [revived(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if "__ndarray__" in value:
        return _array(value["__ndarray__"])
    if "__complex__" in value:
        parts = value["__complex__"]
        if not isinstance(parts, list) or not all(type(p) in (int, float) for p in parts):
            raise UnreadableValue("it has a complex number that is not made of two numbers")
        return complex(*parts[:2])
    if "__datetime__" in value:
        return str(value["__datetime__"])
    if "__ase_objtype__" in value:
        inner = {name: part for name, part in value.items() if name != "__ase_objtype__"}
        return revived(inner.get("array", inner), depth + 1)
    return {name: revived(item, depth + 1) for name, item in value.items()}


def _array(parts: Any) -> np.ndarray[Any, Any]:
    if not isinstance(parts, list) or len(parts) != 3 or not isinstance(parts[2], list):
        raise UnreadableValue("it has an array that is not shape, dtype and numbers")
    shape, dtype, numbers = parts
    try:
        if isinstance(dtype, str) and dtype.startswith("complex"):
            numbers = np.array(numbers, float).view(complex).ravel()
        return np.array(numbers, plain_dtype(dtype)).reshape(plain_shape(shape))
    except (ValueError, TypeError, OverflowError) as error:
        raise UnreadableValue(f"it has an array that is damaged: {error}") from None
