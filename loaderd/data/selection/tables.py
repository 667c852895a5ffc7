"""Tables of an order, one number a sample, in files that all processes of this user map.

A file is named by the hash of what it holds, so it is never out of date, and whoever opens it sees
whether it is whole.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import tempfile
from functools import cache

import numpy as np
from numpy.typing import NDArray

from loaderd.data.errors import SourceError
from loaderd.system.cache_folder import cache_folder, mark_used, remove_unused
from loaderd_wire import paths

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
    name = _hash(data) + END
    folder = cache_folder(os.environ, "orders")
    try:
        return _written(folder, name, data)
    except OSError as error:
        why = f"{folder}: cannot be written ({error.strerror or error})"
    other = os.path.join(paths.run_folder(os.environ, os.getuid()), "orders")
    try:
        return _written(other, name, data)
    except OSError:
        raise SourceError(
            f"{why}, nor can {other}: the list of a stream's samples is kept there; set "
            "XDG_CACHE_HOME to a folder that can be written"
        ) from None


def _written(folder: str, name: str, data: bytes) -> str:
    """The path of the file, which is there whole afterwards. Raises OSError."""
    path = os.path.join(folder, name)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if os.stat(folder).st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "is another user's")
    if _whole(path, len(data)):
        mark_used(path)
        return path
    remove_unused(folder)
    descriptor, temporary = tempfile.mkstemp(dir=folder, suffix=".part")
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    return path


def open_table(path: str) -> Ints:
    """The numbers of a file, mapped: they take no memory of this process's own.

    It stays mapped for as long as the process lives, also where the file is removed. One that was
    cut off meanwhile is found out here, before it is read: to read beyond its end is SIGBUS.

    Args:
        path: What `write_table` returned.

    Returns:
        int64[n], not writable.

    Raises:
        TableError: It is gone, or is not as it was written.
    """
    mapped, numbers = _mapped(path)
    if mapped.size() != len(mapped):
        raise TableError(
            f"{path}: its length has changed while it was in use; start the daemon again"
        )
    return numbers


@cache
def _mapped(path: str) -> tuple[mmap.mmap, Ints]:
    try:
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        numbers = np.frombuffer(mapped, "<i8").astype(np.int64, copy=False)
    except (OSError, ValueError) as error:
        raise TableError(
            f"{path}: cannot be read ({error}): it was made when the stream was opened; start the "
            "daemon again"
        ) from None
    if _hash(mapped) != os.path.basename(path).removesuffix(END):
        raise TableError(
            f"{path}: is damaged: remove it and start the daemon again, which writes a new one"
        )
    return mapped, numbers


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


def _hash(data: bytes | mmap.mmap) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
