"""Parquet files, as Hugging Face's datasets write them and as any other program does.

A column is a field: numbers keep their dtype, lists are arrays, a struct of `bytes` and `path` is
an image, every other struct is a table. pyarrow reads the files; nothing else imports it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from loaderd.data.errors import SampleFault, SourceError
from loaderd.data.packing.fields import LEAVE_OUT, sample_of
from loaderd.data.packing.files import common_folder, fingerprint_of, source_files
from loaderd.data.packing.source import PackItem, SourceOptions
from loaderd.data.sample import BadValue, Sample

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 256  # that are decoded at once
IMAGE = {"bytes", "path"}  # what an image's struct has


class ParquetSource:
    """The rows of files, in the order of their names.

    Attributes:
        classes: Names of the labels, where the file says so as datasets does.
    """

    kind = "parquet"
    named = True
    form = "dict"

    def __init__(self, pattern: str, spool_folder: str, said: SourceOptions) -> None:
        """Read what the files say of themselves.

        Raises:
            SourceError: There is none, none can be read, or a wanted column cannot be packed.
        """
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise SourceError(
                "packing Parquet needs pyarrow, which is not installed: pip install "
                "'loaderd[parquet]'"
            ) from None
        self._parquet = pyarrow.parquet
        what = "Parquet files, such as 'data/train-*.parquet'"
        paths = source_files([pattern, *said.more], (".parquet", ".pq"), what)
        self.fingerprint = fingerprint_of(paths, said.fields)
        self.unreadable: list[tuple[str, str]] = []
        self.notes: list[str] = []
        self.classes: tuple[str, ...] = ()
        self._folder = common_folder(paths)
        self._files: list[tuple[str, list[str], np.ndarray]] = []  # path, columns, ends of groups
        self._told: set[str] = set()
        for number, path in enumerate(paths):
            said.looking(number, len(paths))
            try:
                self._add(path, said.fields)
            except (pyarrow.ArrowException, OSError, ValueError) as error:
                self.unreadable.append((os.path.relpath(path, self._folder), _line(error)))
        self._ends = np.cumsum([ends[-1] if len(ends) else 0 for *_, ends in self._files])
        self.total = int(self._ends[-1]) if self._files else 0
        if not self.total:
            why = f"cannot be read: {self.unreadable[0][1]}" if self.unreadable else "has no rows"
            raise SourceError(f"{pattern}: {why}")
        self._batches: Iterator[Any] = iter(())
        self._at = (-1, -1)  # file and row group of `_batches`
        self._broken = (-1, -1), ""  # the file and row group that was damaged last, and how
        self._rows = (0, 0)  # of the group, that `_batch` has
        self._batch: Any = None

    def __enter__(self) -> ParquetSource:
        return self

    def __exit__(self, *exc: object) -> None:
        self._batches, self._batch = iter(()), None

    def _add(self, path: str, wanted: tuple[str, ...]) -> None:
        with self._parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            metadata = file.metadata
            groups = range(metadata.num_row_groups)
            ends = np.cumsum([metadata.row_group(group).num_rows for group in groups])
        columns = self._columns(path, schema, {field.split(".")[0] for field in wanted})
        if not self._files:
            self.classes = class_names(schema)
        self._files.append((path, columns, ends))

    def _columns(self, path: str, schema: pa.Schema, wanted: set[str]) -> list[str]:
        """The columns that are packed. Raises SourceError for a wanted one that cannot be."""
        absent = wanted - set(schema.names)
        if absent:
            has = ", ".join(schema.names)
            raise SourceError(f"{path}: has no column {sorted(absent)[0]!r}; it has {has}")
        columns: list[str] = []
        for field in schema:
            if wanted and field.name not in wanted:
                continue
            why = unpackable(field.type)
            if why and wanted:
                raise SourceError(f"{path}: column {field.name!r} is {why}, which is not packed")
            if not why:
                columns.append(field.name)
            elif field.name not in self._told:
                self._told.add(field.name)
                self.notes.append(f"column {field.name!r} is left out: it is {why}")
        if not columns:
            raise SourceError(f"{path}: has no column that can be packed")
        return columns

    def item(self, index: int) -> PackItem:
        """Named by its file and its row there; all rows of a damaged row group are bad."""
        number = int(np.searchsorted(self._ends, index, "right"))
        path, columns, ends = self._files[number]
        row = index - (int(self._ends[number - 1]) if number else 0)
        name = f"{os.path.relpath(path, self._folder)}:{row}"
        group = int(np.searchsorted(ends, row, "right"))
        within = row - (int(ends[group - 1]) if group else 0)
        at = (number, group)
        if at != self._broken[0]:
            try:
                batch = self._batch_of(path, columns, at, within)
            except Exception as error:  # noqa: BLE001 - of a damaged page pyarrow raises many kinds
                self._broken = at, _line(error)
            else:
                return PackItem(os.fsencode(name), partial(row_of, batch, within - self._rows[0]))
        fault = SampleFault("read", "ValueError", f"its row group: {self._broken[1]}")
        return PackItem(os.fsencode(name), partial(_raise, fault))

    def _batch_of(self, path: str, columns: list[str], at: tuple[int, int], row: int) -> Any:
        """The rows around `row` of a row group; the next ones are cheap."""
        if at != self._at or row < self._rows[0]:
            self._batches = self._opened(path, columns, at[1])
            self._at, self._rows = at, (0, 0)
        while row >= self._rows[1]:
            self._batch = next(self._batches)
            self._rows = (self._rows[1], self._rows[1] + self._batch.num_rows)
        return self._batch

    def _opened(self, path: str, columns: list[str], group: int) -> Iterator[Any]:
        with self._parquet.ParquetFile(path) as file:
            yield from file.iter_batches(ROWS, row_groups=[group], columns=columns)
        raise BadValue("it has fewer rows than it says")


def _raise(error: Exception) -> Sample:
    raise error


def _line(error: Exception) -> str:
    """What pyarrow says, on one line."""
    return " ".join(str(error).split())[:500] or type(error).__name__


def class_names(schema: pa.Schema) -> tuple[str, ...]:
    """Names of the column called label, or of the only one of labels, as datasets stores them."""
    try:
        info = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        named = {
            name: tuple(feature["names"])
            for name, feature in info.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (KeyError, ValueError, TypeError, AttributeError):
        return ()
    names = named.get("label") or (next(iter(named.values())) if len(named) == 1 else ())
    return names if all(isinstance(name, str) for name in names) else ()


def unpackable(kind: pa.DataType) -> str:
    """What a column is that is not packed; "" for one that is."""
    import pyarrow.types as types

    if isinstance(kind, _extension()):
        return unpackable(kind.storage_type)
    if types.is_dictionary(kind):
        return unpackable(kind.value_type)
    if types.is_struct(kind):
        whys = [unpackable(kind.field(at).type) for at in range(kind.num_fields)]
        return next((why for why in whys if why), "")
    if _is_list(kind):
        inner = kind.value_type
        while _is_list(inner):
            inner = inner.value_type
        if types.is_struct(inner) and _is_struct_of_plain(inner):
            return ""
        return "" if _is_number(inner) else f"lists of {inner}"
    if _is_number(kind) or _is_text(kind) or _is_bytes(kind):
        return ""
    return "all nulls" if types.is_null(kind) else str(kind)


def _extension() -> Any:
    import pyarrow as pa

    return pa.BaseExtensionType


def _compute() -> Any:
    import pyarrow.compute

    return pyarrow.compute


def _is_list(kind: Any) -> bool:
    import pyarrow.types as types

    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _is_number(kind: Any) -> bool:
    import pyarrow.types as types

    return types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)


def _is_text(kind: Any) -> bool:
    import pyarrow.types as types

    return types.is_string(kind) or types.is_large_string(kind)


def _is_bytes(kind: Any) -> bool:
    import pyarrow.types as types

    return types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)


def _is_struct_of_plain(kind: Any) -> bool:
    """Whether a list of such tables is an array for each of their fields."""
    return all(
        _is_number(kind.field(at).type)
        or (_is_list(kind.field(at).type) and not unpackable(kind.field(at).type))
        for at in range(kind.num_fields)
    )


def row_of(batch: Any, row: int) -> Sample:
    """A row as a sample. Raises BadValue that names the column."""
    values: dict[str, Any] = {}
    images: list[str] = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        kind = column.type
        if {field.name for field in kind} == IMAGE if _is_struct(kind) else False:
            values[name] = _image(column[row], name)
            images.append(name)
        else:
            values[name] = _value(column[row], name)
    return sample_of(values, images)


def _is_struct(kind: Any) -> bool:
    import pyarrow.types as types

    return types.is_struct(kind)


def _image(scalar: Any, name: str) -> bytes | None:
    """The bytes of an image's struct."""
    if not scalar.is_valid:
        return None
    data, path = scalar["bytes"].as_py(), scalar["path"].as_py()
    if data is None and path is not None:
        raise BadValue(
            f"field {name!r} has no bytes, only the path {path!r}: write the Parquet file with the "
            "images in it"
        )
    return data


def _value(scalar: Any, name: str) -> Any:
    """A value as what `sample_of` takes; None for a null."""
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if isinstance(kind, _extension()):
        return _value(scalar.value, name)
    if _is_struct(kind):
        return {key: _value(scalar[key], f"{name}.{key}") for key in scalar}
    if _is_list(kind):
        return _listed(scalar.values, name)
    if _is_number(kind):
        return np.array(scalar.as_py(), kind.to_pandas_dtype())
    return scalar.as_py()


def _listed(array: Any, name: str) -> Any:
    """A list's values as an array; a list of tables as an array for each of their fields."""
    if array.null_count:
        raise BadValue(f"field {name!r} has a null in a list, which is no number: {LEAVE_OUT}")
    kind = array.type
    if _is_struct(kind):
        return {
            kind.field(at).name: _listed(array.field(at), f"{name}.{kind.field(at).name}")
            for at in range(kind.num_fields)
        }
    if not _is_list(kind):
        return array.to_numpy(zero_copy_only=False)
    inner = _listed(array.flatten(), name)
    lengths = _compute().list_value_length(array).to_numpy(zero_copy_only=False)
    if len(lengths) and (lengths != lengths[0]).any():
        raise BadValue(
            f"field {name!r} has lists of unequal length, {lengths.min()} to {lengths.max()}, "
            f"which are no array: {LEAVE_OUT}"
        )
    return inner.reshape(len(lengths), lengths[0] if len(lengths) else 0, *inner.shape[1:])
