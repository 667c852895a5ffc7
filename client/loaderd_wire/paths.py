"""Paths of the socket and of the files beside it: functions of environment, uid and config."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Mapping

MAX_SOCKET_BYTES = 107  # sun_path less its NUL; zmq.IPC_PATH_MAX_LEN says the same
MESSAGES, LOCK, LOG, BAD = ".zmq", ".lock", ".log", ".bad.jsonl"
STEM = 32  # characters of a config's name that its default socket has
LONGEST_NAME = STEM + len("-12345678.sock")  # of a default socket
ASIDE = ".zmq.old"  # a second name of the messages socket, while a successor takes the first one
OLDER = ".1"  # ends the name of the file with what a full log or quarantine file held
LOG_BEGINS = "the embedded daemon starts"  # in the first line that each daemon writes to the log


def run_folders(env: Mapping[str, str], uid: int) -> tuple[str, ...]:
    """The folders that default sockets lie in: each in the first one in which its path fits.

    They are $XDG_RUNTIME_DIR/loaderd, and /tmp/loaderd-<uid> where that is not set, or has a name
    so long that not every socket fits.
    """
    base, short = env.get("XDG_RUNTIME_DIR", ""), f"/tmp/loaderd-{uid}"
    own = posixpath.join(base, "loaderd")
    if not base.startswith("/"):
        return (short,)
    return (own, short) if _over(posixpath.join(own, "-" * LONGEST_NAME)) else (own,)


def run_folder(env: Mapping[str, str], uid: int) -> str:
    """The first of `run_folders`."""
    return run_folders(env, uid)[0]


def default_socket(config: str, env: Mapping[str, str], uid: int) -> str:
    """The socket of a config without [daemon] socket.

    Args:
        config: Absolute path of the config, with symlinks resolved.
        env: The environment.
        uid: Number of the user.

    Raises:
        ValueError: The path is not absolute.
    """
    if not config.startswith("/"):
        raise ValueError(f"{config!r} is not an absolute path")
    stem = (
        re.sub(r"[^A-Za-z0-9_-]+", "-", posixpath.splitext(posixpath.basename(config))[0])[:STEM]
        or "config"
    )
    digest = hashlib.sha256(config.encode(errors="surrogateescape")).hexdigest()
    made = [posixpath.join(folder, f"{stem}-{digest[:8]}.sock") for folder in run_folders(env, uid)]
    return next((path for path in made if not _over(path)), made[-1])


def _over(socket: str) -> int:
    """Bytes of the path of the messages socket beside this one, if they are too many; else 0."""
    size = len((socket + MESSAGES).encode(errors="surrogateescape"))
    return size if size > MAX_SOCKET_BYTES else 0


def too_long(socket: str) -> str | None:
    """Why a path cannot be a unix socket, or None. The messages socket beside it must fit, too.

    Raises:
        UnicodeEncodeError: It is not UTF-8.
    """
    socket.encode()
    size = _over(socket)
    if not size:
        return None
    return (
        f"socket path {socket!r} is too long: with {MESSAGES!r} it has {size} bytes, a unix "
        f"socket takes {MAX_SOCKET_BYTES}; "
        "set [daemon] socket to a shorter path, or leave it out: the default always fits"
    )


def embedded_files(socket: str, quarantine: str) -> list[str]:
    """What an embedded daemon writes beside its socket and needs no longer once it has left.

    Args:
        socket: Path of the socket.
        quarantine: Path of the quarantine file. One that the config names is the user's.
    """
    written = [socket + LOG, quarantine] if quarantine == socket + BAD else [socket + LOG]
    return [path + end for path in written for end in ("", OLDER)]


def expand(text: str, folder: str, env: Mapping[str, str]) -> str:
    """A path as a config means it.

    ${NAME} and a leading ~ are replaced, and the path is made absolute.

    Args:
        text: The path in the config.
        folder: The config's own folder, absolute.
        env: The environment.

    Raises:
        ValueError: A name is not set, or the path is empty, or no file can be called so.
    """

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"${{{name}}} is not the name of an environment variable")
        if not env.get(name):
            raise ValueError(f"environment variable {name} is not set")
        return env[name]

    path = text
    if path == "~" or path.startswith("~/"):
        path = "${HOME}" + path[1:]
    elif path.startswith("~"):
        raise ValueError("only ~ and ~/ stand for a home folder, not ~user")
    path = re.sub(r"\$\{([^}]*)\}", value, path)
    if not path or "\0" in path:
        raise ValueError("an empty path" if not path else "a path with a NUL character")
    return posixpath.normpath(posixpath.join(folder, path))


def config_socket(given: str | None, config: str, env: Mapping[str, str], uid: int) -> str:
    """The socket of a config.

    Args:
        given: Its [daemon] socket; None: the default.
        config: Absolute path of the config, with symlinks resolved.
        env: The environment.
        uid: Number of the user.

    Raises:
        ValueError: The path is no valid socket path.
    """
    path = (
        default_socket(config, env, uid)
        if given is None
        else expand(given, posixpath.dirname(config), env)
    )
    try:
        problem = too_long(path)
    except UnicodeEncodeError:
        raise ValueError(f"socket path {path!r} is not UTF-8") from None
    if problem:
        raise ValueError(problem)
    return path
