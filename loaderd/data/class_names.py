"""Names of classes: read from a file or a database, and compared between streams."""

from __future__ import annotations

import os
from collections.abc import Collection

from loaderd.config.stream import StreamConfig
from loaderd.data.errors import SourceError
from loaderd.data.lmdb import record_format
from loaderd.data.lmdb.open_stores import open_store
from loaderd_wire.hints import few, nearest

MAX_BYTES = 16 << 20  # of a file with names
SHOWN = 10  # of a list of names


LMDB_MAGIC = b"\xde\xc0\xef\xbe"  # at byte 16 of a database written on a little-endian machine


def meant(name: str, classes: Collection[str]) -> str:
    """What a name that is none of the classes may have meant: the nearest, or the first of them.

    Args:
        name: The name.
        classes: Their names.
    """
    near = nearest(name, classes)
    if near:
        return f"did you mean {near!r}?"
    return f"{'it is' if len(classes) == 1 else 'they are'} {few([*map(repr, classes)], SHOWN)}"


def of_path(path: str) -> tuple[str, ...]:
    """The names in a text file or a database, whichever it is. Raises SourceError."""
    try:
        if not os.path.isdir(path):
            with open(path, "rb") as file:
                if file.read(20)[16:] != LMDB_MAGIC:
                    return of_file(path)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None
    return of_database(path)


def of_file(path: str) -> tuple[str, ...]:
    """The names in a text file, one a line; the first is label 0.

    Raises SourceError that names the line.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SourceError(f"{path}: is not UTF-8 text with one class per line") from None
    if len(data) > MAX_BYTES:
        raise SourceError(f"{path}: is larger than {MAX_BYTES} bytes; is that a list of classes?")
    names = [line.rstrip("\r") for line in text.rstrip("\r\n").split("\n")]
    seen: dict[str, int] = {}
    for number, name in enumerate(names, 1):
        if not name.strip():
            raise SourceError(
                f"{path}:{number}: is empty; write one class per line, the first is label 0"
            )
        if name in seen:
            raise SourceError(f"{path}:{number}: {name!r} is already in line {seen[name]}")
        seen[name] = number
    return tuple(names)


def of_database(path: str) -> tuple[str, ...]:
    """The names that a database has: those of `pack`, or of a layout that has some.

    Raises SourceError.
    """
    store = open_store(path)
    try:
        record = store.get(record_format.META_KEY)
        if record is None or not record_format.is_meta(record):
            return _of_layout(path)
        try:
            classes = record_format.unpack_meta(record).classes
        except record_format.DamagedRecord as error:
            raise SourceError(f"{path}: {error}") from None
        finally:
            del record  # a view of what is closed now
    finally:
        store.close()
    if not classes:
        raise SourceError(f"{path}: has no class names")
    return classes


def _of_layout(path: str) -> tuple[str, ...]:
    """The names in a database of another project. Raises SourceError."""
    from loaderd.data.sources.source import Source  # which asks this module for names

    try:
        with Source(StreamConfig("", lmdb=path)) as source:
            classes = source.classes
    except SourceError:
        classes = ()
    if not classes:
        raise SourceError(f"{path}: was not written by `loaderd pack`, and has no class names")
    return classes
