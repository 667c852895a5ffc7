"""Features of images and texts for vision-and-language models: UNITER and HERO, ViLBERT, MMF."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from loaderd.data.errors import SourceError
from loaderd.data.layouts.base import Database, KeyedLayout
from loaderd.data.layouts.index_file import read_index
from loaderd.data.layouts.keys import Keys
from loaderd.data.values.arrays import UnreadableValue
from loaderd.data.values.codecs import read_json
from loaderd.data.values.fields import fields_of
from loaderd.data.values.packed import unbase64

PACKED = ("features", "boxes")  # of ViLBERT: float32 as base64 text


class UniterLayout(KeyedLayout):
    """Arrays of each image, msgpack or npz."""

    name = "uniter"
    marks = "`__keys__`, as JSON"

    @classmethod
    def seen(cls, db: Database) -> str:
        value = db.get(b"__keys__")
        listed = value is not None and bytes(value[:1]) == b"["
        return "it has __keys__ that are JSON" if listed else ""

    def find_keys(self) -> Keys:
        try:
            keys = self.db.indexes.listed(self._names, "those of __keys__")
        except (UnreadableValue, AttributeError, TypeError, UnicodeEncodeError):
            raise SourceError(f"{self.db.path}: its __keys__ cannot be read") from None
        if len(keys) != self.db.entries - 1:
            self.notes.append(
                f"__keys__ has {len(keys):,} keys, and the database {self.db.entries - 1:,}"
            )
        return keys

    def _names(self) -> Iterator[bytes]:
        for name in read_json(self.db.get(b"__keys__") or b""):
            yield name.encode()


class UniterTextLayout(KeyedLayout):
    """Tokens of each text; `id2len.json` beside the database has the keys."""

    name = "uniter_text"
    marks = "`id2len.json` beside the database"

    @classmethod
    def seen(cls, db: Database) -> str:
        there = os.path.isfile(db.beside("id2len.json")) and os.path.isdir(db.path)
        return "id2len.json lies beside it" if there else ""

    def find_keys(self) -> Keys:
        return read_index(self.db.beside("id2len.json"), self.db.has).keys


class MmfLayout(KeyedLayout):
    """Features and boxes of each image; what ViLBERT wrote as base64 text are arrays again."""

    name = "mmf"
    marks = "`keys`, a pickled list"

    @classmethod
    def seen(cls, db: Database) -> str:
        value = db.get(b"keys")
        pickled = value is not None and bytes(value[:1]) in (b"\x80", b"(", b"]")
        return "it has a pickled list under the key keys" if pickled else ""

    def find_keys(self) -> Keys:
        try:
            keys = self.db.indexes.listed(self._names, "those of keys")
        except (UnreadableValue, TypeError, UnicodeEncodeError):
            self.notes.append("its list of keys cannot be read: all its other keys are samples")
            return self.listed(b"keys")
        if len(keys) != self.db.entries - 1:
            self.notes.append(
                f"its list has {len(keys):,} keys, and the database {self.db.entries - 1:,}"
            )
        return keys

    def _names(self) -> Iterator[bytes]:
        for name in self.db.said(b"keys"):
            yield name.encode() if isinstance(name, str) else bytes(name)

    def parse(self, index: int, values: list[memoryview]) -> dict[str, Any]:
        assert self.codec is not None
        value = self.codec.decode(values[0])
        if isinstance(value, dict) and type(value.get("num_boxes")) is int:
            rows = value["num_boxes"]
            for name in PACKED:
                if isinstance(value.get(name), (str, bytes)):
                    value[name] = _rows(value[name], rows, name)
        return fields_of(value, self.options.fields)


def _rows(text: str | bytes, rows: int, name: str) -> np.ndarray[Any, Any]:
    raw = unbase64(text.encode("ascii", "replace") if isinstance(text, str) else text)
    if rows < 1 or len(raw) % (4 * rows):
        raise UnreadableValue(f"its {name} are {len(raw):,} bytes, which are not {rows:,} rows")
    return np.frombuffer(raw, "<f4").reshape(rows, -1)


class ChineseClipImages(KeyedLayout):
    """Image files as base64 text."""

    name = "chinese_clip_images"
    marks = "`num_images`"

    @classmethod
    def seen(cls, db: Database) -> str:
        return "it has num_images" if db.has(b"num_images") else ""

    def find_keys(self) -> Keys:
        return self.listed(b"num_images")

    def find_codec(self) -> None:
        return None

    def parse(self, index: int, values: list[memoryview]) -> dict[str, Any]:
        return fields_of(unbase64(values[0]), self.options.fields)
