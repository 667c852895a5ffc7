"""Rows from the pages of a database file in one call.

A small shared object does it, which is built when the package is installed; native/rows.c says how.
Without it the same rows come through the lmdb library, one object each.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from loaderd.data.native_library import ROWS, load

TARGET = struct.Struct("=QQQ")
STREAMED = 1 << 20  # bytes of a copy from which on it goes past the caches
# bytes of a row from which on the pages behind the one that is read are wanted, too
LARGE = 64 << 10


@functools.cache
def library() -> ctypes.CDLL | None:
    """The shared object, if it is there and loads."""
    return load(ROWS, _declare)


def _declare(found: ctypes.CDLL) -> None:
    word, number, address, data = ctypes.c_uint64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p
    copy = found.loaderd_rows_copy
    copy.argtypes = (
        address,
        word,
        word,
        word,
        address,
        number,
        data,
        word,
        word,
        data,
        number,
        ctypes.c_int,
    )
    copy.restype = number


class Pages:
    """A database file, mapped read-only.

    Samples lie in its main database under their numbers, 8 bytes, big-endian.
    """

    def __init__(
        self, library: Any, fd: int, page: int, pages: int, root: int, row_bytes: int
    ) -> None:
        """Map the file.

        Args:
            library: The shared object.
            fd: The file.
            page: Bytes of a page.
            pages: Number of pages that belong to the database; the file must have them.
            root: Number of the main database's first page.
            row_bytes: About what a value has.

        Raises:
            OSError: The file cannot be mapped.
            ValueError: It is too short.
        """
        self._copy = library.loaderd_rows_copy
        self._map = mmap.mmap(fd, page * pages, access=mmap.ACCESS_READ)
        self._map.madvise(mmap.MADV_NORMAL if row_bytes >= LARGE else mmap.MADV_RANDOM)
        self._address = address_of(np.frombuffer(self._map, np.uint8, 1))
        self._where = page, pages, root

    def copy(
        self,
        indices: np.ndarray,
        start: bytes,
        size: int,
        targets: Sequence[tuple[np.ndarray, int, int]],
    ) -> bool:
        """Copy a part of the values of some samples, for each target.

        Damaged pages are found out or give wrong bytes, and never do harm.

        Args:
            indices: Places in the dataset: int64, shape (n,).
            start: What each value must begin with.
            size: Bytes that each value must have.
            targets: (a contiguous array of n * length bytes, at, length). Its row i becomes the
                bytes [at, at + length) of the value of sample indices[i].

        Returns:
            False if a value is not there, or is not as `start` and `size` say. Then nothing is
            known of any row.

        Raises:
            ValueError: The targets are not for so many rows of such values.
        """
        if not all(
            0 <= at <= at + length <= size and array.nbytes == length * len(indices)
            for array, at, length in targets
        ):
            raise ValueError(
                f"targets that aren't for {len(indices)} rows of values of {size} bytes"
            )
        if len(start) > size:
            raise ValueError(f"values of {size} bytes can't begin with {len(start)} others")
        keys = np.ascontiguousarray(indices, np.int64)
        packed = b"".join(
            [TARGET.pack(address_of(array), at, length) for array, at, length in targets]
        )
        streamed = sum(array.nbytes for array, _, _ in targets) >= STREAMED
        done = self._copy(
            self._address,
            *self._where,
            address_of(keys),
            len(keys),
            start,
            len(start),
            size,
            packed,
            len(targets),
            streamed,
        )
        return done == len(keys)

    def close(self) -> None:
        """Idempotent. After it nothing is found any more."""
        self._where = self._where[0], 0, 0
        self._map.close()


def address_of(array: np.ndarray) -> int:
    """Where the array's first byte lies; valid while the array lives."""
    return array.__array_interface__["data"][0]
