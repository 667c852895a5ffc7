"""Databases that hold files by their names: LSUN, BasicSR, MMEngine, SiamFC and others."""

from __future__ import annotations

import os
import re
from typing import Any

from loaderd.data.errors import SourceError
from loaderd.data.layouts.base import Database, KeyedLayout
from loaderd.data.layouts.index_file import read_index
from loaderd.data.layouts.keys import KeyFormat, Keys, ListedKeys
from loaderd.data.sample import is_image_file
from loaderd.data.values.arrays import UnreadableValue, array_of, plain_dtype
from loaderd.data.values.codecs import ValueCodec
from loaderd.data.values.fields import kind_of, plain
from loaderd.data.values.pickles import unpickle

HEX = re.compile(rb"[0-9a-f]{40}")


class FilesLayout(KeyedLayout):
    """Any file under any key. `index_file` gives order, selection and labels."""

    name = "files"
    marks = "values that are image files, under keys of any kind"
    may_be_said = True

    @classmethod
    def seen(cls, db: Database) -> str:
        first = db.first()
        if not first or not all(is_image_file(value) for _, value in first):
            return ""
        return f"its first {len(first)} values are image files"

    def __init__(self, db: Database) -> None:
        self._labels: list[Any] = []
        super().__init__(db)

    def find_keys(self) -> Keys:
        if self.options.index_file:
            found = read_index(self.options.index_file, self.db.has)
            self._labels, self.said_beside = found.labels, found.digest
            return found.keys
        if self.options.key_format:
            return self.numbered(str(self.options.key_format), None, 0)
        return self.listed()

    def find_codec(self) -> ValueCodec:
        return ValueCodec(("file",))

    def parse(self, index: int, values: list[memoryview]) -> dict[str, Any]:
        data = bytes(values[0])
        if not self.options.fields and not is_image_file(data):
            raise UnreadableValue(
                f"its {len(data):,} bytes are no image file that is known; to have them as they "
                'are, say fields = ["data"] on the stream'
            )
        names = self.options.fields or (kind_of(data),)
        sample: dict[str, Any] = {names[0]: data}
        if self._labels:
            sample[names[1] if len(names) > 1 else "label"] = self._labels[index]
        return sample


class LsunLayout(FilesLayout):
    """Files under hashes."""

    name = "lsun"
    marks = "keys of 40 hexadecimal digits, and values that are image files"
    may_be_said = False

    @classmethod
    def seen(cls, db: Database) -> str:
        hashed = super().seen(db) and all(HEX.fullmatch(key) for key, _ in db.first())
        return "its keys are 40 hexadecimal digits, its values image files" if hashed else ""


class SiamfcLayout(FilesLayout):
    """Files under raw hashes."""

    name = "siamfc"
    marks = "keys of 16 raw bytes, and values that are image files"
    may_be_said = False

    @classmethod
    def seen(cls, db: Database) -> str:
        raw = super().seen(db) and all(len(key) == 16 for key, _ in db.first())
        binary = raw and any(not key.isascii() for key, _ in db.first())
        return "its keys are 16 raw bytes, its values image files" if binary else ""


class BasicsrLayout(FilesLayout):
    """Keys in the order of `meta_info.txt`, which has them with the files' extensions."""

    name = "basicsr"
    marks = "`meta_info.txt` beside the database"
    may_be_said = False

    @classmethod
    def seen(cls, db: Database) -> str:
        there = os.path.isfile(db.beside("meta_info.txt")) and os.path.isdir(db.path)
        return "meta_info.txt lies beside it" if there else ""

    def find_keys(self) -> Keys:
        path = self.db.beside("meta_info.txt")
        keys = ListedKeys(
            os.path.splitext(line.split(" (")[0])[0].encode() for line in _lines(path)
        )
        if len(keys) != self.db.entries:
            self.notes.append(
                f"meta_info.txt has {len(keys):,} lines, and the database {self.db.entries:,} keys"
            )
        return keys


class MmsrLayout(KeyedLayout):
    """Raw pictures, blue first; their sizes are in `meta_info.pkl`."""

    name = "mmsr"
    marks = "`meta_info.pkl` beside the database"
    pictures = frozenset(["image"])

    @classmethod
    def seen(cls, db: Database) -> str:
        there = os.path.isfile(db.beside("meta_info.pkl")) and os.path.isdir(db.path)
        return "meta_info.pkl lies beside it" if there else ""

    def find_keys(self) -> Keys:
        path = self.db.beside("meta_info.pkl")
        try:
            with open(path, "rb") as file:
                info: Any = unpickle(file.read())
            keys = [key.encode() if isinstance(key, str) else key for key in info["keys"]]
            sizes = [tuple(map(int, text.split("_"))) for text in info["resolution"]]
            if len(sizes) not in (1, len(keys)) or any(len(size) != 3 for size in sizes):
                raise UnreadableValue("its sizes do not match its keys")
        except (OSError, UnreadableValue, KeyError, TypeError, ValueError, AttributeError) as error:
            raise SourceError(f"{path}: cannot be used: {error}") from None
        self._sizes = sizes
        return ListedKeys(keys)

    def find_codec(self) -> ValueCodec:
        return ValueCodec(("raw",))

    def parse(self, index: int, values: list[memoryview]) -> dict[str, Any]:
        channels, height, width = self._sizes[index if len(self._sizes) > 1 else 0]
        picture = array_of(plain_dtype("u1"), (height, width, channels), values[0])
        return {"image": picture[:, :, ::-1].copy() if channels == 3 else picture}


class RawLayout(KeyedLayout):
    """Numbers without any header: dtype and shape are in the config.

    A pattern for each field makes a sample of several keys.
    """

    name = "raw"
    marks = "never by itself: say `layout`, `dtype` and `shape`"
    may_be_said = True

    @classmethod
    def seen(cls, db: Database) -> str:
        return ""

    def find_keys(self) -> Keys:
        options, self.forms = self.options, dict[str, KeyFormat]()
        if not options.dtype:
            raise SourceError(
                f'{self.db.path}: layout = "raw" needs dtype, such as "float32", and for more '
                "than one axis shape"
            )
        if isinstance(options.key_format, dict):
            self.forms = {name: KeyFormat(text) for name, text in options.key_format.items()}
            self._first = next(iter(self.forms.values()))
            keys, notes = self.scanned(self._first)
            self.notes += notes
        elif options.index_file:
            keys = self.indexed()
        elif options.key_format:
            keys = self.numbered(str(options.key_format), None, 0)
        else:
            keys = self.listed()
        names = list(self.forms) or [options.fields[0] if options.fields else "array"]
        self.dtypes = {name: self._dtype(name) for name in names}
        self.pictures = frozenset(name for name in names if self._pictured(name))
        return keys

    def _dtype(self, name: str) -> Any:
        said = self.options.of_field("dtype", name)
        if said == "text" or said == "bytes":
            return said
        try:
            return plain_dtype(said)
        except UnreadableValue:
            raise SourceError(f"{self.db.path}: dtype = {said!r}: is no dtype of numbers") from None

    def _pictured(self, name: str) -> bool:
        shape = self.options.of_field("shape", name) or ()
        dtype = self.dtypes[name]
        return len(shape) == 3 and shape[2] in (1, 3) and dtype == "uint8"

    def find_codec(self) -> ValueCodec:
        return ValueCodec(("raw",))

    def keys(self, index: int) -> list[bytes]:
        first = self._keys[index]
        if not self.forms:
            return [first]
        number = self._first.number(first)
        assert number is not None
        return [form.key(number) for form in self.forms.values()]

    def parse(self, index: int, values: list[memoryview]) -> dict[str, Any]:
        return {
            plain_name: raw_value(dtype, self.options.of_field("shape", plain_name), value)
            for (plain_name, dtype), value in zip(self.dtypes.items(), values, strict=True)
        }


def raw_value(dtype: Any, shape: Any, value: memoryview) -> Any:
    """Bytes as text, as bytes, or as the array of this dtype and shape; -1 is what is left.

    Raises UnreadableValue where they do not fit.
    """
    if dtype == "bytes":
        return plain(bytes(value))
    if dtype == "text":
        try:
            return str(value, "utf-8")
        except UnicodeDecodeError as error:
            raise UnreadableValue(f"it is text that is not UTF-8: {error}") from None
    sizes = list(shape) if shape else [-1]
    if sizes.count(-1) == 1:
        known = dtype.itemsize
        for size in sizes:
            known *= size if size != -1 else 1
        if not known or len(value) % known:
            raise UnreadableValue(
                f"its {len(value):,} bytes are no whole number of pieces of {known:,} bytes "
                f"(dtype {dtype}, shape {list(sizes)})"
            )
        sizes[sizes.index(-1)] = len(value) // known
    return array_of(dtype, tuple(sizes), value)


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return [line.rstrip("\n") for line in file if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: cannot be read: {error}") from None
