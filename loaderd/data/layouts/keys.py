"""Keys of samples: computed from a pattern, or listed once by a pass over the database."""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from loaderd.data.errors import SourceError

PATTERN = re.compile(r"([^{}]*)\{i(?::0?([1-9][0-9]?)d)?\}([^{}]*)")
BINARY = {"u32be": ">I", "u32le": "<I", "u64be": ">Q", "u64le": "<Q"}
FORMS = '"{i}", "{i:08d}", "image-{i:09d}", ' + ", ".join(f'"{name}"' for name in BINARY)


class Keys(Protocol):
    """The keys of the samples, in order."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> bytes: ...


class KeyFormat:
    """A pattern that makes a key of a number, such as "{i:08d}" or "u32be".

    Attributes:
        text: The pattern.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        match = PATTERN.fullmatch(text)
        if match is None and text not in BINARY:
            raise SourceError(f'key_format = "{text}": is not a pattern of keys such as {FORMS}')
        self._number = struct.Struct(BINARY[text]) if match is None else None
        self._before = match[1].encode() if match else b""
        self._width = int(match[2] or 0) if match else 0
        self._after = match[3].encode() if match else b""
        digits = b"[0-9]{%d,}" % self._width if self._width else b"0|[1-9][0-9]*"
        self._match = re.compile(
            re.escape(self._before) + b"(" + digits + b")" + re.escape(self._after)
        )

    def key(self, number: int) -> bytes:
        """The key of this number."""
        if self._number is not None:
            return self._number.pack(number)
        return self._before + str(number).zfill(self._width).encode() + self._after

    def number(self, key: bytes) -> int | None:
        """The number that this is the key of; None if it is the key of none."""
        if self._number is not None:
            return self._number.unpack(key)[0] if len(key) == self._number.size else None
        match = self._match.fullmatch(key)
        if match is None or len(match[1]) > max(self._width, 18):
            return None
        number = int(match[1])
        return number if self.key(number) == key else None


class NumberedKeys:
    """The keys of the numbers from `first` on, without gaps."""

    def __init__(self, form: KeyFormat, first: int, count: int) -> None:
        self._form = form
        self._first = first
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> bytes:
        return self._form.key(self._first + index)


class GappedKeys:
    """The keys of these numbers, which are in order and have gaps."""

    def __init__(self, form: KeyFormat, numbers: np.ndarray) -> None:
        self._form = form
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> bytes:
        return self._form.key(int(self._numbers[index]))


class ListedKeys:
    """Keys without a pattern, in two buffers: 8 bytes a key, and their bytes."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._bytes = bytearray()
        self._ends = array("q", [0])
        for key in keys:
            self._bytes += key
            self._ends.append(len(self._bytes))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> bytes:
        return bytes(self._bytes[self._ends[index] : self._ends[index + 1]])


def format_of(key: bytes) -> KeyFormat | None:
    """The pattern that a first key tells: its last digits, as wide as they are."""
    if len(key) == 4 and key[:2] == b"\0\0":
        return KeyFormat("u32be")
    match = re.fullmatch(rb"([^{}]*?)([0-9]+)([^0-9{}]*)", key)
    if match is None or not key.isascii():
        return None
    width = f":0{len(match[2])}d" if len(match[2]) > 1 else ""
    return KeyFormat(f"{match[1].decode()}{{i{width}}}{match[3].decode()}")


def numbered(
    form: KeyFormat,
    *,
    has: Callable[[bytes], bool],
    scan: Callable[[], Iterable[bytes]],
    entries: int,
    stated: int | None = None,
) -> tuple[Keys, list[str]]:
    """The keys that this pattern has in a database, and what is odd about them.

    Where the numbers have no gaps, which the number of entries and some keys tell, nothing is read
    through. Else one pass over the keys finds the numbers.

    Args:
        form: The pattern.
        has: Whether the database has a key.
        scan: All keys of the database.
        entries: How many keys of this pattern there are, if all others are known.
        stated: The number of samples that the database says it has.
    """
    first = 0 if has(form.key(0)) else 1
    if stated is not None and stated == entries and stated > 0:
        probed = {first + at * (stated - 1) // 63 for at in range(64)}
        whole = all(has(form.key(number)) for number in probed)
        if whole and not has(form.key(first + stated)):
            return NumberedKeys(form, first, stated), []
    found = np.fromiter(
        (number for key in scan() if (number := form.number(key)) is not None), np.int64
    )
    found.sort()
    notes: list[str] = []
    if stated is not None and stated != len(found):
        notes.append(f"it says that it has {stated:,} samples, and has {len(found):,}")
    if not len(found):
        return NumberedKeys(form, 0, 0), notes
    low, high = int(found[0]), int(found[-1])
    if high - low + 1 == len(found):
        return NumberedKeys(form, low, len(found)), notes
    gaps = np.flatnonzero(np.diff(found) > 1)
    missing = high - low + 1 - len(found)
    shown = ", ".join(str(int(found[gap]) + 1) for gap in gaps[:3])
    notes.append(
        f"{missing:,} of its numbers from {low:,} to {high:,} are missing: "
        f"{shown}{', ...' if len(gaps) > 3 or missing > len(gaps) else ''}"
    )
    return GappedKeys(form, found), notes
