"""numpy's files: the rows of one .npy or .npz, or many files with a sample each."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from loaderd.data.errors import SourceError
from loaderd.data.packing.fields import chosen
from loaderd.data.packing.files import common_folder, fingerprint_of, read_file, source_files
from loaderd.data.packing.source import PackItem, SourceOptions
from loaderd.data.sample import BadValue, Sample, plain_array
from loaderd.data.values.numpy_files import read_npy, read_npz

ENDINGS = (".npy", ".npz")
CHANNELS = (1, 3, 4)  # of an array of bytes that is taken for a picture


class ArrayFilesSource:
    """Arrays as samples.

    One file: a sample is a row of its arrays. Several: each file is a sample, or with
    `args = {"rows": true}` a field, and a sample a row of all of them.
    """

    kind = "npy"
    named = True
    form = "dict"
    classes = ()
    notes = ()
    unreadable: tuple[tuple[str, str], ...] = ()

    def __init__(self, pattern: str, spool_folder: str, said: SourceOptions) -> None:
        """Open the files.

        Raises:
            SourceError: There are none, or what is one sample a row has no rows.
        """
        unknown = [word for word in said.args if word != "rows"]
        if unknown or said.args.get("rows", False) not in (True, False):
            raise SourceError('--args: there is {"rows": true} for arrays that share their rows')
        self._paths = source_files(
            [pattern, *said.more], ENDINGS, "numpy's files, such as 'features/*.npy'"
        )
        self._folder = common_folder(self._paths)
        self._fields = said.fields
        rows = len(self._paths) == 1 or bool(said.args.get("rows", False))
        self.fingerprint = fingerprint_of(self._paths, rows, said.fields)
        self._arrays: dict[str, np.ndarray] = {}
        self.total = len(self._paths)
        if rows:
            self.total = self._open_rows(pattern)

    def __enter__(self) -> ArrayFilesSource:
        return self

    def __exit__(self, *exc: object) -> None:
        self._arrays.clear()

    def _open_rows(self, pattern: str) -> int:
        """The number of rows that all arrays have."""
        one = len(self._paths) == 1
        for path in self._paths:
            stem = os.path.splitext(os.path.basename(path))[0]
            try:
                found = _mapped(path) if path.endswith(".npy") else read_npz(read_file(path))
            except Exception as error:  # noqa: BLE001 - numpy raises many kinds for files that are none
                raise SourceError(f"{path}: {_text(error)}") from None
            if not isinstance(found, dict):
                found = {"array" if one else stem: found}
            self._arrays.update(found)
        for name, array in self._arrays.items():
            if not array.ndim:
                raise SourceError(f"{pattern}: {name} is a single number, which has no rows")
        lengths = {name: len(array) for name, array in self._arrays.items()}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name} {count:,}" for name, count in lengths.items())
            raise SourceError(f"{pattern}: its arrays have different numbers of rows: {shown}")
        if not any(lengths.values()):
            raise SourceError(f"{pattern}: has no rows")
        return next(iter(lengths.values()))

    def item(self, index: int) -> PackItem:
        """Named by its row, or by its file's path where each file is a sample."""
        if self._arrays:
            return PackItem(b"%d" % index, partial(self._row, index))
        path = self._paths[index]
        name = os.fsencode(os.path.relpath(path, self._folder))
        return PackItem(name, partial(self._file, path))

    def _row(self, index: int) -> Sample:
        return self._sample({name: array[index] for name, array in self._arrays.items()})

    def _file(self, path: str) -> Sample:
        data = read_file(path)
        found = read_npz(data) if path.endswith(".npz") else read_npy(data)
        return self._sample(found if isinstance(found, dict) else {"array": found})

    def _sample(self, arrays: Mapping[str, Any]) -> Sample:
        sample = Sample()
        for name, value in arrays.items():
            array = np.asarray(value)
            if array.dtype.kind in "US" and not array.ndim:
                sample[name] = array[()]
                continue
            sample[name] = plain_array(array, name)
            if array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] in CHANNELS:
                sample.images.add(name)
        if not sample:
            raise BadValue("it has no arrays")
        return chosen(sample, self._fields)


def _mapped(path: str) -> np.ndarray:
    """The array of a .npy file, mapped and not read. Raises ValueError, OSError."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise ValueError("it is empty")
        return read_npy(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))


def _text(error: Exception) -> str:
    return getattr(error, "message", "") or str(error) or type(error).__name__
