"""`ImageFolderLMDB` of Efficient-PyTorch and its copies: numbered (image file, label) pairs."""

from __future__ import annotations

from typing import Any

from loaderd.data.layouts.base import Database, KeyedLayout
from loaderd.data.layouts.keys import Keys
from loaderd.data.values.arrays import UnreadableValue
from loaderd.data.values.codecs import sniff
from loaderd.data.values.fields import fields_of

OTHERS = (b"__keys__", b"__len__", b"classes", b"class_to_idx")


class ImageFolderLayout(KeyedLayout):
    """Pairs of a file and a label."""

    name = "imagefolder_lmdb"
    marks = "`__keys__` and `__len__`"

    @classmethod
    def seen(cls, db: Database) -> str:
        return "it has __keys__ and __len__" if db.has(OTHERS[0]) and db.has(OTHERS[1]) else ""

    def __init__(self, db: Database) -> None:
        super().__init__(db)
        self.classes = _class_names(db)

    def find_keys(self) -> Keys:
        return self.numbered(
            "{i}", count_of_any(self.db, b"__len__"), sum(map(self.db.has, OTHERS))
        )

    def parse(self, index: int, values: list[memoryview]) -> dict[str, Any]:
        assert self.codec is not None
        value = self.codec.decode(values[0])
        if isinstance(value, (list, tuple)):  # the msgpack fork has each file in a table of its own
            value = [_file(part) for part in value]
        return fields_of(value, self.options.fields)


def _file(part: Any) -> Any:
    alone = isinstance(part, dict) and len(part) == 1
    return next(iter(part.values())) if alone and set(part) <= {b"data", "data"} else part


def count_of_any(db: Database, key: bytes) -> int | None:
    """The number that this key says in whatever way values are coded; None if it says none."""
    value = db.get(key)
    said = db.count(key)
    if said is None and value is not None:
        codec = sniff(value)
        try:
            said = codec.decode(value) if codec is not None else bytes(value)[0]
        except UnreadableValue:
            return None
        # msgpack writes a small number as one byte, a larger one as a mark and its bytes
        if codec is None and len(value) > 1:
            said = (
                int.from_bytes(bytes(value[1:]), "big") if value[0] in range(0xCC, 0xD0) else None
            )
    return said if type(said) is int else None


def _class_names(db: Database) -> tuple[str, ...]:
    try:
        names = db.said(b"classes")
    except UnreadableValue:
        return ()
    good = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    return tuple(names) if good else ()
