"""Keys of samples: computed from a pattern, or listed once by a pass over the database."""

from __future__ import annotations

import re
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable
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

    def numbers(self, keys: Iterable[bytes]) -> np.ndarray:
        """What `number` says of many keys, for a small part of the time.

        Args:
            keys: Keys of any kind.

        Returns:
            The numbers, without the keys that have none: int64, shape (n,), in no certain order.
        """
        by_length: dict[int, list[bytes]] = {}
        for key in keys:
            by_length.setdefault(len(key), []).append(key)
        found = [self._alike(length, alike) for length, alike in by_length.items()]
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def _alike(self, length: int, keys: list[bytes]) -> np.ndarray:
        """`numbers` of keys that all have this length."""
        if self._number is not None:
            whole = b"".join(keys) if length == self._number.size else b""
            numbers = np.frombuffer(
                whole, self._number.format.lower().replace("q", "u8").replace("i", "u4")
            )
            return numbers[numbers < 1 << 63].astype(np.int64)
        digits = length - len(self._before) - len(self._after)
        if not max(1, self._width) <= digits <= max(self._width, 18):
            return np.zeros(0, np.int64)
        table = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), length)
        start, end = len(self._before), len(self._before) + digits
        figures = table[:, start:end] - np.uint8(48)  # what is below "0" wraps to above 9
        good = (figures <= 9).all(axis=1)
        good &= (table[:, :start] == np.frombuffer(self._before, np.uint8)).all(axis=1)
        good &= (table[:, end:] == np.frombuffer(self._after, np.uint8)).all(axis=1)
        if digits > max(1, self._width):
            good &= figures[:, 0] > 0
        good &= (figures[:, : max(0, digits - 18)] == 0).all(axis=1)
        numbers = np.zeros(len(keys), np.int64)
        for column in range(max(0, digits - 18), digits):
            numbers = numbers * 10 + figures[:, column]
        return numbers[good]


class Runs:
    """Numbers in order, as stretches without a gap.

    Attributes:
        firsts: The first number of each stretch, int64.
        before: How many numbers lie before it, int64.
        count: How many numbers there are.
    """

    def __init__(self, firsts: np.ndarray, before: np.ndarray, count: int) -> None:
        self.firsts = firsts
        self.before = before
        self.count = count

    @classmethod
    def of(cls, numbers: np.ndarray) -> Runs:
        """The stretches of these numbers, int64, each of them once, in any order."""
        ordered = np.sort(numbers)
        before = np.flatnonzero(np.diff(ordered, prepend=-2) > 1)
        return cls(ordered[before], before.astype(np.int64), len(ordered))

    def __getitem__(self, index: int) -> int:
        run = bisect_right(self.before, index) - 1
        return int(self.firsts[run]) + index - int(self.before[run])

    @property
    def last(self) -> int:
        """The largest number."""
        return self[self.count - 1]


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
    """The keys of numbers that are in order and have gaps.

    Attributes:
        runs: Stretches of numbers without a gap.
    """

    def __init__(self, form: KeyFormat, runs: Runs) -> None:
        self._form = form
        self.runs = runs

    def __len__(self) -> int:
        return self.runs.count

    def __getitem__(self, index: int) -> bytes:
        return self._form.key(self.runs[index])


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
