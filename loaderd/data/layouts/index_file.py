"""Files that list keys: one a line, or JSON; a line may have a label behind the key."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loaderd.data.errors import SourceError
from loaderd.data.layouts.keys import ListedKeys

MAX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """What a file says of the samples: keys, the label of each or no labels, a hash of the file."""

    keys: ListedKeys
    labels: list[Any]
    digest: str


def read_index(path: str, has: Callable[[bytes], bool]) -> KeyIndex:
    """The keys that a file lists, with or without a label each.

    Args:
        path: Of the file.
        has: Whether the database has a key.

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
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    if path.endswith(".json"):
        return KeyIndex(_from_json(path, text), [], digest)
    keys, labels = _from_lines(path, text, has)
    return KeyIndex(keys, labels, digest)


def _from_lines(path: str, text: str, has: Callable[[bytes], bool]) -> tuple[ListedKeys, list[Any]]:
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise SourceError(f"{path}: lists no keys")
    split = _separator(lines[:16], has)
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


def _separator(lines: list[str], has: Callable[[bytes], bool]) -> str | None:
    """What stands between key and label; None if whole lines are keys, or nothing fits better."""
    if any(has(line.encode()[:511]) for line in lines):
        return None
    for mark in ("\t", " ", ","):
        keys = [line.rpartition(mark)[0].rstrip().encode()[:511] for line in lines if mark in line]
        if any(key and has(key) for key in keys):
            return mark
    return None


def _numbers(labels: list[str]) -> list[Any]:
    """Labels as whole numbers if all of them are, else as text."""
    if all(label.lstrip("-").isdigit() and len(label) < 19 for label in labels):
        return [int(label) for label in labels]
    return labels


def _from_json(path: str, text: str) -> ListedKeys:
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
    return ListedKeys(name.encode() for name in names)
