"""The unfinished file beside the target.

It is claimed by one process, and renamed to the target when it is complete.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from loaderd.data.errors import SourceError, writing
from loaderd.system.file_locks import holder, lies_at

NO_SYNC = (errno.EINVAL, errno.ENOTSUP)  # of file systems on which folders cannot be synced


@contextmanager
def claimed(target: str) -> Iterator[str]:
    """The name of the part file, which nobody else packs into until this ends.

    Raises SourceError if the target is there or claimed, WriteFault.
    """
    part = target + ".part"
    while True:
        absent(target)
        with writing(part):
            fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not _locked(fd, part):
                raise SourceError(f"{target}: {holder(fd)} is packing into it right now")
            if not lies_at(fd, part):
                continue  # its former owner has finished in the meantime
            yield part
            return
        finally:
            os.close(fd)


def absent(target: str) -> None:
    """Raises SourceError if the target is there already."""
    if os.path.lexists(target):
        raise SourceError(f"{target}: already exists; remove it, or choose another name")


def _locked(fd: int, part: str) -> bool:
    """Whether it is locked for us now; False: by another process. Raises WriteFault."""
    with writing(part):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def finish(part: str, target: str) -> int:
    """Put the part in the target's place, for good.

    Its size in bytes. Raises WriteFault; SourceError if something lies there by now.
    """
    with writing(part), open(part, "rb") as file:
        os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
    absent(target)
    with writing(target):
        os.rename(part, target)
    try:
        fd = os.open(os.path.dirname(target) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno not in NO_SYNC:
            lost = f"is complete, but may lose its name if the machine crashes: {error.strerror}"
            raise SourceError(f"{target}: {lost}") from None
    return size
