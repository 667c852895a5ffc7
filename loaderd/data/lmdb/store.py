"""LMDB files, read-only: the only file that imports lmdb for reading (writer.py writes).

One handle a process and path.

A database is constant while it is open: `lock=False` has no claim to its snapshot, so whoever reads
looks around its work whether it still is what it was (`data/lmdb/watch.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import lmdb

from loaderd.data.errors import SourceError
from loaderd.data.lmdb.file_facts import FileFacts, on_network, open_file, read_facts
from loaderd.data.lmdb.page_reader import Pages, library

NAMED_DBS = 64
# of one value go into a hash over values, in so many pieces
DRAWN_BYTES, DRAWN_PIECES = 16 << 10, 4
MAX_KEY = 511  # bytes, in a library built as usual


class Store:
    """One open database.

    Made by `open_store`; values are views into the file, valid until `close()`.
    """

    def __init__(self, path: str, fd: int, file: str) -> None:
        self.path = path
        self.file = file
        self.pid = os.getpid()
        self.users = 0
        self._fd = fd
        self.facts = read_facts(fd, file)
        self.network = on_network(file)
        try:
            self._env = lmdb.open(
                os.fsencode(file),
                subdir=False,
                readonly=True,
                lock=False,
                create=False,
                max_dbs=NAMED_DBS,
                readahead=self.network,
                max_readers=1,
            )
            self._txn = self._env.begin(buffers=True)
            # The library opens the path once more: that must have been the same file.
            stat = os.stat(file)
        except (lmdb.Error, OSError) as error:
            raise SourceError(f"{file}: LMDB cannot open it: {error}") from None
        if (stat.st_dev, stat.st_ino) != (self.facts.device, self.facts.inode):
            self._env.close()
            raise SourceError(
                f"{file}: was replaced by another file while it was opened; try again"
            )
        self._named: dict[bytes, Any] = {}  # the library has no public name for their type
        self._pages: Pages | None = None

    @property
    def entries(self) -> int:
        """Keys of the root database, metadata and named databases included."""
        return self.facts.entries

    def get(self, key: bytes, db: str | bytes | None = None) -> memoryview | None:
        """The value of `key` as a read-only view, or None.

        Raises SourceError for a damaged page, a named database that isn't there, or a key that is
        longer than keys can be.
        """
        if self.pid != os.getpid():
            raise SourceError(
                f"{self.file}: was opened in process {self.pid}, used in {os.getpid()}"
            )
        try:
            value = self._txn.get(key) if db is None else self._txn.get(key, db=self._sub(db))
        except lmdb.BadValsizeError:
            return None
        except lmdb.Error as error:
            raise self._failed(f"cannot read key {show_key(key)}: {error}") from None
        if value is None and len(key) > MAX_KEY:
            raise SourceError(
                f"{self.file}: a key of {len(key):,} bytes: keys of an LMDB have at most "
                f"{MAX_KEY}; {show_key(key[:32])!r}..."
            )
        return value

    def get_many(self, keys: list[bytes]) -> list[memoryview | None]:
        """The value of each key as `get` gives it, for less than half the time.

        Raises SourceError.
        """
        if self.pid != os.getpid():
            raise SourceError(
                f"{self.file}: was opened in process {self.pid}, used in {os.getpid()}"
            )
        try:
            return list(map(self._txn.get, keys))  # three times as fast as a cursor's getmulti
        except lmdb.Error as error:
            raise self._failed(f"cannot be read: {error}") from None

    def _failed(self, why: str) -> SourceError:
        """What is to be raised after an error of the library.

        It reads nothing more in a transaction that met a damaged page, so there is a new one.
        """
        self._txn.abort()
        self._named.clear()  # they were the transaction's
        self._txn = self._env.begin(buffers=True)
        return SourceError(f"{self.file}: {why}")

    def sized(self, key: bytes, db: bytes | None = None) -> tuple[int, memoryview | None]:
        """A value and its size.

        Returns:
            (size, value). The size of a value that isn't there is -1, of one on a damaged page -2.
        """
        try:
            value = self.get(key, db)
        except SourceError:
            return -2, None
        return (-1, None) if value is None else (len(value), value)

    def draw(self, keys: Sequence[bytes]) -> str:
        """A hash over these values: the size of each and up to DRAWN_BYTES of it.

        Those are from both ends and between. A damaged page is part of what there is: whoever wants
        a sample of it is told.
        """
        digest = hashlib.blake2b(digest_size=16)
        piece = DRAWN_BYTES // DRAWN_PIECES
        for key in keys:
            size, value = self.sized(key)
            digest.update(b"%d;" % size)
            if value is None or size <= DRAWN_BYTES:
                digest.update(value or b"")
                continue
            for number in range(DRAWN_PIECES):
                begin = number * (size - piece) // (DRAWN_PIECES - 1)
                digest.update(value[begin : begin + piece])
        return digest.hexdigest()

    def pages(self, row_bytes: int) -> Pages | None:
        """What copies many values of about that size at once, valid until `close()`.

        None where it is not to be had.
        """
        found = library()
        if self._pages is None and found is not None:
            with contextlib.suppress(OSError, ValueError):
                self._pages = Pages(
                    found, self._fd, self.facts.page, self.facts.pages, self.facts.root, row_bytes
                )
        return self._pages

    def _sub(self, name: str | bytes) -> Any:
        raw = name.encode() if isinstance(name, str) else name
        if raw not in self._named:
            try:
                self._named[raw] = self._env.open_db(raw, txn=self._txn, create=False)
            except lmdb.Error as error:
                raise SourceError(
                    f"{self.file}: has no named database {show_key(raw)}: {error}"
                ) from None
        return self._named[raw]

    def is_database(self, key: bytes, value: memoryview) -> bool:
        """True if the root's entry `key` is not a value but a named database."""
        if len(value) != 48:
            return False
        try:
            self._sub(key)
        except SourceError:
            return False
        return True

    def items(
        self, *, backward: bool = False, start: bytes | None = None
    ) -> Iterator[tuple[bytes, memoryview]]:
        """(key, value) of the root in byte order, from `start` on, or from the end backward.

        Raises SourceError for a damaged page.
        """
        try:
            # one of its own: others may fail meanwhile
            with self._env.begin(buffers=True) as txn, txn.cursor() as cursor:
                if start is not None and not cursor.set_range(start):
                    return
                for key, value in cursor.iterprev() if backward else cursor.iternext():
                    yield bytes(key), value
        except lmdb.Error as error:
            raise SourceError(f"{self.file}: cannot be read through: {error}") from None

    def keys(self) -> Iterator[bytes]:
        """The keys of the root in byte order, for half the time of `items`.

        Raises SourceError for a damaged page.
        """
        try:
            with self._env.begin() as txn, txn.cursor() as cursor:
                yield from cursor.iternext(keys=True, values=False)
        except lmdb.Error as error:
            raise SourceError(f"{self.file}: cannot be read through: {error}") from None

    def look(self) -> FileFacts:
        """What is at the path now, and in the file that was opened.

        A few microseconds. Raises SourceError, saying how else it is.
        """
        opened = self.facts
        try:
            stat = os.stat(self.file)
            if (stat.st_dev, stat.st_ino) != (opened.device, opened.inode):
                raise SourceError(
                    f"{self.file}: was replaced by another file (inode {opened.inode} -> "
                    f"{stat.st_ino})"
                )
            return read_facts(self._fd, self.file)
        except OSError as error:
            raise SourceError(
                f"{self.file}: no longer exists ({error.strerror}); it had inode {opened.inode}"
            ) from None

    def close(self) -> None:
        """Give up one use; the last one unmaps the file.

        Views from `get` must not be touched after that.
        """
        self.users -= 1
        if self.users == 0:
            self.unmap()

    def unmap(self) -> None:
        """Let the file go, whoever still uses it.

        In a forked child this touches only the child's own copies.
        """
        _open.pop((self.facts.device, self.facts.inode), None)
        self._named.clear()
        pages, self._pages = self._pages, None
        if pages is not None:
            pages.close()
        self._txn.abort()
        self._env.close()
        os.close(self._fd)


_open: dict[tuple[int, int], Store] = {}


def open_store(path: str) -> Store:
    """The database at `path`, opened once a process whoever asks; each must `close()` it.

    Raises SourceError, naming path and reason.
    """
    for inherited in [store for store in _open.values() if store.pid != os.getpid()]:
        # the library remembers over a fork that the path is open, and would refuse it
        inherited.unmap()
    fd, file = open_file(path)
    stat = os.fstat(fd)
    store = _open.get((stat.st_dev, stat.st_ino))
    if store is not None:
        os.close(fd)
    else:
        try:
            store = Store(path, fd, file)
        except BaseException:
            os.close(fd)
            raise
        _open[(stat.st_dev, stat.st_ino)] = store
    store.users += 1
    return store


def show_key(key: bytes) -> str:
    """A key for people: as text if it is printable UTF-8, else as hex."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return key.hex()
    return text if text.isprintable() else key.hex()
