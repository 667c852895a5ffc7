"""Where the daemon is to be found: a socket, or a config file whose socket follows from it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from loaderd_client import file_limits
from loaderd_wire import paths
from loaderd_wire.errors import ConfigError, by_handler

EXTRA = "pip install 'loaderd[daemon]'"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a daemon is to be found.

    Attributes:
        socket: Absolute path of its socket, "" if it follows from `config`.
        config: Absolute path of its config with symlinks resolved, or "".
    """

    socket: str
    config: str

    @classmethod
    def of(cls, text: str) -> Endpoint:
        """What a user's path means.

        Raises ConfigError for a config that is not there and for a path no socket can have.
        """
        path = os.path.abspath(text)
        try:
            kind = os.stat(path).st_mode
        except (OSError, ValueError) as error:
            if by_handler(error):
                raise
            kind = 0
        if path.endswith(".toml") or stat.S_ISREG(kind):
            if not stat.S_ISREG(kind):
                raise ConfigError(
                    f"source={text!r}: there is no such config file; it would be {path}"
                )
            return cls("", os.path.realpath(path))
        if stat.S_ISDIR(kind):
            raise ConfigError(
                f"source={text!r}: a folder; give the daemon's socket or its config file"
            )
        if "\0" in path:
            raise ConfigError(f"source={text!r}: a path with a NUL character")
        problem = paths.too_long(path)
        if problem:
            raise ConfigError(problem)
        return cls(path, "")

    def streams(self) -> tuple[str, ...]:
        """Names of a config's streams; () where only a socket is known.

        Raises ConfigError for a file that cannot be read.
        """
        return tuple(_read(self.config, "streams")) if self.config else ()

    def find(self) -> str:
        """The socket's absolute path; of a config by its [daemon] socket or the default rule.

        Raises ConfigError.
        """
        if self.socket:
            return self.socket
        setting = _read(self.config, "daemon").get("socket")
        setting = setting if isinstance(setting, str) else None
        try:
            return paths.config_socket(setting, self.config, os.environ, os.getuid())
        except ValueError as error:
            raise ConfigError(f"{self.config}: [daemon] socket: {error}") from None


def _read(config: str, table: str) -> dict[str, Any]:
    """This table of a config, empty if there is none.

    Whatever else is wrong with the file the daemon itself reports.
    """
    file_limits.require(file_limits.TO_READ)
    toml = _toml()
    try:
        with open(config, "rb") as file:
            text = file.read()
    except OSError as error:
        if by_handler(error):
            raise
        raise ConfigError(f"{config} cannot be read: {error.strerror}") from None
    try:
        tree = toml.loads(text.decode())
    except UnicodeDecodeError:
        raise ConfigError(
            f"{config} is not a config file; if it is a database, name it in one: [streams.NAME] "
            "lmdb = ..."
        ) from None
    except toml.TOMLDecodeError as error:
        raise ConfigError(f"{config} is not TOML: {error}") from None
    found: Any = tree.get(table)
    return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType] - what it holds is checked by whoever asks


def _toml() -> Any:
    for name in ("tomllib", "tomli"):
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    raise ConfigError(
        f"a config file needs a TOML parser, which this Python lacks: {EXTRA}, or give the "
        "daemon's socket"
    )


def outdated(config: str, socket: str) -> str:
    """ "" or a warning: the config was written to after the daemon had begun to serve it."""
    try:
        if os.stat(config).st_mtime <= os.stat(socket).st_mtime:
            return ""
    except OSError as error:
        if by_handler(error):
            raise
        return ""
    return (
        f"{config} has changed since its daemon started, which goes on with the old settings: "
        "others use it, or `loaderd serve` has started it (`loaderd drain "
        f"{config}` ends it)"
    )
