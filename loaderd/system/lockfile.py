"""One daemon a socket path: a held file lock, and the sweep of what a dead one left there."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from types import TracebackType

from loaderd.system.file_locks import lies_at
from loaderd.system.fork_hooks import closed_in_children
from loaderd_wire import paths


class CannotServe(Exception):
    """This path can't be served; the text says why and what to do."""


class AlreadyServed(CannotServe):
    """Another daemon serves it."""


class LockFile:
    """<socket>.lock, locked for as long as this object is open.

    The kernel lets the lock go when its process dies.
    """

    def __init__(self, socket: str, fd: int = -1) -> None:
        """Take the lock of a socket.

        Args:
            socket: Path of the socket.
            fd: Of the lock that another daemon holds and shares, ours from now on; -1: of nobody.

        Raises:
            AlreadyServed: Another daemon holds it.
            CannotServe: Something that isn't a socket lies in the way.
        """
        self.path = socket + paths.LOCK
        self._socket = socket
        self._lent = False
        self._fd = self._locked() if fd < 0 else fd
        closed_in_children(self)
        try:
            if fd < 0:
                self.sweep()
            self._sign()
        except BaseException:
            self.close()
            raise

    @property
    def fd(self) -> int:
        """Descriptor of the lock: whoever has a copy holds the lock, too."""
        return self._fd

    def lend(self) -> None:
        """A successor has a copy of `fd`: the file is its, until `take_back`."""
        self._lent = True

    def take_back(self) -> None:
        """The successor is gone."""
        self._lent = False
        self._sign()

    def retake(self) -> None:
        """Of a lock that is shared: hold it alone.

        Raises:
            AlreadyServed: Whoever shared it still has it.
        """
        os.close(self._fd)
        self._fd = -1
        self._fd = self._locked()
        self._sign()

    def _sign(self) -> None:
        # on a full disk the lock is as good without our number in it
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)

    def _locked(self) -> int:
        while True:
            try:
                fd = os.open(
                    self.path,
                    os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK,
                    0o600,
                )
            except OSError as error:
                raise CannotServe(
                    f"{self.path}: {error.strerror}; set [daemon] socket to a path in a folder of "
                    "your own"
                ) from None
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise CannotServe(
                        f"{self.path} is not a regular file and was not touched; set another "
                        "[daemon] socket"
                    )
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if lies_at(fd, self.path):
                    return fd
            except BlockingIOError:
                holder = os.pread(fd, 64, 0).decode("ascii", "replace").strip()
                os.close(fd)
                pid = f" (pid {holder})" if holder else ""
                raise AlreadyServed(
                    f"already running: another daemon{pid} serves {self._socket}"
                ) from None
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def sweep(self) -> None:
        """Remove the sockets that lie at our paths.

        Raises CannotServe for anything that isn't a socket, and removes nothing then.
        """
        names = (self._socket, self._socket + paths.MESSAGES, self._socket + paths.ASIDE)
        found = [path for path in names if _is_socket(path)]
        if self._socket in found and _is_served(self._socket):
            raise CannotServe(
                f"already running: another daemon serves {self._socket}, though its lock file was "
                "removed; stop that one first"
            )
        for path in found:
            os.unlink(path)

    def close(self) -> None:
        """Remove the lock file and let the lock go.

        Nothing may listen at the socket paths by now. Idempotent.
        """
        if self._fd >= 0:
            if not self._lent and lies_at(self._fd, self.path):
                os.unlink(self.path)
            os.close(self._fd)
            self._fd = -1

    def disown(self) -> None:
        """In a forked child: close the descriptor, leave lock and file to the parent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> LockFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def prepare_folder(socket: str, *, uid: int, default: bool, others: bool) -> None:
    """Check the folder that the sockets lie in; a default one is made.

    Args:
        socket: Path of the socket.
        uid: Whose folder it must be.
        default: The path is the default one.
        others: Other users must be able to pass.

    Raises:
        CannotServe: The folder will not do; the text says why.
    """
    folder = os.path.dirname(socket)
    if default:
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise CannotServe(
                f"{folder}: {error.strerror}; set [daemon] socket, or XDG_RUNTIME_DIR to a folder "
                "of your own"
            ) from None
    try:
        found = os.lstat(folder) if default else os.stat(folder)
    except OSError as error:
        raise CannotServe(
            f"{folder}: {error.strerror}; make it, or set another [daemon] socket"
        ) from None
    if not stat.S_ISDIR(found.st_mode):
        raise CannotServe(f"{folder} is not a folder; set another [daemon] socket")
    if default and (found.st_uid != uid or found.st_mode & 0o077):
        raise CannotServe(
            f"{folder} belongs to uid {found.st_uid} with mode {found.st_mode & 0o7777:04o}: not "
            "used, because other users could replace it; "
            "it must be yours with mode 0700, or set [daemon] socket"
        )
    if others:
        _check_passable(folder)


def _check_passable(folder: str) -> None:
    at = os.path.realpath(folder)
    while True:
        mode = os.stat(at).st_mode
        if not mode & 0o011:
            raise CannotServe(
                f"allow_uids is set, but no other user can pass {at} (mode {mode & 0o7777:04o}): "
                "chmod it, or set another [daemon] socket"
            )
        if at == "/":
            return
        at = os.path.dirname(at)


def _is_socket(path: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    except OSError as error:
        raise CannotServe(f"{path}: {error.strerror}") from None
    if not stat.S_ISSOCK(mode):
        raise CannotServe(
            f"{path} is not a socket and was not touched; set another [daemon] socket, or move "
            "that file away"
        )
    return True


def _is_served(path: str) -> bool:
    """Somebody listens there.

    A socket that a dead daemon left refuses at once; a full backlog (EAGAIN) has an owner too.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) in (0, errno.EAGAIN)
