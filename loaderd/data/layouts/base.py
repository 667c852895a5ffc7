"""What a layout is: a class that knows the keys of a database's samples, and what their values are.

A family of layouts is one file. It has one class or more, each of them with:

    name       what `layout =` says
    marks      by what it is recognised, for people
    seen(db)   why this database is of that layout; "" if it is not
    keys(i)    the keys of sample i
    parse(i, values)   its fields

`table.py` has all of them in the order in which they are asked.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from loaderd.data.errors import SourceError
from loaderd.data.layouts.index_file import read_index
from loaderd.data.layouts.key_index import KeyIndexes
from loaderd.data.layouts.keys import KeyFormat, Keys
from loaderd.data.layouts.numbering import numbered
from loaderd.data.lmdb.store import Store
from loaderd.data.values.arrays import UnreadableValue
from loaderd.data.values.codecs import ValueCodec, sniff
from loaderd.data.values.fields import fields_of, table_of
from loaderd.data.values.pickles import unpickle

LOOKED = 8  # values that are looked at, to know how all are coded


@dataclass(frozen=True, slots=True)
class LayoutOptions:
    """What the config says of a database.

    Attributes:
        key_format: Pattern of the keys, or one for each field.
        count: Number of samples, 0 if it says none.
        dtype: Of values that are raw numbers, or one for each field.
        shape: Likewise; -1 is what is left.
        fields: Names of the fields that are wanted, or names for the parts of a value.
        index_file: A file with the keys.
        allow_pickle: Pickles are run.
    """

    key_format: Any = None
    count: int = 0
    dtype: Any = None
    shape: Any = None
    fields: tuple[str, ...] = ()
    index_file: str | None = None
    allow_pickle: bool = False

    def of_field(self, what: str, name: str) -> Any:
        """The dtype or the shape of this field, None if the config says none."""
        value = getattr(self, what)
        return value.get(name) if isinstance(value, dict) else value


class NeedsPickle(SourceError):
    """The values need code that only a trusted file may run.

    Attributes:
        wanted: The class or function, "module.name".
    """

    def __init__(self, path: str, wanted: str) -> None:
        super().__init__(
            f"{path}: its values are pickles that need {wanted}, code that loaderd does not run. "
            "If you trust the file, set allow_pickle = true on the stream; it then runs whatever "
            "the file asks for"
        )
        self.wanted = wanted


class Database:
    """A database as layouts see it.

    Attributes:
        store: The open file.
        options: What the config says of it.
        indexes: Lists of its keys.
    """

    def __init__(self, store: Store, options: LayoutOptions) -> None:
        self.store = store
        self.indexes = KeyIndexes(store)
        self.options = options
        self._first: list[tuple[bytes, memoryview]] | None = None

    @property
    def path(self) -> str:
        """As the config names it."""
        return self.store.path

    @property
    def entries(self) -> int:
        """How many keys there are, those included that are no samples."""
        return self.store.entries

    def get(self, key: bytes, db: bytes | None = None) -> memoryview | None:
        """A value, valid while the file is open; of the named database `db` if one is given."""
        return self.store.get(key, db)

    def has(self, key: bytes) -> bool:
        """Whether the main database has this key."""
        return self.store.get(key) is not None

    def first(self) -> list[tuple[bytes, memoryview]]:
        """The first entries."""
        if self._first is None:
            self._first = [item for item, _ in zip(self.store.items(), range(16), strict=False)]
        return self._first

    def last(self) -> list[tuple[bytes, memoryview]]:
        """The last entries, the very last one first."""
        return [item for item, _ in zip(self.store.items(backward=True), range(16), strict=False)]

    def beside(self, name: str) -> str:
        """The path of a file of this name in the database's folder."""
        return os.path.join(os.path.dirname(self.store.file), name)

    def said(self, key: bytes) -> Any:
        """What a key of the database's own says: a number, or a pickled value; None if absent.

        Raises UnreadableValue.
        """
        value = self.get(key)
        if value is None:
            return None
        text = bytes(value)
        return int(text) if text.isdigit() and len(text) < 19 else unpickle(text)

    def count(self, key: bytes) -> int | None:
        """The number that this key says, as digits or pickled; None if it says none."""
        try:
            said = self.said(key)
        except UnreadableValue:
            return None
        return said if type(said) is int and 0 <= said < 1 << 48 else None


class StoredLayout:
    """A layout that loaderd knows: the base of all of them.

    Attributes:
        why: By what this database was recognised.
        codec: How its values are coded, None where the layout says it.
        notes: What is odd: gaps, a wrong count.
        classes: Names of the labels.
        said_beside: A hash of what other files say of the samples; "" if none does.
    """

    name: ClassVar[str]
    marks: ClassVar[str]
    may_be_said: ClassVar[bool] = False  # also of a database that is not recognised as such
    pictures: frozenset[str] = frozenset()  # fields that are images as height x width x channels
    named: bytes | None = None  # the named database that has the samples

    def __init__(self, db: Database) -> None:
        self.db = db
        self.options = db.options
        self.why = type(self).seen(db)
        self.codec: ValueCodec | None = None
        self.notes: list[str] = []
        self.classes: tuple[str, ...] = ()
        self.said_beside = ""

    @classmethod
    def seen(cls, db: Database) -> str:
        """Why this database is of this layout; "" if it is not."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def keys(self, index: int) -> list[bytes]:
        """The keys of sample `index`; the first one is its name."""
        raise NotImplementedError

    def parse(self, index: int, values: list[memoryview]) -> dict[str, Any]:
        """The fields of the sample. Raises UnreadableValue."""
        raise NotImplementedError


class KeyedLayout(StoredLayout):
    """One key a sample, and values that are all coded alike."""

    def __init__(self, db: Database) -> None:
        super().__init__(db)
        self._keys = self.find_keys()
        self.codec = self.find_codec()

    def find_keys(self) -> Keys:
        """The keys of the samples."""
        raise NotImplementedError

    def find_codec(self) -> ValueCodec | None:
        """How the values are coded, as the first of them tell. Raises SourceError."""
        return codec_of(self.db, self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def keys(self, index: int) -> list[bytes]:
        """The one key of sample `index`."""
        return [self._keys[index]]

    def parse(self, index: int, values: list[memoryview]) -> dict[str, Any]:
        """The fields of the one value, as `codec` reads it."""
        assert self.codec is not None
        value = self.codec.decode(values[0])
        return fields_of(table_of(value) if self.codec.trusted else value, self.options.fields)

    def indexed(self) -> Keys:
        """The keys of the config's index file."""
        found = read_index(str(self.options.index_file), self.db.has)
        self.said_beside = found.digest
        return found.keys

    def numbered(self, pattern: str, stated: int | None, others: int) -> Keys:
        """The keys of this pattern; `others` is the number of entries that are no samples."""
        form = KeyFormat(self.options.key_format or pattern)
        entries = self.db.entries - others
        keys, notes = numbered(self.db, form, entries=entries, stated=stated)
        self.notes += notes
        return keys

    def scanned(self, form: KeyFormat) -> tuple[Keys, list[str]]:
        """The keys of this pattern, found by a pass over all keys."""
        return numbered(self.db, form, entries=-1)

    def listed(self, *others: bytes) -> Keys:
        """All keys but these."""
        indexes = self.db.indexes
        return indexes.listed(
            lambda: (key for key in indexes.scan() if key not in others),
            f"all but {sorted(others)}",
        )


class SeveralKeysLayout(StoredLayout):
    """Several keys a sample, which share a number."""

    def find_keys(
        self, patterns: Sequence[str], entries: int, each: int, stated: int | None
    ) -> None:
        """Find the numbers of the samples.

        Args:
            patterns: The pattern of each key of a sample. The first one tells the numbers.
            entries: Entries of the database that are parts of samples.
            each: How many of these a sample has.
            stated: The number of samples that the database says it has; None if it says none.
        """
        self._forms = [KeyFormat(pattern) for pattern in patterns]
        samples, rest = divmod(entries, each)
        self._keys, notes = numbered(
            self.db, self._forms[0], entries=-1 if rest else samples, stated=stated
        )
        self.notes += notes

    def __len__(self) -> int:
        return len(self._keys)

    def keys(self, index: int) -> list[bytes]:
        """A key of each pattern, all with the number of sample `index`."""
        first = self._keys[index]
        number = self._forms[0].number(first)
        assert number is not None
        return [first, *(form.key(number) for form in self._forms[1:])]


def codec_of(db: Database, keys: Keys) -> ValueCodec:
    """How the values of these keys are coded, which the first that can be read tells.

    Raises SourceError where none can, saying what they look like.
    """
    seen: list[bytes] = []
    for index in range(min(LOOKED, len(keys))):
        value = db.get(keys[index])
        if value is None:
            continue
        seen.append(bytes(value[:16]))
        codec = sniff(value, db.options.allow_pickle)
        if codec is None:
            continue
        if codec.wants and not db.options.allow_pickle:
            raise NeedsPickle(db.path, codec.wants)
        return codec
    shown = seen[0].hex(" ") if seen else "nothing"
    raise SourceError(
        f"{db.path}: its values are coded as nothing that loaderd knows; the first begins with "
        f"{shown}. If pyarrow.serialize wrote them, only pyarrow before 15 reads them: convert the "
        'database there. If they are raw numbers, say layout = "raw" and dtype = "float32"'
    )
