"""Names of classes: read from a file or a database, and compared between streams."""

from __future__ import annotations

from loaderd.data.errors import SourceError
from loaderd.data.lmdb import record_format
from loaderd.data.lmdb.store import open_store

MAX_BYTES = 16 << 20  # of a file with names


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
    """The names that `pack` has put into a database. Raises SourceError."""
    store = open_store(path)
    try:
        record = store.get(record_format.META_KEY)
        if record is None or not record_format.is_meta(record):
            raise SourceError(f"{path}: was not written by `loaderd pack`, and has no class names")
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
