"""Files that list keys: one a line, or JSON; a line may have a label behind the key."""

from __future__ import annotations

import json
import os
from typing import Any

from loaderd.data.errors import SourceError
from loaderd.data.layouts.base import Database
from loaderd.data.layouts.keys import ListedKeys

MAX_BYTES = 1 << 30


def read_index(path: str, db: Database) -> tuple[ListedKeys, list[Any]]:
    """The keys that a file lists, and the label of each, [] if it has none.

    A line is a key, or a key, white space or a comma, and a label: a key of the database tells
    which. JSON is a list of keys, a table with keys as its names, or a table of lists, whose keys
    are "name/entry". Raises SourceError.
    """
    try:
        if os.path.getsize(path) > MAX_BYTES:
            raise SourceError(f"{path}: is larger than {MAX_BYTES:,} bytes; is it a list of keys?")
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SourceError(f"{path}: is not UTF-8: byte {error.start:,}") from None
    if path.endswith(".json"):
        return _from_json(path, text)
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise SourceError(f"{path}: lists no keys")
    split = _separator(lines[:16], db)
    if split is None:
        return ListedKeys(line.encode() for line in lines), []
    labels: list[Any] = []
    keys: list[bytes] = []
    for number, line in enumerate(lines, 1):
        key, mark, label = line.rpartition(split)
        if not mark:
            raise SourceError(f"{path}: line {number} has no label: {line[:60]!r}")
        keys.append(key.rstrip().encode())
        labels.append(label.strip())
    return ListedKeys(keys), _numbers(labels)


def _separator(lines: list[str], db: Database) -> str | None:
    """What stands between key and label; None if whole lines are keys, or nothing fits better."""
    if any(db.has(line.encode()[:511]) for line in lines):
        return None
    for mark in ("\t", " ", ","):
        keys = [line.rpartition(mark)[0].rstrip().encode()[:511] for line in lines if mark in line]
        if any(key and db.has(key) for key in keys):
            return mark
    return None


def _numbers(labels: list[str]) -> list[Any]:
    """Labels as whole numbers if all of them are, else as text."""
    if all(label.lstrip("-").isdigit() and len(label) < 19 for label in labels):
        return [int(label) for label in labels]
    return labels


def _from_json(path: str, text: str) -> tuple[ListedKeys, list[Any]]:
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: is not JSON: {error}") from None
    if isinstance(found, dict) and found and all(isinstance(v, list) for v in found.values()):
        names = [f"{name}/{entry}" for name, entries in found.items() for entry in entries]
    else:
        names = list(found) if isinstance(found, (dict, list)) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise SourceError(f"{path}: is no list or table of keys")
    return ListedKeys(name.encode() for name in names), []
