"""Databases for text recognition (CRNN, DTRB, PARSeq, PaddleOCR, MMOCR, TextZoom).

They hold an image, or several, and a label for each number from 1 on.
"""

from __future__ import annotations

from typing import Any

from loaderd.data.errors import SourceError
from loaderd.data.layouts.base import Database, SeveralKeysLayout
from loaderd.data.values.codecs import read_json, read_text
from loaderd.data.values.fields import fields_of

COUNT = b"num-samples"
PREFIXES = ("image", "image_hr", "image_lr", "label")


class SceneTextLayout(SeveralKeysLayout):
    """Labels that are JSON, as MMOCR's without images, give a field for each of their entries."""

    name = "scene_text"
    marks = "`num-samples`, and keys such as `image-000000001` and `label-000000001`"

    @classmethod
    def seen(cls, db: Database) -> str:
        found = [name for name in PREFIXES if db.has(b"%b-%09d" % (name.encode(), 1))]
        if not db.has(COUNT) or not found:
            return ""
        return f"it has num-samples, and {' and '.join(f'{name}-000000001' for name in found)}"

    def __init__(self, db: Database) -> None:
        super().__init__(db)
        wanted = self.options.fields or PREFIXES
        self.parts = [
            name
            for name in wanted
            if db.has(b"%b-%09d" % (name.encode("utf-8", "backslashreplace"), 1))
        ]
        if not self.parts or (self.options.fields and len(self.parts) < len(wanted)):
            raise SourceError(
                f"{db.path}: fields = {list(wanted)}: it has no keys such as {wanted[0]}-000000001"
            )
        patterns = [f"{name}-{{i:09d}}" for name in self.parts]
        kinds = sum(db.has(b"%b-%09d" % (name.encode(), 1)) for name in PREFIXES)
        self.find_keys(patterns, db.entries - 1, kinds, db.count(COUNT))
        self._json = self.parts == ["label"] and len(self) > 0 and _is_json(db, self.keys(0)[0])

    def parse(self, index: int, values: list[memoryview]) -> dict[str, Any]:
        if self._json:
            return fields_of(read_json(values[0]), ())
        return {
            name: read_text(value) if name == "label" else bytes(value)
            for name, value in zip(self.parts, values, strict=True)
        }


def _is_json(db: Database, key: bytes) -> bool:
    value = db.get(key)
    return value is not None and bytes(value[:1]) == b"{"
