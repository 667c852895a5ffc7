"""A copy of a database file on a local disk, made once, compared, continued after a kill.

The file is read in pieces. What has been written is on the disk before its hash goes into the file
of sums, so whoever finds both after a kill goes on behind the last one. In the end the copy is read
from the disk and each piece compared with the hash of what was read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable

from loaderd.data.errors import NO_ROOM, SourceError
from loaderd.data.lmdb.file_facts import FileFacts, open_file, read_facts
from loaderd.data.staging.folder import COPY, PART, SUMS, StageFolder, take_lock

PIECE = 32 << 20  # bytes with a hash of their own
READ = 4 << 20  # bytes at once: between two of them it is told how far the copy is
SUM = 16
STEM = 40  # characters of the database's name
TRIES = 2  # to write a piece so that the disk returns it

Tick = Callable[[str, int, int], object]  # what is done ("staging", "checking"), bytes of it, of


def copy_of(path: str, folder: StageFolder, tick: Tick) -> str:
    """The copy of a database, made now if there is none.

    Args:
        path: Path of the database.
        folder: Where copies lie.
        tick: Told how far it is.

    Returns:
        The path of the copy.

    Raises:
        SourceError: The database cannot be read, or the copy cannot be written.
    """
    fd, file = open_file(path)
    try:
        facts = read_facts(fd, file)
        made = _CopyMaker(file, fd, facts, folder, tick)
        try:
            return made.whole()
        except OSError as error:
            raise SourceError(f"{folder.path}: cannot copy {file}: {error.strerror}") from None
    finally:
        os.close(fd)


class _CopyMaker:
    """The copy of an open file."""

    def __init__(
        self, file: str, fd: int, facts: FileFacts, folder: StageFolder, tick: Tick
    ) -> None:
        self._file = file
        self._source = fd
        self._facts = facts
        self._folder = folder
        self._tick = tick
        self._name = name_of(file, facts)
        # what the file was enlarged to beyond its pages is a hole in the copy, too
        self._used = facts.page * facts.pages
        self._part = -1
        self._sums = -1

    def whole(self) -> str:
        """The path, once it is whole."""
        copy, part = self._folder.file(self._name, COPY), self._folder.file(self._name, PART)
        self._folder.use(self._name, lambda: self._tick("waiting to stage", 0, self._used))
        while not os.path.exists(copy):
            self._part = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                take_lock(self._part, self._others)
                # who had it before has renamed or removed it
                if os.path.exists(part) and os.path.samestat(os.fstat(self._part), os.stat(part)):
                    self._make(part, copy)
            finally:
                os.close(self._part)
        return copy

    def _others(self) -> None:
        """Another process makes it: tell how far that is."""
        try:
            done = os.stat(self._folder.file(self._name, SUMS)).st_size // SUM * PIECE
        except FileNotFoundError:
            done = 0
        self._tick("waiting for another process that is staging", min(done, self._used), self._used)

    def _make(self, part: str, copy: str) -> None:
        sums = self._folder.file(self._name, SUMS)
        self._folder.reserve(
            self._part, self._name, self._used, lambda: self._tick("staging", 0, self._used)
        )
        self._sums = os.open(sums, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            done = os.fstat(self._sums).st_size // SUM
            for number in range(done, self._pieces):
                self._write(number)
            self._check()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self._folder.forget(self._name)
            raise SourceError(
                f"{part}: no space left on the disk ({error.strerror}); free some, or set another "
                "[daemon] stage"
            ) from None
        finally:
            os.close(self._sums)
        os.ftruncate(self._part, self._facts.size)
        os.fsync(self._part)
        self._unchanged()
        os.rename(part, copy)
        os.unlink(sums)

    @property
    def _pieces(self) -> int:
        return -(-self._used // PIECE)

    def _span(self, number: int) -> tuple[int, int]:
        begin = number * PIECE
        return begin, min(PIECE, self._used - begin)

    def _write(self, number: int) -> None:
        """Copy a piece, and note its hash once it is on the disk."""
        begin, size = self._span(number)
        digest = hashlib.blake2b(digest_size=SUM)
        for at in range(begin, begin + size, READ):
            self._tick("staging", at, self._used)
            data = self._read(self._source, self._file, at, min(READ, begin + size - at))
            digest.update(data)
            written = 0
            while written < len(data):
                written += os.pwrite(self._part, data[written:], at + written)
        os.fdatasync(self._part)
        os.pwrite(self._sums, digest.digest(), number * SUM)

    def _check(self) -> None:
        """Compare what the disk has with what was read, piece by piece."""
        for number in range(self._pieces):
            for _ in range(TRIES):
                if self._is_right(number):
                    break
                self._write(number)
            else:
                raise SourceError(
                    f"{self._folder.file(self._name, PART)}: the disk returns other bytes than "
                    "were written; set [daemon] stage to another disk"
                )

    def _is_right(self, number: int) -> bool:
        begin, size = self._span(number)
        digest = hashlib.blake2b(digest_size=SUM)
        # from the disk, not from what the kernel remembers of the write
        os.posix_fadvise(self._part, begin, size, os.POSIX_FADV_DONTNEED)
        for at in range(begin, begin + size, READ):
            self._tick("checking the staged copy,", at, self._used)
            name = self._folder.file(self._name, PART)
            digest.update(self._read(self._part, name, at, min(READ, begin + size - at)))
        return digest.digest() == os.pread(self._sums, SUM, number * SUM)

    def _read(self, fd: int, file: str, at: int, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = os.pread(fd, size - len(data), at + len(data))
            if not more:
                raise SourceError(f"{file}: was cut short while it was copied; start again")
            data += more
        return data

    def _unchanged(self) -> None:
        """Raise SourceError if the database is not what it was when its copy was begun."""
        with contextlib.suppress(OSError):  # a file of the network that was replaced: ESTALE
            if read_facts(self._source, self._file) == self._facts:
                return
        self._folder.forget(self._name)
        raise SourceError(f"{self._file}: was written to while it was copied; start again")


def name_of(file: str, facts: FileFacts) -> str:
    """The name of a copy: of one state of one file.

    Args:
        file: Path of the file with the pages.
        facts: Its state.
    """
    path = os.path.realpath(file)
    folder, base = os.path.split(path)
    stem = os.path.splitext(os.path.basename(folder) if base == "data.mdb" else base)[0]
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", stem)[:STEM] or "copy"
    state = (path, facts.size, facts.mtime_ns, facts.meta, facts.pages, PIECE)
    return f"{stem}-{hashlib.sha256(repr(state).encode()).hexdigest()[:16]}"
