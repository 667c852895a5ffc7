"""One JSON object a line, with a field of paths."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from loaderd.data.errors import SourceError, reading
from loaderd.data.packing.fields import chosen
from loaderd.data.packing.files import fingerprint_of
from loaderd.data.packing.source import PackItem, SourceOptions
from loaderd.data.packing.spool import Spool
from loaderd.data.packing.table_columns import TableColumns, one_file, root_of
from loaderd.data.sample import BadValue, Sample

MAX_LINE = 64 << 20  # bytes
BOM = b"\xef\xbb\xbf"


class JsonLinesSource:
    """The lines of a file. Those that are empty are none."""

    kind = "jsonl"
    named = True
    form = "dict"
    unreadable: tuple[tuple[str, str], ...] = ()

    def __init__(self, path: str, spool_folder: str, said: SourceOptions) -> None:
        """Read all lines once.

        Raises:
            SourceError: There is no such file, or it has no lines.
            WriteFault: The temporary files cannot be written.
        """
        self._path = one_file(path, "a file with one JSON object a line")
        root = root_of(self._path, said.args)
        self.fingerprint = fingerprint_of([self._path], root, said.fields, said.classes)
        self._fields = said.fields
        self._columns = TableColumns(root, said.classes)
        self._fractions: set[str] = set()  # fields that have a number with a fraction somewhere
        self._spool = Spool(spool_folder)
        try:
            for line, data in self._lines():
                self._spool.append(b"%d " % line + data)
                self._look(data)
            self._spool.seal()
            self.total = len(self._spool)
            if not self.total:
                raise SourceError(f"{self._path}: has no lines")
        except BaseException:
            self._spool.close()
            raise
        self.notes = self._columns.decide()
        self.classes = self._columns.classes

    def __enter__(self) -> JsonLinesSource:
        return self

    def __exit__(self, *exc: object) -> None:
        self._spool.close()

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """(its number, at most MAX_LINE of its bytes) of each line that is not empty."""
        with reading(self._path), open(self._path, "rb") as file:
            line = 0
            while data := file.readline(MAX_LINE):
                line += 1
                whole = data
                while whole and not whole.endswith(b"\n"):
                    whole = file.readline(MAX_LINE)
                data = data.removeprefix(BOM).strip()
                if data:
                    yield line, data

    def _look(self, data: bytes) -> None:
        try:
            values = _object(data)
        except BadValue:
            return  # it is told when it is its turn
        self._columns.look(values)
        self._fractions.update(name for name, part in _leaves(values, "") if _has_fraction(part))

    def item(self, index: int) -> PackItem:
        """Named by its first path, or by its line: always where that is no object."""
        line, _, data = self._spool[index].partition(b" ")
        try:
            values = _object(data)
        except BadValue as error:
            return PackItem(b"line " + line, partial(_raise, error))
        name = self._columns.name_of(values, int(line))
        return PackItem(name, partial(self._read, values))

    def _read(self, values: dict[str, Any]) -> Sample:
        return chosen(self._columns.sample(self._typed(values, "")), self._fields)

    def _typed(self, values: Mapping[str, Any], before: str) -> dict[str, Any]:
        """With all numbers of a field that has fractions as such, in every sample alike."""
        made: dict[str, Any] = {}
        for key, value in values.items():
            name = f"{before}{key}"
            if isinstance(value, dict):
                made[key] = self._typed(value, f"{name}.")
            elif isinstance(value, list) and not value:
                made[key] = np.empty(0, np.float64 if name in self._fractions else np.int64)
            elif name in self._fractions and type(value) is int:
                made[key] = float(value)
            elif name in self._fractions and isinstance(value, list):
                made[key] = _fractions(value)
            else:
                made[key] = value
        return made


def _raise(error: Exception) -> Sample:
    raise error


def _object(data: bytes) -> dict[str, Any]:
    """The object of a line. Raises BadValue."""
    if len(data) >= MAX_LINE:
        raise BadValue(f"its line has more than {MAX_LINE:,} bytes")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadValue(f"its line is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadValue(f"its line is a {type(value).__name__}, not an object")
    return value


def _leaves(values: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _has_fraction(value: Any) -> bool:
    return type(value) is float or (isinstance(value, list) and any(map(_has_fraction, value)))


def _fractions(value: Any) -> Any:
    """Lists of numbers with fractions throughout; everything else as it is."""
    if isinstance(value, list):
        return [_fractions(part) for part in value]
    return float(value) if type(value) is int else value
