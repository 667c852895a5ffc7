"""A config file, read once at the door.

TOML comes in, frozen values go out, or one ConfigError with every fault that it has.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from loaderd.config import mixture_keys
from loaderd.config.order_keys import BALANCED
from loaderd.config.parts import PartConfig, as_parts
from loaderd.config.schema import CONFIG, DAEMON, WORKERS, DaemonConfig, WorkersConfig
from loaderd.config.stream import StreamConfig, TransformConfig
from loaderd.config.types import join, show
from loaderd_wire import paths
from loaderd_wire.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports] - only there before 3.11

MAX_BYTES = 1 << 20  # of a config file
MAX_FAULTS = 50  # that are listed
LMDB_MAGIC = b"\xde\xc0\xef\xbe"  # at byte 16 of a database written on a little-endian machine


@dataclass(frozen=True, slots=True)
class Config:
    """What a config file says.

    Attributes:
        path: Absolute, symlinks resolved.
        folder: The one it lies in.
        default_socket: Nobody named the socket, the rule did.
        daemon: The table [daemon].
        workers: The table [workers].
        streams: The tables [streams.NAME], in order.
    """

    path: str
    folder: str
    default_socket: bool
    daemon: DaemonConfig
    workers: WorkersConfig
    streams: tuple[StreamConfig, ...]

    def staged(self) -> Config:
        """The same for a daemon, which copies databases; who else reads them does so in place."""
        stage = self.daemon.staging
        return replace(self, streams=tuple(stream.staged(stage) for stream in self.streams))


class ConfigProblems:
    """Collects what is wrong; `where` is a path such as streams.train.transforms[1].size."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, where: str, text: str) -> None:
        """Keep one fault; `where` is "" where it concerns the whole file."""
        self.lines.append(f"{where}: {text}" if where else text)


def load(path: str, env: Mapping[str, str], uid: int) -> Config:
    """The config in a file.

    Raises ConfigError and nothing else; its text names the file and every fault.
    """
    real = _real(path)
    return parse(_read(path, real), real, env, uid)


def socket_of(path: str, env: Mapping[str, str], uid: int) -> str:
    """The socket that the daemon of this config file has, whatever else the file says.

    Raises ConfigError.
    """
    real = _real(path)
    daemon = _toml(_read(path, real), real).get("daemon", {})
    faults = ConfigProblems()
    given = daemon.get("socket") if isinstance(daemon, dict) else None
    socket = _socket(given, real, env, uid, faults)
    if socket is None:
        raise ConfigError(
            _all(real, faults.lines or [f"daemon.socket: {show(given)} is not a path"])
        )
    return socket


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except (
        OSError,
        ValueError,
    ) as error:  # a NUL in the name; a relative name in a folder that is gone
        raise ConfigError(f"{path!r} is not a file's name: {error}") from None


def parse(text: str, path: str, env: Mapping[str, str], uid: int) -> Config:
    """The config in `text`, which came from `path` (absolute).

    Raises ConfigError and nothing else.
    """
    faults = ConfigProblems()
    values = CONFIG.read(_toml(text, path), faults.add)
    values = {"daemon": DAEMON.read({}, faults.add), "workers": WORKERS.read({}, faults.add)} | {
        k: v for k, v in values.items() if v is not None
    }
    daemon, folder = values["daemon"], os.path.dirname(path)
    default_socket = daemon["socket"] is None
    daemon["socket"] = _socket(daemon["socket"], path, env, uid, faults)
    daemon["quarantine"] = (
        _path("daemon.quarantine", daemon["quarantine"], folder, env, faults)
        or f"{daemon['socket']}{paths.BAD}"
    )
    daemon["stage"] = _path("daemon.stage", daemon["stage"], folder, env, faults)
    for name, stream in values.get("streams", {}).items():
        where = join("streams", name)
        for word in ("keys", "weights", "classes"):
            if word != "weights" or stream[word] != BALANCED:
                stream[word] = _path(f"{where}.{word}", stream[word], folder, env, faults)
        tables = [(f"{where}.parts[{n}]", part) for n, part in enumerate(stream["parts"])]
        for at, table in [(where, stream), *tables]:
            table["lmdb"] = _paths(f"{at}.lmdb", table["lmdb"], folder, env, faults)
            table["index_file"] = _path(
                f"{at}.index_file", table["index_file"], folder, env, faults
            )
    mixture_keys.check_sources(
        values.get("streams", {}), lambda where, text: faults.add(f"streams.{where}", text)
    )
    if faults.lines:
        raise ConfigError(_all(path, faults.lines))
    made = {name: _stream(name, table) for name, table in values["streams"].items()}
    streams = tuple(stream.mixed(made) for stream in made.values())
    return Config(
        path,
        folder,
        default_socket,
        DaemonConfig(**daemon),
        WorkersConfig(**values["workers"]),
        streams,
    )


def _read(path: str, real: str) -> str:
    try:
        # without O_NONBLOCK a pipe would wait for a writer
        with open(
            real, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
        ) as file:
            regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            data = file.read(MAX_BYTES + 1) if regular else b""
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder; name a config file (TOML)") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    if not regular:
        raise ConfigError(f"{path}: not a regular file; name a config file (TOML)")
    if data[16:20] == LMDB_MAGIC:
        raise ConfigError(
            f"{path}: is an LMDB and not a config file; name it in one: [streams.NAME] lmdb = ..., "
            f"or look at it: loaderd inspect {path}"
        )
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES} bytes; is that a config file?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8: byte {data[error.start]:#04x}") from None


def _toml(text: str, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        what = str(error)
        match = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", what)
        line = int(match[1]) if match and match[1] else text.count("\n") + (not text.endswith("\n"))
        what = what[: match.start()] if match else what
        raise ConfigError(f"{path}:{line}: not TOML: {what}{_slip(text, line)}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not a config: arrays and tables are nested too deep") from None
    except ValueError as error:  # numbers of thousands of digits
        raise ConfigError(f"{path}: not TOML: {error}") from None


def _slip(text: str, line: int) -> str:
    """What to write instead, where the line has one of the usual mistakes, or ""."""
    written = text.splitlines()[line - 1 : line][0]
    found = re.search(r"[=,\[]\s*(True|False|None)\b", written)
    if found:
        word = found[1]
        return f"; {word} is Python: " + (
            "leave the key out" if word == "None" else f"write {word.lower()}"
        )
    found = re.match(r"\s*[\w.-]+\s*=\s*([A-Za-z_./~$][\w./~${}:*-]*)\s*(#|$)", written)
    if found and found[1] not in ("true", "false", "inf", "nan"):
        return f'; a text has quotes: "{found[1]}"'
    found = re.match(r"\s*\[\[.*\.(\w+)\]\]", written)
    if found and re.search(rf"(?m)^\s*{found[1]}\s*=\s*\[", text):
        return (
            f"; {found[1]} = [...] is there already: write all in it, or each as {found[0].strip()}"
        )
    return ""


def _socket(
    given: Any, path: str, env: Mapping[str, str], uid: int, faults: ConfigProblems
) -> str | None:
    """The socket's path. None if there is a fault, found here or before."""
    if given is not None and (not isinstance(given, str) or not given):
        return None
    try:
        return paths.config_socket(given, path, env, uid)
    except ValueError as error:
        faults.add(
            "daemon.socket",
            str(error) if given is None or len(given) > 60 else f"{show(given)}: {error}",
        )
        return None


def _path(
    where: str, given: Any, folder: str, env: Mapping[str, str], faults: ConfigProblems
) -> str | None:
    """The path, absolute.

    Returns:
        None if there is none, or one that is not even text, which has been reported already.
    """
    if not isinstance(given, str) or not given:
        return None
    try:
        return paths.expand(given, folder, env)
    except ValueError as error:
        faults.add(where, f"{show(given)}: {error}")
        return None


def _paths(
    where: str, given: Any, folder: str, env: Mapping[str, str], faults: ConfigProblems
) -> str | tuple[str, ...] | None:
    """`_path` of a path or of each of several."""
    if not isinstance(given, tuple):
        return _path(where, given, folder, env, faults)
    found = [_path(f"{where}[{n}]", one, folder, env, faults) for n, one in enumerate(given)]
    return tuple(path for path in found if path is not None)


def _parts(stream: Mapping[str, Any]) -> tuple[PartConfig, ...]:
    """The databases of a stream that has several; () for any other."""
    parts: list[PartConfig] = list(as_parts(stream["lmdb"]))
    for table in stream["parts"]:
        said = {name: table[name] for name in table if name != "lmdb" and table[name] is not None}
        several = as_parts(table["lmdb"]) or (PartConfig(table["lmdb"]),)
        parts += [replace(part, said=said) for part in several]
    return tuple(parts)


def _stream(name: str, values: Mapping[str, Any]) -> StreamConfig:
    shuffle = values["shuffle"]
    steps = tuple(TransformConfig(*step) for step in values["transforms"])
    blocks = shuffle["block"] if isinstance(shuffle, dict) else int(shuffle)
    parts = _parts(values)
    return StreamConfig(
        name=name,
        **{
            **values,
            "lmdb": None if parts else values["lmdb"],
            "parts": parts,
            "shuffle": blocks,
            "drop_last": values["drop_last"] or values["tail"] == "drop",
            "max_errors": float(values["max_errors"] or 0),
            "transforms": steps,
        },
    )


def _all(path: str, lines: list[str]) -> str:
    """One line for one fault, else a heading and a line each."""
    if len(lines) == 1:
        return f"{path}: {lines[0]}"
    listed = [f"  {line}" for line in lines[:MAX_FAULTS]]
    if len(lines) > MAX_FAULTS:
        listed.append(f"  and {len(lines) - MAX_FAULTS} more")
    return "\n".join([f"{path}: {len(lines)} faults", *listed])
