"""A copy of a database file on a local disk, made once, compared, continued after a kill.

The file is read in pieces. What has been written is on the disk before its hash goes into the file
of sums, so whoever finds both after a kill goes on behind the last one. In the end the copy is read
from the disk and each piece compared with the hash of what was read. So it is again where the
system says that the copy has changed since, or where that was long ago. A copy that is damaged
becomes a part again, and its wrong pieces are copied from the database.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from loaderd.data.errors import NO_ROOM, SourceError, reading
from loaderd.data.lmdb.file_facts import FileFacts, open_file, read_facts
from loaderd.data.staging.folder import COPY, PART, SUMS, StageFolder
from loaderd.data.staging.own_files import open_own, take_lock
from loaderd.system.file_locks import lies_at

PIECE = 32 << 20  # bytes with a hash of their own
READ = 4 << 20  # bytes at once: between two of them it is told how far the copy is
SUM = 16
STEM = 40  # characters of the database's name
TRIES = 2  # to write a piece so that the disk returns it

Tick = Callable[[str, int, int], object]  # what is done ("staging", "checking"), bytes of it, of
Note = Callable[[str], object]


def copy_of(path: str, folder: StageFolder, tick: Tick, note: Note) -> str:
    """The copy of a database, made now if there is none, and made good if it is damaged.

    Args:
        path: Path of the database.
        folder: Where copies lie.
        tick: Told how far it is.
        note: Told of a copy that was damaged.

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
            copy = made.whole()
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise SourceError(
                f"{folder.path}: cannot copy {file}: {where}{error.strerror}; if the folder was "
                "removed meanwhile, start again, else set another [daemon] stage"
            ) from None
    finally:
        os.close(fd)
    if made.damaged:
        note(
            f"{copy}, the staged copy of {file}, was damaged; {made.rewritten} of {made.pieces} "
            "pieces were copied again. If no program wrote to it, look at the disk"
        )
    return copy


@dataclass(frozen=True, slots=True)
class Compared:
    """A copy, and whether it is as it was written."""

    copy: str
    right: bool


def compared(path: str, folder: StageFolder, tick: Tick) -> Compared | None:
    """Compare the copy of a database with the hashes of its pieces, and change nothing in it.

    A daemon that starts compares it, too, if it was not right.

    Args:
        path: Path of the database.
        folder: Where copies lie.
        tick: Told how far it is.

    Returns:
        What was found; None if there is no copy.

    Raises:
        SourceError: The database or the copy cannot be read.
    """
    fd, file = open_file(path)
    try:
        facts = read_facts(fd, file)
        copy = folder.file(name_of(file, facts), COPY)
        if not os.path.lexists(copy):
            return None
        with reading(copy):
            return Compared(copy, _CopyMaker(file, fd, facts, folder, tick).compare(copy))
    finally:
        os.close(fd)


class _CopyMaker:
    """The copy of an open file.

    Attributes:
        damaged: There was a copy, and it was not right.
        rewritten: Pieces that were copied again because of that.
    """

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
        self.damaged = False
        self.rewritten = 0

    def whole(self) -> str:
        """The path, once it is whole."""
        copy = self._folder.file(self._name, COPY)
        part = self._folder.file(self._name, PART)
        self._folder.use(self._name, self._locked)
        while not (self._folder.is_trusted(self._name) and self._is_same(copy)):
            with contextlib.ExitStack() as stack:
                path = self._take(copy, part, stack)
                if not path:
                    continue
                self._sums = stack.enter_context(_open(self._folder.file(self._name, SUMS)))
                if path == part or not self._is_right():
                    if os.fstat(self._part).st_nlink > 1:  # what has another name is not ours
                        os.unlink(path)
                        continue
                    self._make(path)
                self._folder.trust(self._name)
                break
        return copy

    def _take(self, copy: str, part: str, stack: contextlib.ExitStack) -> str:
        """Open the copy, or else the part, and lock it.

        Returns:
            Its path; "" if who had it before has renamed or removed it.
        """
        there = os.path.lexists(copy)
        path = copy if there else part
        try:
            self._part = stack.enter_context(_open(path, make=not there))
        except FileNotFoundError:
            return ""
        take_lock(self._part, self._others)
        if not lies_at(self._part, path):
            return ""
        if not there and os.path.lexists(copy):  # it has become whole meanwhile
            os.unlink(part)
            return ""
        return path

    def compare(self, copy: str) -> bool:
        """Whether the copy is right. If not, nobody trusts it any longer."""
        sums = self._folder.file(self._name, SUMS)
        with _open(copy, make=False) as self._part, _open(sums) as self._sums:
            right = self._is_right()
        if not right:
            self._folder.distrust(self._name)
        return right

    def _is_same(self, copy: str) -> bool:
        """Whether the copy says of itself what the database does."""
        with contextlib.suppress(SourceError, FileNotFoundError), _open(copy, make=False) as fd:
            found = replace(read_facts(fd, copy), device=self._facts.device)
            return replace(found, inode=self._facts.inode).content == self._facts.content
        return False

    def _others(self, who: str) -> None:
        """Another process makes it or looks at it: tell how far that is."""
        done, what = self._folder.told(self._name)
        self._tick(f"waiting for {who}: {what or 'staging'}", min(done, self._used), self._used)

    def _locked(self, who: str) -> None:
        """Another process holds the folder, which it does for moments."""
        self._tick(f"waiting for {who}, which holds the stage folder:", 0, self._used)

    def _does(self, what: str, done: int) -> None:
        self._folder.tell(self._name, what, done)
        self._tick(what, done, self._used)

    def _is_right(self) -> bool:
        """Whether the copy that is open has the size and the bytes that it was written with."""
        sized = os.fstat(self._part).st_size == self._facts.size
        return sized and all(map(self._is_right_piece, range(self.pieces)))

    def _make(self, path: str) -> None:
        """Make the copy of the part, or of a copy that is damaged."""
        copy, part = self._folder.file(self._name, COPY), self._folder.file(self._name, PART)
        self.damaged = path == copy
        os.rename(path, part)
        self._folder.reserve(self._part, self._name, self._used, self._locked)
        try:
            done = os.fstat(self._sums).st_size // SUM
            for number in range(done, self.pieces):
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
        os.ftruncate(self._part, self._facts.size)
        os.fsync(self._part)
        self._unchanged()
        os.rename(part, copy)

    @property
    def pieces(self) -> int:
        """How many pieces a copy has."""
        return -(-self._used // PIECE)

    def _span(self, number: int) -> tuple[int, int]:
        begin = number * PIECE
        return begin, min(PIECE, self._used - begin)

    def _write(self, number: int) -> None:
        """Copy a piece, and note its hash once it is on the disk."""
        begin, size = self._span(number)
        digest = hashlib.blake2b(digest_size=SUM)
        self.rewritten += self.damaged
        for at in range(begin, begin + size, READ):
            self._does("staging", at)
            with reading(self._file):
                data = _read(self._source, at, min(READ, begin + size - at))
            if len(data) < min(READ, begin + size - at):
                self._folder.forget(self._name)
                raise SourceError(f"{self._file}: was cut short while it was copied; start again")
            digest.update(data)
            written = 0
            while written < len(data):
                written += os.pwrite(self._part, data[written:], at + written)
        os.fdatasync(self._part)
        os.pwrite(self._sums, digest.digest(), number * SUM)

    def _check(self) -> None:
        """Compare what the disk has with what was read, piece by piece."""
        for number in range(self.pieces):
            for _ in range(TRIES):
                if self._is_right_piece(number):
                    break
                self._write(number)
            else:
                raise SourceError(
                    f"{self._folder.file(self._name, PART)}: the disk returns other bytes than "
                    "were written; set [daemon] stage to another disk"
                )

    def _is_right_piece(self, number: int) -> bool:
        begin, size = self._span(number)
        digest = hashlib.blake2b(digest_size=SUM)
        # from the disk, not from what the kernel remembers of the write
        os.posix_fadvise(self._part, begin, size, os.POSIX_FADV_DONTNEED)
        for at in range(begin, begin + size, READ):
            self._does("checking the staged copy,", at)
            digest.update(_read(self._part, at, min(READ, begin + size - at)))
        return digest.digest() == os.pread(self._sums, SUM, number * SUM)

    def _unchanged(self) -> None:
        """Raise SourceError if the database is not what it was when its copy was begun."""
        with contextlib.suppress(OSError):  # a file of the network that was replaced: ESTALE
            if read_facts(self._source, self._file) == self._facts:
                return
        self._folder.forget(self._name)
        raise SourceError(f"{self._file}: was written to while it was copied; start again")


@contextlib.contextmanager
def _open(path: str, *, make: bool = True) -> Iterator[int]:
    fd = open_own(path, make=make)
    try:
        yield fd
    finally:
        os.close(fd)


def _read(fd: int, at: int, size: int) -> bytes:
    """So many bytes from there on; fewer at the end of the file."""
    data = b""
    while len(data) < size and (more := os.pread(fd, size - len(data), at + len(data))):
        data += more
    return data


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
