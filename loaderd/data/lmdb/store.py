"""LMDB files, read-only: the only file that imports lmdb for reading (writer.py writes).

A database is constant while it is open: `lock=False` has no claim to its snapshot, so whoever reads
looks around its work whether it still is what it was (`data/lmdb/watch.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Generator, Iterator, Sequence
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
    """One database.

    Made by `open_store`. Its values are views into the file, valid until `close()`. If others may
    take its place (`kept` is False), they are copies, and the file is opened when it is read.

    Attributes:
        path: As it was asked for.
        file: The file that holds the pages.
        facts: The file as it was when this was made.
        network: It lies on a network filesystem.
        kept: It stays open until `close()`.
        on_use: Told when one that is not kept has been opened, or is used.
        on_last_close: Told when nobody uses it any more.
    """

    def __init__(self, path: str, fd: int, file: str) -> None:
        """Open it. `fd` is the file; it is this object's from now on, unless this raises."""
        self.path = path
        self.file = file
        self.pid = os.getpid()
        self.users = 0
        self.kept = True
        self.on_use: Callable[[Store], object] = lambda store: None
        self.on_last_close = self.on_use
        self.facts = read_facts(fd, file)
        self.network = on_network(file)
        self._readers = 0  # passes over its keys that are going on
        self._named: dict[bytes, Any] = {}  # the library has no public name for their type
        self._pages: Pages | None = None
        self._env: Any = None
        self._txn: Any = None
        self._fd = -1
        self._open(fd)

    def _open(self, fd: int) -> None:
        try:
            env = lmdb.open(
                os.fsencode(self.file),
                subdir=False,
                readonly=True,
                lock=False,
                create=False,
                max_dbs=NAMED_DBS,
                readahead=self.network,
                max_readers=1,
            )
            # The library opens the path once more: that must have been the same file.
            stat = os.stat(self.file)
        except (lmdb.Error, OSError) as error:
            raise SourceError(f"{self.file}: LMDB cannot open it: {error}") from None
        if (stat.st_dev, stat.st_ino) != (self.facts.device, self.facts.inode):
            env.close()
            raise SourceError(
                f"{self.file}: was replaced by another file while it was opened; try again"
            )
        self._env, self._txn, self._fd = env, env.begin(buffers=True), fd

    @property
    def is_open(self) -> bool:
        """Whether it takes descriptors."""
        return self._fd >= 0

    @property
    def busy(self) -> bool:
        """Whether its pages are being gone through."""
        return self._readers > 0

    def _ready(self) -> None:
        """Have it open, in this process.

        Raises SourceError if it is not what it was.
        """
        if self.pid != os.getpid():
            raise SourceError(
                f"{self.file}: was opened in process {self.pid}, used in {os.getpid()}"
            )
        if self.kept:
            return
        if self._fd < 0:
            fd, _ = open_file(self.path)
            try:
                now = read_facts(fd, self.file)
                if now.content != self.facts.content:
                    raise SourceError(f"{self.file}: is not the file that it was; start again")
                self._open(fd)
            except BaseException:
                os.close(fd)
                raise
        self.on_use(self)

    @property
    def entries(self) -> int:
        """Keys of the root database, metadata and named databases included."""
        return self.facts.entries

    def get(self, key: bytes, db: str | bytes | None = None) -> memoryview | None:
        """The value of `key`, read-only, or None.

        Raises SourceError for a damaged page, a named database that isn't there, or a key that is
        longer than keys can be.
        """
        self._ready()
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
        return value if self.kept or value is None else memoryview(bytes(value))

    def get_many(self, keys: list[bytes]) -> list[memoryview | None]:
        """The value of each key as `get` gives it, for less than half the time.

        Raises SourceError.
        """
        self._ready()
        try:
            found = list(map(self._txn.get, keys))  # three times as fast as a cursor's getmulti
        except lmdb.Error as error:
            raise self._failed(f"cannot be read: {error}") from None
        if self.kept:
            return found
        return [None if value is None else memoryview(bytes(value)) for value in found]

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
        found = library() if self.kept else None
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
            self._ready()
            self._sub(key)
        except SourceError:
            return False
        return True

    def items(
        self, *, backward: bool = False, start: bytes | None = None
    ) -> Generator[tuple[bytes, memoryview], None, None]:
        """(key, value) of the root in byte order, from `start` on, or from the end backward.

        Raises SourceError for a damaged page.
        """
        self._ready()
        self._readers += 1
        try:
            # one of its own: others may fail meanwhile
            with self._env.begin(buffers=True) as txn, txn.cursor() as cursor:
                if start is not None and not cursor.set_range(start):
                    return
                for key, value in cursor.iterprev() if backward else cursor.iternext():
                    yield bytes(key), value if self.kept else memoryview(bytes(value))
        except lmdb.Error as error:
            raise SourceError(f"{self.file}: cannot be read through: {error}") from None
        finally:
            self._readers -= 1

    def keys(self) -> Iterator[bytes]:
        """The keys of the root in byte order, for half the time of `items`.

        Raises SourceError for a damaged page.
        """
        self._ready()
        self._readers += 1
        try:
            with self._env.begin() as txn, txn.cursor() as cursor:
                yield from cursor.iternext(keys=True, values=False)
        except lmdb.Error as error:
            raise SourceError(f"{self.file}: cannot be read through: {error}") from None
        finally:
            self._readers -= 1

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
            if self._fd >= 0:
                return read_facts(self._fd, self.file)
            fd, _ = open_file(self.path)
            try:
                return read_facts(fd, self.file)
            finally:
                os.close(fd)
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
            self.on_last_close(self)
            self.unmap()

    def unmap(self) -> None:
        """Let the file go, whoever still uses it; one that is not kept is opened again if need be.

        In a forked child this touches only the child's own copies.
        """
        if self._fd < 0:
            return
        self._named.clear()
        pages, self._pages = self._pages, None
        if pages is not None:
            pages.close()
        self._txn.abort()
        self._env.close()
        os.close(self._fd)
        self._fd = -1


def show_key(key: bytes) -> str:
    """A key for people: as text if it is printable UTF-8, else as hex."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return key.hex()
    return text if text.isprintable() else key.hex()
