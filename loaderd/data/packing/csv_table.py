"""A table of text with a column of paths: CSV, or with tabs, semicolons or bars."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgpack

from loaderd.data.errors import SourceError, reading
from loaderd.data.packing.fields import chosen
from loaderd.data.packing.files import fingerprint_of
from loaderd.data.packing.source import PackItem, SourceOptions
from loaderd.data.packing.spool import Spool
from loaderd.data.packing.table_columns import PATHS, TableColumns, one_file, root_of
from loaderd.data.sample import BadValue, Sample
from loaderd_wire.packing import packed

DELIMITERS = ",\t;|"
LOOKED = 20  # lines that tell which of them it is
WHOLE = re.compile(r"[+-]?(0|[1-9]\d{0,17})")  # "007" is no number but a name
# A whole number among fractions is a float64, which keeps 15 digits.
FRACTION = re.compile(
    r"[+-]?(((0|[1-9]\d*)?\.\d+|(0|[1-9]\d*)\.)(e[+-]?\d+)?"
    r"|(0|[1-9]\d*)e[+-]?\d+|0|[1-9]\d{0,14}|nan|inf)",
    re.IGNORECASE,
)


class CsvSource:
    """The rows of a table. A cell that is empty is a null."""

    kind = "csv"
    named = True
    form = "dict"

    def __init__(self, path: str, spool_folder: str, said: SourceOptions) -> None:
        """Read all rows once.

        Raises:
            SourceError: It is no table, or has no rows.
            WriteFault: The temporary files cannot be written.
        """
        self._path = one_file(path, "a table (.csv, .tsv)")
        root = root_of(self._path, said.args)
        self.fingerprint = fingerprint_of([self._path], root, said.fields, said.classes)
        self.unreadable: list[tuple[str, str]] = []
        self.notes: list[str] = []
        self._fields = said.fields
        self._columns = TableColumns(root, said.classes)
        self._spool = Spool(spool_folder)
        try:
            self._read_all()
            self._spool.seal()
            self.total = len(self._spool)
            if not self.total:
                why = f": {self.unreadable[0][1]}" if self.unreadable else ""
                raise SourceError(f"{self._path}: has no rows{why}")
        except BaseException:
            self._spool.close()
            raise
        self.notes += self._columns.decide(
            [name for name, kind in self._kinds.items() if kind is not str]
        )
        self.classes = self._columns.classes

    def __enter__(self) -> CsvSource:
        return self

    def __exit__(self, *exc: object) -> None:
        self._spool.close()

    def _read_all(self) -> None:
        rows = self._rows()
        _, first = next(rows, (0, []))
        headless = any(PATHS.fullmatch(cell) for cell in first)
        self._names = _names(first) if headless else [name.strip() for name in first]
        twice = {name for name in self._names if self._names.count(name) > 1 or not name}
        if twice:
            raise SourceError(
                f"{self._path}: two columns of its first line are called {min(twice)!r}"
            )
        if len(self._names) == 1:
            self.notes.append(
                f"the table has one column, {self._names[0]!r}: cells are divided by a comma, a "
                "tab, a semicolon or a bar"
            )
        if headless:
            self.notes.append(f"without a line of names: columns are {', '.join(self._names)}")
        self._kinds: dict[str, type] = dict.fromkeys(self._names, int)
        self._long: set[str] = set()  # columns of whole numbers that a fraction would not keep
        if headless:
            self._keep(1, first)
        for line, cells in rows:
            self._keep(line, cells)

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """(number of the line that it ends in, cells) of each row that is not empty."""
        with (
            reading(self._path),
            open(self._path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file,
        ):
            delimiter = _delimiter([file.readline(1 << 16) for _ in range(LOOKED)])
            file.seek(0)
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            while True:
                try:
                    cells = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    name = f"{os.path.basename(self._path)}:{reader.line_num}"
                    self.unreadable.append((name, f"{error}: does a quote lack its other one?"))
                    continue
                if cells:
                    yield reader.line_num, cells

    def _keep(self, line: int, cells: list[str]) -> None:
        data = [cell.encode("utf-8", "surrogateescape") for cell in cells]
        self._spool.append(packed([line, data]))
        if len(cells) != len(self._names):
            return
        for name, cell in zip(self._names, cells, strict=True):
            if cell and self._kinds[name] is not str:
                self._see_number(name, cell)
        self._columns.look(
            {name: cell for name, cell in zip(self._names, cells, strict=True) if cell}
        )

    def _see_number(self, name: str, cell: str) -> None:
        """Settle what a column is, whose cells have all been numbers so far."""
        whole, fraction = WHOLE.fullmatch(cell), FRACTION.fullmatch(cell)
        if whole and not fraction:
            self._long.add(name)
        if not whole and self._kinds[name] is int:
            self._kinds[name] = float
        if self._kinds[name] is float and (not fraction or name in self._long):
            self._kinds[name] = str

    def item(self, index: int) -> PackItem:
        """Named by its first path, or by the line that it begins in."""
        line, data = msgpack.unpackb(self._spool[index], use_list=False)
        cells = [cell.decode("utf-8", "surrogateescape") for cell in data]
        values = dict(zip(self._names, cells, strict=False))
        return PackItem(self._columns.name_of(values, line), partial(self._read, cells, line))

    def _read(self, cells: list[str], line: int) -> Sample:
        if len(cells) != len(self._names):
            raise BadValue(
                f"line {line} has {len(cells)} cells, the table has {len(self._names)} columns"
            )
        values: dict[str, Any] = {
            name: self._kinds[name](cell) if cell else None
            for name, cell in zip(self._names, cells, strict=True)
        }
        return chosen(self._columns.sample(values), self._fields)


def _delimiter(lines: list[str]) -> str:
    """What divides the cells of a table that begins with these lines.

    That is what gives all lines the same number of cells; of several, what most cells have.
    """

    def cells(delimiter: str) -> tuple[bool, int]:
        counts = [line.count(delimiter) for line in lines if line.strip()]
        return min(counts, default=0) == max(counts, default=0) > 0, counts[0] if counts else 0

    return max(DELIMITERS, key=cells)


def _names(cells: list[str]) -> list[str]:
    """Names for the columns of a table that has none."""
    images = [at for at, cell in enumerate(cells) if PATHS.fullmatch(cell)]
    names = [str(at) for at in range(len(cells))]
    if len(images) == 1:
        names[images[0]] = "image"
    others = [at for at in range(len(cells)) if at not in images]
    if len(others) == 1:
        names[others[0]] = "label"
    return names
