"""Databases of tensorpack's `LMDBSerializer`: numbered values, each a list of parts."""

from __future__ import annotations

from loaderd.data.layouts.base import Database, KeyedLayout
from loaderd.data.layouts.keys import Keys, format_of


class TensorpackLayout(KeyedLayout):
    """The list of keys is not read: it says nothing that the keys do not."""

    name = "tensorpack"
    marks = "`__keys__`, coded like the values, and no `__len__`"

    @classmethod
    def seen(cls, db: Database) -> str:
        value = db.get(b"__keys__")
        if value is None or db.has(b"__len__") or bytes(value[:1]) == b"[":
            return ""
        return "it has __keys__ that are not JSON, and no __len__"

    def find_keys(self) -> Keys:
        form = format_of(self.db.first()[0][0])
        pattern = form.text if form is not None else "{i:08d}"
        return self.numbered(pattern, self.db.entries - 1, others=1)
