"""Files of the folder of copies: opened without a wait, and locked by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable

from loaderd.data.errors import SourceError
from loaderd.system.file_locks import holder

LOCKED_S = 0.1  # between two tries to get a lock: the kernel has none with a time limit
FLAGS = (
    os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOATIME
)  # reading a copy changes nothing that the system says of it


def open_own(path: str, *, make: bool = True) -> int:
    """Open a file of loaderd's for reading and writing.

    Something that loaderd cannot have made (a link, a FIFO, an empty folder) gives way to a file.

    Args:
        path: Path of the file.
        make: It is made if there is none.

    Returns:
        A descriptor.

    Raises:
        SourceError: It cannot be opened; the text says what to do.
        FileNotFoundError: There is none, and none is made.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            mode = os.lstat(path).st_mode
            if not stat.S_ISREG(mode):
                (os.rmdir if stat.S_ISDIR(mode) else os.unlink)(path)
                make = True
        return os.open(path, FLAGS | os.O_CREAT * make, 0o600)
    except FileNotFoundError:
        if not make:
            raise
        folder = os.path.dirname(path)
        raise SourceError(f"{path}: the folder {folder} was removed; start again") from None
    except OSError as error:
        raise SourceError(
            f"{path}: {error.strerror}; remove it, or set another [daemon] stage"
        ) from None


def take_lock(fd: int, tick: Callable[[str], object]) -> None:
    """Take the lock of a file.

    Args:
        fd: The file.
        tick: Told who has it, as long as others have.
    """
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tick(holder(fd))
            time.sleep(LOCKED_S)
