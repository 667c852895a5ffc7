"""Lossless rewriting of JPEGs for random access.

Baseline, restart markers at tile borders, an index of the tiles (see tiles.py).

The quantised coefficients stay what they are, so a decoder gives the same pixels, bit for bit; only
their Huffman coding is made anew, with codes fitted to the image, which more than pays for the
markers. Kept: EXIF, ICC, comments and every other APPn segment, quantisation, sampling, component
ids, and what lies behind the end of the image, byte by byte. A file that tells where in it further
pictures lie (MPO) stays as it is.

The work is done by a small shared object that is built when the package is installed (native/), or
else, several times slower, by the `jpegtran` program; without both nothing can be rewritten, and
everything still works.
"""

from __future__ import annotations

import ctypes
import functools
import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

from loaderd.data.jpeg import tiles
from loaderd.data.jpeg.headers import (
    JpegImage,
    JpegScan,
    NotRewritable,
    assembled,
    headers,
    trimmed,
)
from loaderd.data.jpeg.tiles import DamagedJpeg, Data
from loaderd.data.native_library import JPEG, REINSTALL, load

GROWTH = 0.02  # by how much a file may grow
PROGRESSIVE_GROWTH = 0.15  # a progressive one: baseline codes are longer, and twice as fast to read
# Pixels that a tile is wide, about, and the part of the width if that is more: narrower ones no
# longer make crops' pieces faster to decode.
TILE = 32
TILE_PART = 24
MAX_SCANS = 64
JPEGTRAN_S = 60.0
SLACK = 8192  # jpeg_write.c's
NO_ROOM, LONG_TILE = -7, -8
FAULTS = {
    -1: "no memory for it",
    -2: "truncated: the scan ends early",
    -3: "damaged: an undefined code",
    -4: "damaged: an impossible Huffman table",
    -5: "damaged: a coefficient out of range",
    -6: "damaged: a marker is missing, or not where it should be",
}
HELP = (
    "nothing here can rewrite JPEGs for random access: install a C compiler (Debian: apt-get "
    "install gcc) and then loaderd again "
    f"({REINSTALL}), or the jpegtran program (Debian: apt-get install libjpeg-turbo-progs)"
)


def rewrite(
    data: Data, *, growth: float = GROWTH, progressive_growth: float = PROGRESSIVE_GROWTH
) -> bytes:
    """The JPEG rewritten: `tiles.read` finds its tiles.

    What has an index already comes back as it is. Raises NotRewritable: not a baseline or
    progressive Huffman JPEG of 8 bits with 1 or 3 components (CMYK, 12 bits, ...), several
    sequential scans, damaged, longer than 1 + growth times the original, or no means to do it
    (`available`). Any bytes may be given.
    """
    if tiles.read(data) is not None:
        return bytes(data)
    library = _library()
    try:
        if library is None and not _jpegtran():
            return _as_it_is(data)
        return _rewritten(library, data, growth, progressive_growth)
    except DamagedJpeg as error:
        raise NotRewritable(f"damaged: {error}") from None
    except MemoryError:
        raise NotRewritable(FAULTS[-1]) from None


def _as_it_is(data: Data) -> bytes:
    """What can be done without means to rewrite.

    What has fitting restart markers already, as some cameras make them, needs only an index.
    """
    try:
        return indexed(data)
    except NotRewritable:
        raise NotRewritable(HELP) from None


def available() -> str:
    """What does the work, or how to get something that does."""
    library = _library()
    if library is not None:
        return f"extension {Path(library._name).name}"
    program = _jpegtran()
    return (
        (
            f"{program} (slower than loaderd's own extension, which is built on installation where "
            "there is a C compiler)"
        )
        if program
        else HELP
    )


def can_rewrite() -> bool:
    """Whether the extension or a jpegtran is there."""
    return _library() is not None or bool(_jpegtran())


@functools.cache
def _jpegtran() -> str:
    return shutil.which("jpegtran") or ""


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The shared object, if it is there and loads."""
    return load(JPEG, declare)


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """The same library with the types of its functions. Raises AttributeError if it isn't ours."""
    pointer, size = ctypes.c_void_p, ctypes.c_uint64
    declared = {
        "new": (pointer, [pointer]),
        "free": (None, [pointer]),
        "scan": (ctypes.c_int64, [pointer, pointer, size, pointer, ctypes.c_char_p]),
        "finish": (ctypes.c_int64, [pointer]),
        "write": (ctypes.c_int64, [pointer, ctypes.c_int32, pointer, size, pointer, pointer]),
    }
    for name, (result, arguments) in declared.items():
        function = getattr(library, f"loaderd_jpeg_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def _rewritten(
    library: ctypes.CDLL | None, data: Data, growth: float, progressive_growth: float
) -> bytes:
    if len(data) < 4 or data[0] != 0xFF or data[1] != tiles.SOI:
        raise NotRewritable("not a JPEG")
    picture = JpegImage()
    scan = headers(picture, data, 2)
    if scan is None:
        raise NotRewritable("damaged: it ends before the image begins")
    budget = int(len(data) * (1 + (progressive_growth if picture.progressive else growth)))
    if library is None:
        _walk(picture, data, scan, lambda scan: tiles.scan_bytes(data, scan.begin))
        behind = bytes(data[picture.end :])
        return _by_jpegtran(picture, data, budget - len(behind)) + behind
    shape = _shape(picture)
    handle = library.loaderd_jpeg_new(shape.ctypes.data)
    if not handle:
        raise NotRewritable(FAULTS[-1])
    try:
        _walk(picture, data, scan, lambda scan: _read(library, handle, data, scan))
        if picture.progressive:
            _checked(library.loaderd_jpeg_finish(handle))
        behind = bytes(data[picture.end :])
        return _write(library, handle, picture, budget - len(behind)) + behind
    finally:
        library.loaderd_jpeg_free(handle)


def _shape(picture: JpegImage) -> np.ndarray:
    """What loaderd_jpeg_new wants to know."""
    shape = [len(picture.parts), *picture.mcus, picture.progressive]
    most_across, most_down = picture.factors
    for part in picture.parts:
        across, down = (part.across, part.down) if len(picture.parts) > 1 else (1, 1)
        shape += [
            across,
            down,
            -(-(picture.width * across) // (8 * most_across)),
            -(-(picture.height * down) // (8 * most_down)),
        ]
    return np.array(shape, np.int32)


def _read(library: ctypes.CDLL, handle: int, data: Data, scan: JpegScan) -> int:
    how = np.array(
        [
            len(scan.members),
            scan.interval,
            scan.first,
            scan.last,
            scan.high,
            scan.low,
            *scan.members,
        ],
        np.int32,
    )
    source = np.frombuffer(data, np.uint8, len(data) - scan.begin, scan.begin)
    return _checked(
        library.loaderd_jpeg_scan(
            handle, source.ctypes.data, len(source), how.ctypes.data, scan.codes
        )
    )


def _walk(
    picture: JpegImage, data: Data, scan: JpegScan | None, take: Callable[[JpegScan], int]
) -> None:
    """Goes through all scans; `take` says how many bytes one has.

    Raises NotRewritable unless they make the whole picture and no more.
    """
    # the lowest bit of each coefficient that has come
    known = np.full((len(picture.parts), 64), -1)
    while scan is not None:
        if picture.progressive:
            _advance(known, scan)
        elif picture.scans > 1:
            raise NotRewritable("several sequential scans")
        if picture.scans == MAX_SCANS:
            raise NotRewritable(f"{MAX_SCANS} scans or more")
        scan = headers(picture, data, scan.begin + take(scan))
    if picture.progressive and known.any():
        raise NotRewritable("its progressive scans are incomplete: decoders guess the rest")


def _advance(known: np.ndarray, scan: JpegScan) -> None:
    """Checks that a progressive scan follows those before it, and notes what it adds."""
    fits = (
        scan.first <= scan.last <= 63
        and scan.low <= 13
        and (scan.last == 0 if scan.first == 0 else len(scan.members) == 1)
    )
    part = known[list(scan.members), scan.first : scan.last + 1]
    refines = scan.high == scan.low + 1 and (part == scan.high).all()
    if not fits or not (refines or (scan.high == 0 and (part == -1).all())):
        raise NotRewritable("damaged: its progressive scans contradict each other")
    known[list(scan.members), scan.first : scan.last + 1] = scan.low


def _checked(result: int) -> int:
    if result < 0:
        raise NotRewritable(FAULTS.get(result, f"error {result}"))
    return result


@functools.lru_cache(1024)
def intervals(columns: int, rows: int, across: int) -> tuple[int, ...]:
    """Restart intervals (in MCUs of `across` blocks) that make tiles, best first.

    The width nearest to what is wanted comes first, then wider ones, which take less room, up to
    whole rows.
    """
    fit = [
        n
        for n in range(1, columns + 1)
        if columns % n == 0 and columns // n * rows <= tiles.MAX_TILES
    ]
    if not fit:
        return ()
    wanted = max(TILE / (8 * across), columns / TILE_PART)
    best = min(fit, key=lambda n: (abs(math.log2(n / wanted)), n))
    wider = [n for n in fit if n > best]
    return tuple(dict.fromkeys([best, *wider[:2], fit[-1]]))


def _write(library: ctypes.CDLL, handle: int, picture: JpegImage, budget: int) -> bytes:
    columns, rows = picture.mcus
    out = np.empty(budget + SLACK, np.uint8)
    tables = np.empty(4 * 272, np.uint8)
    for interval in intervals(*picture.mcus, picture.factors[0]):
        lengths = np.empty(columns // interval * rows, np.uint16)
        used = library.loaderd_jpeg_write(
            handle, interval, out.ctypes.data, len(out), lengths.ctypes.data, tables.ctypes.data
        )
        if used in (NO_ROOM, LONG_TILE):
            continue
        _checked(used)
        codes = [trimmed(tables[i : i + 272].tobytes()) for i in range(0, 4 * 272, 272)]
        result = assembled(picture, interval, codes, lengths, out[:used].data)
        if len(result) <= budget:
            return result
    raise NotRewritable("it would become much longer")


def _by_jpegtran(picture: JpegImage, data: Data, budget: int) -> bytes:
    for interval in intervals(*picture.mcus, picture.factors[0]):
        command = [_jpegtran(), "-copy", "all", "-optimize", "-restart", f"{interval}B"]
        try:
            done = subprocess.run(
                command, input=data, capture_output=True, timeout=JPEGTRAN_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotRewritable(f"jpegtran failed: {error}") from None
        if done.returncode or done.stderr:
            raise NotRewritable(f"jpegtran: {done.stderr.decode(errors='replace').strip()[:200]}")
        result = indexed(done.stdout)
        if len(result) <= budget:
            return result
    raise NotRewritable("it would become much longer")


def indexed(data: Data) -> bytes:
    """The same file with an index in front, if its restart markers fall on tile borders.

    It has to be baseline. Nothing is coded anew, nothing but Python needed. Only the markers of the
    scan are looked at. Raises NotRewritable, DamagedJpeg.
    """
    picture = JpegImage()
    scan = headers(picture, data, 2)
    if scan is None or picture.progressive:
        raise NotRewritable("not a sequential JPEG")
    end = scan.begin + tiles.scan_bytes(data, scan.begin)
    if headers(picture, data, end) is not None:
        raise NotRewritable("several sequential scans")
    columns, rows = picture.mcus
    if scan.interval == 0 or columns % scan.interval:
        raise NotRewritable("its restart markers, if any, don't fall on tile borders")
    lengths = tiles.tile_lengths(data, scan.begin, end)
    if (
        len(lengths) * scan.interval != columns * rows
        or len(lengths) > tiles.MAX_TILES
        or lengths.max() > 65535
    ):
        raise NotRewritable("too many or too long tiles, or markers missing")
    codes = {
        (kind, part): scan.codes[544 * part + 272 * kind :][:272]
        for part in range(len(picture.parts))
        for kind in (0, 1)
    }
    if any(
        codes[kind, part] != codes[kind, 1]
        for kind in (0, 1)
        for part in range(2, len(picture.parts))
    ):
        raise NotRewritable("different codes for the second component and the third")
    table = [trimmed(codes.get((kind, part), bytes(272))) for kind in (0, 1) for part in (0, 1)]
    return assembled(
        picture, scan.interval, table, lengths, memoryview(data)[scan.begin : end]
    ) + bytes(data[picture.end :])
