"""Tables of an order, one number a sample, in files that all processes of this user map.

A file is named by the hash of what it holds, so it is never out of date, and whoever opens it sees
whether it is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from loaderd.data.errors import SourceError
from loaderd.system.cache_folder import cache_folder

Ints = NDArray[np.int64]

END = ".int64"


class TableError(SourceError):
    """A file of a table is gone or damaged, and can be made again by whoever has the dataset."""


def write_table(numbers: Ints) -> str:
    """Have a file with these numbers.

    Args:
        numbers: int64[n].

    Returns:
        Its path.

    Raises:
        SourceError: It cannot be written.
    """
    data = np.ascontiguousarray(numbers, "<i8").tobytes()
    folder = cache_folder(os.environ, "orders")
    path = os.path.join(folder, _hash(data) + END)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if _whole(path, len(data)):
            return path
        part, name = tempfile.mkstemp(dir=folder, suffix=".part")
        try:
            with open(part, "wb") as file:
                file.write(data)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            raise
    except OSError as error:
        raise SourceError(
            f"{folder}: cannot be written ({error.strerror or error}): the list of a stream's "
            "samples is kept there; set XDG_CACHE_HOME to a folder that can be written"
        ) from None
    return path


@lru_cache(maxsize=64)
def open_table(path: str) -> Ints:
    """The numbers of a file, mapped: they take no memory of this process's own.

    Args:
        path: What `write_table` returned.

    Returns:
        int64[n], not writable.

    Raises:
        TableError: It is gone, or is not as it was written.
    """
    try:
        numbers = np.memmap(path, "<i8", "r")
    except (OSError, ValueError) as error:
        raise TableError(
            f"{path}: cannot be read ({error}): it was made when the stream was opened; start the "
            "daemon again"
        ) from None
    if _hash(numbers.data) != os.path.basename(path).removesuffix(END):
        raise TableError(
            f"{path}: is damaged: remove it and start the daemon again, which writes a new one"
        )
    return np.asarray(numbers).view(np.int64)


def _whole(path: str, size: int) -> bool:
    try:
        return (
            os.stat(path).st_size == size and _hash_of(path) == os.path.basename(path)[: -len(END)]
        )
    except FileNotFoundError:
        return False


def _hash_of(path: str) -> str:
    with open(path, "rb") as file:
        return _hash(file.read())


def _hash(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
