"""A file of keys, one a line: which samples a stream has, and in which order."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from loaderd.data.errors import SourceError
from loaderd.data.lmdb.store import show_key
from loaderd.data.selection.selection import Tick
from loaderd_wire.hints import counted

Ints = NDArray[np.int64]

EVERY = 4096  # samples from one tick to the next
HEX = "hex:"


class Keyed(Protocol):
    """Samples that have names: a `Source`."""

    total: int
    keys: str

    def key(self, index: int) -> str:
        """The name of a sample."""
        ...


def read_file(path: str) -> tuple[bytes, str]:
    """A file that a config names.

    Returns:
        What it holds, and a hash of that.

    Raises:
        SourceError: It cannot be read.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None
    return data, hashlib.blake2b(data, digest_size=8).hexdigest()


def listed(path: str, data: bytes, source: Keyed, tick: Tick) -> Ints:
    """The samples that a file names.

    Args:
        path: Of the file.
        data: What it holds: UTF-8 text, a key a line, as the sample's name is shown. "hex:" and
            hexadecimal digits stand for the bytes of any key.
        source: The dataset.
        tick: Called now and then.

    Returns:
        int64[lines], their indices, in the file's order.

    Raises:
        SourceError: A key is missing in the dataset, is there twice, or is no key; the text names
            file and line.
    """
    hashes = np.fromiter((hash(key) for _, key in _lines(path, data)), np.int64)
    if not len(hashes):
        raise SourceError(f"{path}: names no sample: write one key a line")
    _refuse_twice(path, data, hashes)
    if source.keys == "index":
        return _numbers(path, data, source)
    theirs = np.fromiter(_name_hashes(source, tick), np.int64, source.total)
    by_hash = np.argsort(theirs, kind="stable")
    ordered = theirs[by_hash]
    firsts, lasts = (np.searchsorted(ordered, hashes, side) for side in ("left", "right"))
    found = np.empty(len(hashes), np.int64)
    for n, (line, key) in enumerate(_lines(path, data)):
        alike = by_hash[firsts[n] : lasts[n]].tolist()
        same = [index for index in alike if source.key(index) == key]
        if not same:
            raise _missing(path, line, key, source, int((firsts == lasts).sum()))
        if len(same) > 1:
            raise SourceError(
                f"{path}:{line}: {key!r} is the name of several samples, {same[0]} and {same[1]}: "
                "no file of keys can tell them apart"
            )
        found[n] = same[0]
        if n % EVERY == 0:
            tick(source.total + n)
    return found


def _lines(path: str, data: bytes) -> Iterator[tuple[int, str]]:
    """(number, key) of each line. Raises SourceError."""
    for number, raw in enumerate(io.BytesIO(data.removeprefix(b"\xef\xbb\xbf")), 1):
        try:
            text = raw.rstrip(b"\r\n").decode()
        except UnicodeDecodeError:
            raise SourceError(
                f"{path}:{number}: is not UTF-8 text: write a key of other bytes as {HEX} and "
                "hexadecimal digits"
            ) from None
        if not text.strip():
            raise SourceError(f"{path}:{number}: is empty: write one key a line")
        if text.startswith(HEX):
            try:
                text = show_key(bytes.fromhex(text.removeprefix(HEX)))
            except ValueError:
                raise SourceError(
                    f"{path}:{number}: {text!r}: expected pairs of hexadecimal digits after {HEX}"
                ) from None
        yield number, text


def _refuse_twice(path: str, data: bytes, hashes: Ints) -> None:
    ordered = np.sort(hashes)
    suspects = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
    seen: dict[str, int] = {}
    for number, key in _lines(path, data) if suspects else ():
        if hash(key) in suspects:
            if key in seen:
                raise SourceError(
                    f"{path}:{number}: {key!r} is in line {seen[key]} already; a key may be there "
                    "once (repeat = N on the stream repeats all samples)"
                )
            seen[key] = number


def _numbers(path: str, data: bytes, source: Keyed) -> Ints:
    """The samples of a dataset whose names are their indices."""

    def numbers() -> Iterator[int]:
        for line, key in _lines(path, data):
            index = int(key) if key.isascii() and key.isdecimal() and len(key) < 19 else -1
            if not 0 <= index < source.total or str(index) != key:
                raise _missing(path, line, key, source, 0)
            yield index

    return np.fromiter(numbers(), np.int64)


def _name_hashes(source: Keyed, tick: Tick) -> Iterator[int]:
    for index in range(source.total):
        if index % EVERY == 0:
            tick(index)
        yield hash(source.key(index))


def _missing(path: str, line: int, key: str, source: Keyed, missing: int) -> SourceError:
    more = f" (so it is with {counted(missing - 1, 'more line')})" if missing > 1 else ""
    return SourceError(
        f"{path}:{line}: no sample has the key {key!r}{more}; the keys go from {source.key(0)!r} "
        f"to {source.key(source.total - 1)!r}"
    )
