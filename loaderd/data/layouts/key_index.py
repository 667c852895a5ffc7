"""What a pass over a database's keys found, in a file that all processes map.

The file lies beside the database, or in the user's cache folder where that place is read-only. It
is of one state of one database: of any other it is made anew, as it is if a byte of it is wrong.

    header     HEADER bytes: MAGIC, and a JSON table of what the file is of
    keys       blocks of BLOCK keys: where each begins and ends in it, u32, and then their bytes;
               behind all blocks where each begins in the file, u64
    numbers    `Runs`: the first number of each, then how many lie before it, i64
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from tempfile import NamedTemporaryFile
from typing import IO, Any

import numpy as np

from loaderd.data.layouts.keys import KeyFormat, Keys, ListedKeys, Runs
from loaderd.data.lmdb.store import Store
from loaderd.system.cache_folder import cache_folder, mark_used, remove_unused
from loaderd.system.file_locks import lies_at
from loaderd.system.progress import ProgressLine

MAGIC = b"loaderd key index 1\n"
HEADER = 1024
BLOCK = 4096  # keys
FEW = 10_000  # entries of a database up to which a pass costs less than a file
SUFFIX = ".loaderd-keys"
PART = ".part"
ENDS = struct.Struct("=II")
AT = struct.Struct("=Q")


class IndexedKeys:
    """Keys in an index file."""

    def __init__(self, body: memoryview, count: int) -> None:
        self._body = body
        self._count = count
        self._starts = len(body) - AT.size * -(-count // BLOCK)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> bytes:
        block, place = divmod(index, BLOCK)
        (at,) = AT.unpack_from(self._body, self._starts + AT.size * block)
        begin, end = ENDS.unpack_from(self._body, at + 4 * place)
        texts = at + 4 * (1 + min(BLOCK, self._count - block * BLOCK))
        return bytes(self._body[texts + begin : texts + end])


class KeyIndexes:
    """The index files of one open database.

    Attributes:
        notes: What should be told of them.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.notes: list[str] = []

    def listed(self, keys: Callable[[], Iterable[bytes]], what: str) -> Keys:
        """Keys in their order.

        Args:
            keys: Finds them.
            what: Says which these are, and in which order.
        """
        if self._store.entries <= FEW:
            return ListedKeys(keys())
        count, body = self._found(f"keys: {what}", lambda: _blocks(keys()))
        return IndexedKeys(body, count)

    def runs(self, form: KeyFormat) -> Runs:
        """The numbers of all keys of a pattern."""
        if self._store.entries <= FEW:
            return _runs(form, self.scan())
        count, body = self._found(f"numbers: {form.text}", lambda: _pairs(_runs(form, self.scan())))
        firsts, before = np.frombuffer(body, np.int64).reshape(2, -1)
        return Runs(firsts, before, count)

    def scan(self) -> Iterator[bytes]:
        """All keys in byte order, with the progress on stderr."""
        with ProgressLine(f"keys of {self._store.file} read") as progress:
            for number, key in enumerate(self._store.keys()):
                if not number % BLOCK:
                    progress(number, self._store.entries)
                yield key

    def _found(
        self, what: str, make: Callable[[], Iterator[bytes | int]]
    ) -> tuple[int, memoryview]:
        """The number of keys and the body of the index file of this, made now if there is none.

        Args:
            what: Of what the file is.
            make: Gives the pieces of the body, and last of all the number of keys.
        """
        store = self._store
        facts = {name: value for name, value in asdict(store.facts).items() if name != "device"}
        wanted = {"of": what, "database": facts}
        name = hashlib.sha256(f"{os.path.realpath(store.file)}\n{what}".encode()).hexdigest()[:16]
        cache = cache_folder(os.environ, "keys")
        places = f"{store.file}-{name[:8]}{SUFFIX}", os.path.join(cache, name + SUFFIX)
        owners = {0, os.geteuid(), os.stat(store.file).st_uid}
        for path in places:
            found = _read(path, wanted, owners)
            if found is not None:
                if path == places[1]:
                    mark_used(path)
                return found
        with contextlib.suppress(OSError):
            os.makedirs(cache, mode=0o700, exist_ok=True)
        remove_unused(cache)
        for path in places:
            with contextlib.suppress(OSError), _part_of(path) as part:
                found = _fill(part.fileno(), wanted, make())
                if store.look() == store.facts:  # else what was read is of no certain state
                    os.fchmod(part.fileno(), os.stat(store.file).st_mode & 0o444 | 0o600)
                    os.replace(part.name, path)
                    self.notes.append(f"its {found[0]:,} keys were read, once; they are in {path}")
                return found
        memory = os.memfd_create("loaderd-keys", os.MFD_CLOEXEC)
        try:
            found = _fill(memory, wanted, make())
        finally:
            os.close(memory)
        self.notes.append(
            f"its {found[0]:,} keys are read by each worker for itself, since neither its folder "
            f"nor {cache} can be written to: set XDG_CACHE_HOME to a folder that can be"
        )
        return found


def _runs(form: KeyFormat, keys: Iterator[bytes]) -> Runs:
    """The numbers of the keys of this pattern."""
    found = [form.numbers(some) for some in iter(lambda: list(islice(keys, BLOCK)), [])]
    return Runs.of(np.concatenate(found) if found else np.zeros(0, np.int64))


def _pairs(runs: Runs) -> Iterator[bytes | int]:
    """The body of an index file of numbers."""
    yield runs.firsts.tobytes()
    yield runs.before.tobytes()
    yield runs.count


def _blocks(keys: Iterable[bytes]) -> Iterator[bytes | int]:
    """The body of an index file of keys."""
    rest, count, at, starts = iter(keys), 0, 0, bytearray()
    for block in iter(lambda: list(islice(rest, BLOCK)), []):
        ends = np.zeros(len(block) + 1, np.uint32)
        np.cumsum([len(key) for key in block], out=ends[1:])
        piece = ends.tobytes() + b"".join(block)
        starts += AT.pack(at)
        count, at = count + len(block), at + len(piece)
        yield piece
    yield bytes(starts)
    yield count


@contextlib.contextmanager
def _part_of(path: str) -> Iterator[IO[bytes]]:
    """A new file beside this one, locked, and gone afterwards unless it was renamed.

    Those that a killed process has left are removed.

    Raises:
        OSError: There can be none.
    """
    folder, name = os.path.split(path)
    for left in os.listdir(folder):
        if left.startswith(name) and left.endswith(PART):
            with (
                contextlib.suppress(OSError),
                open(os.path.join(folder, left), "rb", opener=_at_once) as file,
            ):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(file.name)
    with _locked(folder, name) as part:
        try:
            yield part
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part.name)


def _locked(folder: str, name: str) -> IO[bytes]:
    """A new file that begins with this name. Before it is locked, another process may remove it."""
    while True:
        part = NamedTemporaryFile("wb+", prefix=name, suffix=PART, dir=folder, delete=False)  # noqa: SIM115 - the caller closes it
        try:
            fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if lies_at(part.fileno(), part.name):
                return part
        except BlockingIOError:
            pass
        except OSError:
            os.unlink(part.name)
            raise
        part.close()


def _fill(fd: int, wanted: dict[str, Any], pieces: Iterator[bytes | int]) -> tuple[int, memoryview]:
    """Write an index file and map it.

    Raises:
        OSError: It cannot be written.
    """
    digest, at, count = _digest(), HEADER, 0
    for piece in pieces:
        if isinstance(piece, int):
            count = piece
            continue
        digest.update(piece)
        for begin in range(0, len(piece), 1 << 30):
            at += os.pwrite(fd, piece[begin : begin + (1 << 30)], at)
    digest.update(AT.pack(count))
    said = {**wanted, "count": count, "size": at, "digest": digest.hexdigest()}
    os.pwrite(fd, (MAGIC + json.dumps(said).encode()).ljust(HEADER), 0)
    return count, _mapped(fd)


def _read(path: str, wanted: dict[str, Any], owners: set[int]) -> tuple[int, memoryview] | None:
    """The number of keys and the body of an index file.

    None unless it is whole, of this, and written by somebody who could have written the database.
    """
    try:
        with open(path, "rb", opener=_at_once) as file:
            stat, head = os.fstat(file.fileno()), file.read(HEADER)
            said: Any = json.loads(head.removeprefix(MAGIC))
            told = isinstance(said, dict) and head.startswith(MAGIC)
            if not told or stat.st_uid not in owners or said.get("size") != stat.st_size:
                return None
            if {name: said.get(name) for name in wanted} != wanted:
                return None
            count = said.get("count")
            if type(count) is not int:
                return None
            body = _mapped(file.fileno())
            digest = _digest(body)
            digest.update(AT.pack(count))
    except (OSError, ValueError, RecursionError, struct.error):
        return None
    return (count, body) if digest.hexdigest() == said.get("digest") else None


def _at_once(path: str, flags: int) -> int:
    """Open a file; a pipe that lies in its place is not waited for."""
    return os.open(path, flags | os.O_NONBLOCK)


def _digest(data: bytes | memoryview = b"") -> hashlib.blake2b:
    """Of the body, and then of the number of keys."""
    return hashlib.blake2b(data, digest_size=16)


def _mapped(fd: int) -> memoryview:
    return memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ))[HEADER:]
