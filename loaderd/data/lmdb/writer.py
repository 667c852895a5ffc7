"""An LMDB file being written: store.py, beside it, only reads."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

import lmdb

from loaderd.data.errors import NO_ROOM, SourceError, WriteFault

MAP_STEP = 64 << 20


def _is_full(file: str) -> bool:
    """True if the file cannot grow by another MAP_STEP.

    LMDB calls a write that the disk had no room for an input/output error.
    """
    try:
        with open(file, "r+b") as handle:
            size = os.fstat(handle.fileno()).st_size
            try:
                os.posix_fallocate(handle.fileno(), size, MAP_STEP)
            finally:
                os.ftruncate(handle.fileno(), size)
    except OSError as error:
        return error.errno in NO_ROOM
    return False


class DamagedPart(SourceError):
    """The unfinished database has pages that no writer has left so."""


class Writer:
    """A database file being written by this process alone (the caller sees to that).

    Its map grows as needed.
    """

    def __init__(self, file: str) -> None:
        """Opens or makes `file`. Raises WriteFault."""
        self.file = file
        size = max(MAP_STEP, 2 * os.path.getsize(file)) if os.path.exists(file) else MAP_STEP
        try:
            self._env = lmdb.open(
                os.fsencode(file), subdir=False, lock=False, map_size=size, max_readers=1
            )
        except (lmdb.Error, OSError) as error:
            raise self._fault(error) from None

    def get(self, key: bytes) -> bytes | None:
        """A copy of the value as of the last `put`. Raises DamagedPart, WriteFault."""
        try:
            with self._env.begin() as txn:
                return txn.get(key)
        except lmdb.Error as error:
            raise self._fault(error) from None

    def put(
        self,
        first: Iterable[tuple[bytes, bytes]],
        then: Iterable[tuple[bytes, bytes]],
        without: bytes | None = None,
    ) -> None:
        """Write one transaction, on disk when this returns.

        Both `first` and `then` may be gone through twice.

        Args:
            first: Records in any order.
            then: Records behind all keys there are.
            without: Keys to be deleted.

        Raises:
            WriteFault: Nothing of it is written.
            DamagedPart: Likewise.
        """
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    for key, value in first:
                        txn.put(key, value)
                    for key, value in then:
                        txn.put(key, value, append=True)
                    if without is not None:
                        txn.delete(without)
                return
            except lmdb.MapFullError:
                self._env.set_mapsize(self._env.info()["map_size"] * 2)
            except (lmdb.Error, OSError) as error:
                raise self._fault(error) from None

    def _fault(self, error: Exception) -> SourceError:
        text = str(error)
        if isinstance(
            error, (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.PanicError, lmdb.InvalidError)
        ):
            return DamagedPart(f"{self.file}: is damaged ({text}): remove it and run it again")
        full = any(os.strerror(code) in text for code in NO_ROOM) or (
            os.strerror(errno.EIO) in text and _is_full(self.file)
        )
        return WriteFault(self.file, text, full)

    def close(self) -> None:
        """Close the file; what was put is on disk already."""
        self._env.close()
