"""Finding a running daemon and asking it one question on its control socket."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from loaderd.cli.exit_codes import FAULT, NO_START, USAGE, CommandError
from loaderd_wire import codec, paths
from loaderd_wire.errors import ProtocolError
from loaderd_wire.messages import PROTOCOL, Ask

Answer = TypeVar("Answer")

SILENT_S = 5.0  # a daemon that says nothing for so long is wedged


def target(given: str | None) -> str:
    """The socket that the command line means: a socket, a config, or this user's only live daemon.

    Raises CommandError, ConfigError.
    """
    if given is None:
        return _only()
    path = os.path.abspath(given)
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        if given.endswith(".toml"):
            raise CommandError(
                f"{given}: {getattr(error, 'strerror', None) or error}", USAGE
            ) from None
        return path  # as a socket, which nobody has opened yet
    if stat.S_ISSOCK(mode):
        return path
    from loaderd.config import load

    return load.socket_of(given, os.environ, os.getuid())


def config_of(given: str | None) -> str:
    """The config that the command line names, as a daemon would tell it; "" where it names none."""
    if given is None or not os.path.isfile(given):
        return ""
    return os.path.realpath(given)


def _only() -> str:
    folders = paths.run_folders(os.environ, os.getuid())
    found = [path for folder in folders for path in sorted(_sockets(folder))]
    live = [path for path in found if _answers(path)]
    if not live:
        raise CommandError(
            f"no daemon of this user has its socket in {' or '.join(folders)}\n"
            "give a SOCKET or a CONFIG",
            NO_START,
        )
    if len(live) > 1:
        raise CommandError(
            "several daemons of this user are running; give one of:\n"
            + "\n".join(f"  {path}" for path in live),
            USAGE,
        )
    return live[0]


def _sockets(folder: str) -> list[str]:
    """What may be sockets of daemons in a folder, which need not exist nor be this user's."""
    try:
        own = os.stat(folder).st_uid == os.getuid()
        names = os.listdir(folder) if own else []
    except OSError:
        return []
    return [os.path.join(folder, name) for name in names if name.endswith(".sock")]


def _answers(path: str) -> bool:
    try:
        _connect(path).close()
    except OSError:
        return False
    return True


def _connect(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    made.settimeout(SILENT_S)
    try:
        made.connect(path)
    except BaseException:
        made.close()
        raise
    return made


def parsed(path: str, parse: Callable[[str], Answer], body: str) -> Answer:
    """What the daemon with this socket answered, parsed. Raises CommandError."""
    try:
        return parse(body)
    except ValueError as error:
        raise CommandError(
            f"{path}: the process there is not a loaderd of this version: {error}",
            FAULT,
        ) from None


class ControlConnection:
    """A connection to a daemon that is asked `what`.

    `patience_s`: how long it may be silent. Use as a context manager.
    """

    def __init__(self, path: str, what: str) -> None:
        self.path = path
        self.patience_s = SILENT_S
        try:
            self._socket = _connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            way = (
                "there is nothing to end" if what == "drain" else "start one: loaderd serve CONFIG"
            )
            raise CommandError(f"no daemon is running at {path}\n{way}", NO_START) from None
        except PermissionError:
            raise CommandError(
                f"no access to {path}: it belongs to another user; see [daemon] allow_uids",
                NO_START,
            ) from None
        except TimeoutError:
            raise CommandError(
                f"the daemon at {path} accepts no connection: no answer for {SILENT_S:.0f} s", FAULT
            ) from None
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror or error}", NO_START) from None
        self._what = what

    def messages(self) -> Iterator[Any]:
        """What the daemon answers, until it hangs up.

        Raises CommandError if it is silent for too long.
        """
        buffer = bytearray()
        try:
            self._socket.sendall(codec.frame(Ask(PROTOCOL, self._what)))
            while True:
                while (message := codec.unframe(buffer)) is not None:
                    yield message
                self._socket.settimeout(self.patience_s)
                data = self._socket.recv(1 << 16)
                if not data:
                    return
                buffer += data
        except TimeoutError:
            raise CommandError(
                f"the daemon at {self.path} has not answered for {self.patience_s:.0f} s", FAULT
            ) from None
        except (ConnectionError, BrokenPipeError):
            return
        except ProtocolError as error:
            raise CommandError(
                f"{self.path}: the process there is not a loaderd of this version: {error}",
                FAULT,
            ) from None

    def __enter__(self) -> ControlConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
