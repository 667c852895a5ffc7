"""Compressed values: gzip, zlib, lz4 frames and base64, with a limit on what comes out."""

from __future__ import annotations

import base64
import binascii
import importlib
import zlib
from typing import Any

from loaderd.data.values.arrays import UnreadableValue

MAX_BYTES = 1 << 29  # of one value, uncompressed
GZIP, ZLIB, LZ4 = b"\x1f\x8b", (b"x\x01", b"x\x5e", b"x\x9c", b"x\xda"), b"\x04\x22\x4d\x18"


def ungzip(data: bytes | memoryview) -> bytes:
    """What was compressed, at most MAX_BYTES. Raises UnreadableValue."""
    return _inflated(data, 31, "gzip")


def unzlib(data: bytes | memoryview) -> bytes:
    """What was compressed, at most MAX_BYTES. Raises UnreadableValue."""
    return _inflated(data, 15, "zlib")


def _inflated(data: bytes | memoryview, window: int, name: str) -> bytes:
    """What was compressed.

    Raises UnreadableValue: damaged, cut short, or more than MAX_BYTES.
    """
    machine = zlib.decompressobj(window)
    try:
        found = machine.decompress(data, MAX_BYTES)
    except zlib.error as error:
        raise UnreadableValue(f"it is {name} that is damaged: {error}") from None
    if machine.unconsumed_tail:
        raise UnreadableValue(f"it is {name} of more than {MAX_BYTES:,} bytes")
    if not machine.eof:
        raise UnreadableValue(f"it is {name} that is cut short")
    return found


def unlz4(data: bytes | memoryview) -> bytes:
    """What was compressed as an lz4 frame. Raises UnreadableValue, also where lz4 is missing."""
    try:
        lz4: Any = importlib.import_module("lz4.frame")
    except ImportError:
        raise UnreadableValue(
            "it is compressed with lz4, which is not installed: pip install lz4"
        ) from None
    machine = lz4.LZ4FrameDecompressor()
    try:
        found = machine.decompress(bytes(data), MAX_BYTES)
    except (RuntimeError, ValueError, EOFError) as error:
        raise UnreadableValue(f"it is lz4 that is damaged: {error}") from None
    if not machine.eof:
        more = "that is cut short" if machine.needs_input else f"of more than {MAX_BYTES:,} bytes"
        raise UnreadableValue(f"it is lz4 {more}")
    return found


def unbase64(data: bytes | memoryview) -> bytes:
    """What base64 text stands for, in either alphabet. Raises UnreadableValue."""
    text = bytes(data).translate(bytes.maketrans(b"-_", b"+/"))
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise UnreadableValue(f"it is base64 that is damaged: {error}") from None
