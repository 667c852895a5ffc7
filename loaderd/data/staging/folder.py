"""The folder of copies on a local disk, which all daemons of a user on a host share.

NAME.mdb      a whole copy, compared with what was read; written to only if it is damaged
NAME.part     one that is being made, locked by who makes it (`copying.py`)
NAME.sums     a hash of each piece that has been written
NAME.checked  what the system said of the copy when it was compared last, and when that was
NAME.used     its time says when the copy was used last; what is being done with it
USER.users    the copies that a daemon uses, a name a line, locked by the daemon while it lives
lock          held for moments by who changes what is there
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TextIO

from loaderd.config.staging import StageConfig
from loaderd.data.errors import SourceError
from loaderd.data.staging.own_files import open_own, take_lock
from loaderd.system.cache_folder import age_s

COPY, PART, SUMS, CHECKED, USED, USERS = ".mdb", ".part", ".sums", ".checked", ".used", ".users"
UNFINISHED = (PART, SUMS, CHECKED, USED)  # what goes with a copy that cannot be made
CHECKED_S = 30 * 86_400  # a copy that was compared longer ago is compared again
LIST_S = 86_400  # an unlocked list of users that is older is of a daemon that has gone
FLOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, pid


class StageFolder:
    """The copies in the folder of a config.

    Attributes:
        path: The folder of this user in it.
    """

    def __init__(self, config: StageConfig) -> None:
        """Make the folder of this user, if there is none.

        Raises:
            SourceError: It cannot be used; the text says why.
        """
        self._config = config
        uid = os.getuid()
        self.path = os.path.join(config.folder, f"loaderd-{uid}")
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.path, 0o700)
            found = os.lstat(self.path)
        except OSError as error:
            raise SourceError(
                f"stage = {config.folder!r}: {self.path}: {error.strerror}; make the folder, or "
                "set another [daemon] stage"
            ) from None
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o022:
            raise SourceError(
                f"stage = {config.folder!r}: {self.path} is not a folder that only this user can "
                "write to; remove it, or set another [daemon] stage"
            )

    def file(self, name: str, end: str) -> str:
        """Path of a file of the copy `name`."""
        return os.path.join(self.path, name + end)

    def use(self, name: str, tick: Callable[[str], object]) -> None:
        """Say that this daemon uses a copy: nobody removes it while the daemon lives.

        Args:
            name: Of the copy, which need not be there yet.
            tick: Told who holds the folder while others do.
        """
        with self._locked(tick), self._own(name, USED) as used:
            os.utime(used.fileno())
            with self._own(self._config.user, USERS) as file:
                if name not in file.read().split():
                    file.write(f"{name}\n")

    def is_trusted(self, name: str) -> bool:
        """Whether a copy is what it was when it was compared, which was not long ago."""
        try:
            found = os.lstat(self.file(name, COPY))
        except FileNotFoundError:
            return False
        with self._own(name, CHECKED) as file:
            known, since_s = file.read(), age_s(os.fstat(file.fileno()).st_mtime)
        return stat.S_ISREG(found.st_mode) and known == _state(found) and since_s < CHECKED_S

    def trust(self, name: str) -> None:
        """Note that a copy has just been compared, and is right."""
        with self._own(name, CHECKED) as file:
            file.truncate()
            file.write(_state(os.lstat(self.file(name, COPY))))

    def distrust(self, name: str) -> None:
        """Note that a copy is not right."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.file(name, CHECKED))

    def tell(self, name: str, what: str, done: int) -> None:
        """Let other processes know what is being done with a copy, and how many bytes are done."""
        with self._own(name, USED) as file:
            file.truncate()
            file.write(f"{done} {what}")

    def told(self, name: str) -> tuple[int, str]:
        """What has been told last."""
        with self._own(name, USED) as file:
            done, _, what = file.read().partition(" ")
        return (int(done), what) if done.isdecimal() else (0, "")

    def reserve(self, fd: int, name: str, need: int, tick: Callable[[str], object]) -> None:
        """Take the space of a copy, for which unused copies may have to go.

        Args:
            fd: The file that it is written to.
            name: Of the copy.
            need: Bytes.
            tick: Told who holds the folder while others do.

        Raises:
            SourceError: There is not enough space; the text has the numbers.
        """
        with self._locked(tick):
            unused = self._unused()
            if self._config.keep_s:
                while unused and age_s(unused[0].used_s) > self._config.keep_s:
                    self._remove(unused.pop(0))
            limit = self._config.limit
            while limit and self._bytes() - _bytes(fd) + need > limit:
                if not unused:
                    raise self._full(name, need, f"stage_limit is {_size(limit)}")
                self._remove(unused.pop(0))
            while True:
                try:
                    return os.posix_fallocate(fd, 0, max(1, need))
                except OSError as error:
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                        raise
                    if not unused:
                        disk = os.statvfs(self.path)
                        free = _size(disk.f_bavail * disk.f_frsize)
                        why = f"the disk has {free} free ({error.strerror})"
                        raise self._full(name, need, why) from None
                    self._remove(unused.pop(0))

    def _full(self, name: str, need: int, why: str) -> SourceError:
        self.forget(name)
        return SourceError(
            f"stage = {self._config.folder!r}: no space for a copy of {_size(need)}: {why}, and "
            f"copies in use have {_size(self._bytes())}; free some, raise stage_limit, set another "
            "[daemon] stage, or leave it out"
        )

    def forget(self, name: str) -> None:
        """Remove what there is of a copy that cannot be made."""
        for end in UNFINISHED:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.file(name, end))

    def _own(self, name: str, end: str) -> TextIO:
        return os.fdopen(open_own(self.file(name, end)), "r+", encoding="utf-8", errors="replace")

    # -- what is there; the folder is locked

    def _unused(self) -> list[_StoredCopy]:
        """The copies that no daemon uses and nobody makes, the longest unused first."""
        used = {name for user in self._entries(USERS) for name in self._in_use(user)}
        free = [name for name in self._entries(COPY) | self._entries(PART) if name not in used]
        return sorted(self._copy(name) for name in free)

    def _entries(self, end: str) -> set[str]:
        return {name.removesuffix(end) for name in os.listdir(self.path) if name.endswith(end)}

    def _copy(self, name: str) -> _StoredCopy:
        try:
            return _StoredCopy(os.stat(self.file(name, USED)).st_mtime, name)
        except FileNotFoundError:
            return _StoredCopy(0.0, name)

    def _in_use(self, user: str) -> list[str]:
        """The copies that a daemon uses; none if it is dead."""
        with self._own(user, USERS) as file:
            if _is_locked(file.fileno()):
                return file.read().split()
            if age_s(os.fstat(file.fileno()).st_mtime) > LIST_S:
                os.unlink(self.file(user, USERS))
            return []

    def _remove(self, copy: _StoredCopy) -> None:
        for name in os.listdir(self.path):  # an index of its keys lies beside it, too
            if name.startswith(copy.name + "."):
                with contextlib.suppress(FileNotFoundError):  # who makes that removes it, too
                    os.unlink(os.path.join(self.path, name))

    def _bytes(self) -> int:
        """Bytes that all copies take of the disk."""
        total = 0
        for entry in os.scandir(self.path):
            with contextlib.suppress(FileNotFoundError):
                total += entry.stat(follow_symlinks=False).st_blocks * 512
        return total

    @contextlib.contextmanager
    def _locked(self, tick: Callable[[str], object]) -> Iterator[None]:
        fd = open_own(self.file("lock", ""))
        try:
            take_lock(fd, tick)
            yield
        finally:
            os.close(fd)


@dataclass(frozen=True, slots=True, order=True)
class _StoredCopy:
    """A copy, and when it was used last."""

    used_s: float
    name: str


class StageClaim:
    """A daemon's hold on the copies that it uses, for as long as this object is open.

    The kernel lets it go when the daemon dies.
    """

    def __init__(self, config: StageConfig) -> None:
        """Hold what will be written into the list of this daemon.

        Raises:
            SourceError: The folder cannot be used; the text says why.
        """
        self._folder = StageFolder(config)
        self._path = self._folder.file(config.user, USERS)
        self._fd = open_own(self._path)
        if not _is_locked(self._fd):  # of an earlier daemon; in another container one may live
            os.ftruncate(self._fd, 0)
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_RDLCK, 0, 0, 0, 0))

    def close(self) -> None:
        """Note that the copies were used until now, and let them go."""
        with contextlib.suppress(OSError):
            for name in os.pread(self._fd, 1 << 20, 0).decode().split():
                os.utime(self._folder.file(name, USED))
        os.close(self._fd)

    def __enter__(self) -> StageClaim:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _is_locked(fd: int) -> bool:
    """Whether a daemon holds this list. Nothing is locked to find out."""
    asked = FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0)
    return FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK


def _state(found: os.stat_result) -> str:
    """What is another after each change of a file."""
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}\n"


def _bytes(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


def _size(count: float) -> str:
    """Bytes as people write them."""
    return amounts(count)[0]


def amounts(*counts: float) -> list[str]:
    """Bytes in the unit of the last one, which alone names it: ["3.1", "120 GB"]."""
    of = counts[-1]
    unit = next((u for u in ("B", "kB", "MB", "GB") if of < 1000 ** (UNITS[u] + 1)), "TB")
    scaled = [count / 1000 ** UNITS[unit] for count in counts]
    told = [f"{value:.3g}" if value < 1000 else f"{value:.0f}" for value in scaled]
    return [*told[:-1], f"{told[-1]} {unit}"]


UNITS = {"B": 0, "kB": 1, "MB": 2, "GB": 3, "TB": 4}
