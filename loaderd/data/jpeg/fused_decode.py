"""From a stored JPEG to the pixels of a plan in one call.

The work is done by a small shared object that is built when the package is installed
(native/crop.h says what it does). Without it, and for whatever it doesn't read, simplejpeg and
`images/resize.py` do the same, two to four times slower. Pixels differ by one level at most then,
so the fingerprint of a stream's content says which it was.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from typing import NamedTuple

import numpy as np

from loaderd.data.jpeg.tiles import Data
from loaderd.data.native_library import CROP, load

PLAN = struct.Struct("=2d4i2d4i4i")
# crop.c's forms: where channels stand, and what they are
BYTES_LAST, BYTES_FIRST, FLOATS_LAST, FLOATS_FIRST = range(4)
# bytes of scratch memory that a thread begins with, and keeps at most
ROOM, MAX_KEPT = 1 << 20, 64 << 20


class Span(NamedTuple):
    """A part of an axis of the picture.

    The pixels [first, first + pixels) of `size` that show [begin, end) of the stored picture.
    """

    begin: float
    end: float
    size: int
    first: int
    pixels: int
    mirrored: bool = False


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.room = _aligned(ROOM)


def _aligned(size: int) -> np.ndarray:
    room = np.empty(size + 64, np.uint8)
    start = -_address(room) % 64
    return room[start : start + size]


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


_scratch = _Scratch()


@functools.cache
def library() -> ctypes.CDLL | None:
    """The shared object, if it is there and loads."""
    return load(CROP, _declare)


def _declare(found: ctypes.CDLL) -> None:
    pointer, size = ctypes.c_void_p, ctypes.c_uint64
    found.loaderd_crop_look.argtypes = [pointer, size, pointer]
    found.loaderd_crop.restype = ctypes.c_int64
    found.loaderd_crop.argtypes = [pointer, size, ctypes.c_char_p, pointer, pointer, pointer, size]


def version() -> str:
    """Tells pixels of resized JPEGs apart by what made them."""
    return "missing" if library() is None else str(CROP.version)


def look(data: Data) -> tuple[int, int] | None:
    """(height, width) of a JPEG that `crop` reads; None for any other bytes."""
    found = library()
    if found is None:
        return None
    stored, out = np.frombuffer(data, np.uint8), np.empty(3, np.int32)
    return (
        (int(out[0]), int(out[1]))
        if found.loaderd_crop_look(_address(stored), len(stored), _address(out)) == 0
        else None
    )


def crop(
    data: Data,
    rows: Span,
    columns: Span,
    eighths: int,
    levels: np.ndarray | None,
    out: np.ndarray,
    *,
    planar: bool = False,
    plain: bool = False,
) -> bool:
    """Decode the pixels of a plan.

    The same plan gives the same bytes whether the JPEG has an index of tiles or not.

    Args:
        data: The file.
        rows: Of the picture.
        columns: Of the picture.
        eighths: The scale at which the JPEG is decoded.
        levels: float32, channels x 256: the level of each byte. None: bytes stay what they are.
        out: [height, width, channels] (channels first if planar), contiguous; channels are 1
            (luma) or 3 (RGB). uint8, or with levels float32. Takes the pixels.
        planar: See `out`.
        plain: By the code for any machine, which gives the same.

    Returns:
        False if the JPEG is damaged or can't be read here: then `out` may hold anything.
    """
    found = library()
    if found is None:
        return False
    stored = np.frombuffer(data, np.uint8)
    form = (BYTES_LAST if levels is None else FLOATS_LAST) + planar
    plan = PLAN.pack(*rows, *columns, eighths, out.shape[0 if planar else 2], form, plain)
    table = 0 if levels is None else _address(levels)
    room = _scratch.room
    while True:
        result = found.loaderd_crop(
            _address(stored), len(stored), plan, table, _address(out), _address(room), len(room)
        )
        if result <= 0:
            return result == 0
        try:
            room = _aligned(result + result // 4)
        except MemoryError:
            return False
        if len(room) <= MAX_KEPT:
            _scratch.room = room
