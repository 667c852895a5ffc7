"""Names of the socket and what lies beside it: pure functions of an environment, a uid and a config path."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Mapping

MAX_SOCKET_BYTES = 107  # sun_path less its NUL; zmq.IPC_PATH_MAX_LEN says the same
MESSAGES, LOCK, LOG, BAD = ".zmq", ".lock", ".log", ".bad.jsonl"


def run_folder(env: Mapping[str, str], uid: int) -> str:
    """The folder of default sockets: $XDG_RUNTIME_DIR/loaderd, else /tmp/loaderd-<uid>."""
    base = env.get("XDG_RUNTIME_DIR", "")
    return posixpath.join(base, "loaderd") if base.startswith("/") else f"/tmp/loaderd-{uid}"


def default_socket(config: str, env: Mapping[str, str], uid: int) -> str:
    """The socket of a config without [daemon] socket. `config` is an absolute path, symlinks resolved by the caller."""
    if not config.startswith("/"):
        raise ValueError(f"{config!r} is not an absolute path")
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", posixpath.splitext(posixpath.basename(config))[0])[:32] or "config"
    return posixpath.join(run_folder(env, uid), f"{stem}-{hashlib.sha256(config.encode()).hexdigest()[:8]}.sock")


def too_long(socket: str) -> str | None:
    """Why this path cannot be a unix socket, or None. The messages socket beside it must fit too."""
    size = len((socket + MESSAGES).encode())
    if size <= MAX_SOCKET_BYTES:
        return None
    return (
        f"socket path {socket!r} is too long: with {MESSAGES!r} it has {size} bytes, a unix socket takes {MAX_SOCKET_BYTES}; "
        "set [daemon] socket to a shorter path"
    )
