"""Lossless rewriting of JPEGs for random access: baseline, restart markers at tile borders, an index of the tiles (see restart.py).

The quantised coefficients stay what they are, so a decoder gives the same pixels, bit for bit; only their Huffman coding is made anew,
with codes fitted to the image, which more than pays for the markers. Kept: EXIF, ICC, comments and every other APPn segment, quantisation,
sampling, component ids. Not kept: what lies behind the end of the image, thumbnails in it included.

The work is done by a small shared object that is built when the package is installed (native/), or else, several times slower, by the
`jpegtran` program; without both nothing can be rewritten, and everything still works.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import math
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from loaderd.data import restart
from loaderd.data.restart import Data, DamagedJpeg

GROWTH = 0.02  # by how much a file may grow
PROGRESSIVE_GROWTH = 0.15  # a progressive one: baseline codes are longer, and twice as fast to read
TILE = 64  # pixels that a tile is wide, about: a crop begins in the middle of one, on average
MAX_PIXELS = 178_956_970  # what images.py refuses too
MAX_PROGRESSIVE_PIXELS = 67_108_864  # its coefficients are held at once: 2 bytes times 1.5 to 3
MAX_SCANS = 64
JPEGTRAN_S = 60.0
SLACK = 8192  # jpeg_write.c's
NO_ROOM, LONG_TILE = -7, -8
FAULTS = {
    -1: "no memory for it",
    -2: "truncated: the scan ends early",
    -3: "damaged: a code that means nothing",
    -4: "damaged: an impossible Huffman table",
    -5: "damaged: a coefficient out of range",
    -6: "damaged: a marker is missing, or not where it should be",
}
REFUSED = {0xC3: "lossless", 0xC5: "hierarchical", 0xC6: "hierarchical", 0xC7: "lossless", 0xC9: "arithmetic coding", 0xCA: "arithmetic coding"}
REFUSED |= {0xCB: "arithmetic coding", 0xCC: "arithmetic coding", 0xCD: "hierarchical", 0xCE: "hierarchical", 0xCF: "hierarchical"}
REFUSED |= {0xDC: "its height stands behind the image (DNL)", 0xDE: "hierarchical", 0xDF: "hierarchical"}
HELP = (
    "nothing here can rewrite JPEGs for random access: install a C compiler (Debian: apt-get install gcc) and then loaderd again "
    "(pip install --force-reinstall --no-deps loaderd), or the jpegtran program (Debian: apt-get install libjpeg-turbo-progs)"
)


class NotRewritable(ValueError):
    """This JPEG can't, or shouldn't, be rewritten; it may be stored as it is. The text says why."""


@dataclass(frozen=True, slots=True)
class Part:
    """A component of an image."""

    name: int
    across: int  # sampling factors
    down: int
    quantisation: int


@dataclass(slots=True)
class Scan:
    """One scan as its headers describe it."""

    members: tuple[int, ...]  # components, by place
    first: int  # coefficients, zigzag
    last: int
    high: int
    low: int
    interval: int  # restart interval, 0: none
    codes: bytes  # 544 bytes a member
    begin: int  # byte


@dataclass(slots=True)
class Picture:
    """A JPEG's headers, as far as they have been read."""

    frame: int = 0  # SOF marker
    width: int = 0
    height: int = 0
    parts: tuple[Part, ...] = ()
    kept: list[bytes] = field(default_factory=list)  # APPn and COM, but those of `colour`
    colour: list[bytes] = field(default_factory=list)  # what tells a decoder the colour space, apart from JFIF
    jfif: bool = False
    quantisation: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    codes: dict[tuple[int, int], bytes] = field(default_factory=dict)
    interval: int = 0
    scans: int = 0

    @property
    def progressive(self) -> bool:
        return self.frame == 0xC2

    @property
    def factors(self) -> tuple[int, int]:
        """Blocks of an MCU, across and down, of the component that has most."""
        return (1, 1) if len(self.parts) == 1 else (max(part.across for part in self.parts), max(part.down for part in self.parts))

    @property
    def mcus(self) -> tuple[int, int]:
        """MCU columns and rows."""
        across, down = self.factors
        return -(-self.width // (8 * across)), -(-self.height // (8 * down))


def rewrite(data: Data, *, growth: float = GROWTH, progressive_growth: float = PROGRESSIVE_GROWTH) -> bytes:
    """The JPEG rewritten: `restart.read` finds its tiles. What has an index already comes back as it is. Raises NotRewritable: not a
    baseline or progressive Huffman JPEG of 8 bits with 1 or 3 components (CMYK, 12 bits, ...), several sequential scans, damaged, longer
    than 1 + growth times the original, or no means to do it (`available`). Any bytes may be given."""
    if restart.read(data) is not None:
        return bytes(data)
    library = _library()
    if library is None and not _jpegtran():
        raise NotRewritable(HELP)
    try:
        return _rewritten(library, data, growth, progressive_growth)
    except DamagedJpeg as error:
        raise NotRewritable(f"damaged: {error}") from None


def available() -> str:
    """What does the work, or how to get something that does."""
    library = _library()
    if library is not None:
        return f"extension {Path(library._name).name}"
    program = _jpegtran()
    return f"{program} (slower than loaderd's own extension, which is built on installation where there is a C compiler)" if program else HELP


def can_rewrite() -> bool:
    return _library() is not None or bool(_jpegtran())


@functools.cache
def _jpegtran() -> str:
    return shutil.which("jpegtran") or ""


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The shared object built from native/, if it is there and loads."""
    folder = Path(__file__).parent
    for suffix in (*importlib.machinery.EXTENSION_SUFFIXES, ".so"):
        path = folder / f"_jpeg{suffix}"
        if path.exists():
            try:
                return declare(ctypes.CDLL(str(path)))
            except (OSError, AttributeError):
                continue  # built for another machine, or another thing of that name
    return None


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


# ---- headers in ----


def _rewritten(library: ctypes.CDLL | None, data: Data, growth: float, progressive_growth: float) -> bytes:
    if len(data) < 4 or data[0] != 0xFF or data[1] != restart.SOI:
        raise NotRewritable("not a JPEG")
    picture = Picture()
    scan = _headers(picture, data, 2)
    if scan is None:
        raise NotRewritable("damaged: it ends before the image begins")
    budget = int(len(data) * (1 + (progressive_growth if picture.progressive else growth)))
    if library is None:
        return _by_jpegtran(picture, data, budget)
    columns, rows = picture.mcus
    shape = [len(picture.parts), columns, rows, picture.progressive]
    for part in picture.parts:
        across, down = (part.across, part.down) if len(picture.parts) > 1 else (1, 1)
        most_across, most_down = picture.factors
        shape += [across, down, -(-(picture.width * across) // (8 * most_across)), -(-(picture.height * down) // (8 * most_down))]
    handle = library.loaderd_jpeg_new(np.array(shape, np.int32).ctypes.data)
    if not handle:
        raise NotRewritable(FAULTS[-1])
    try:
        _read_scans(library, handle, picture, data, scan)
        return _write(library, handle, picture, budget)
    finally:
        library.loaderd_jpeg_free(handle)


def _headers(picture: Picture, data: Data, start: int) -> Scan | None:
    """Reads segments into `picture` until a scan begins; None at the end of the image."""
    for marker, begin, end in restart.segments(data, start):
        if marker == restart.EOI:
            return None
        payload = bytes(data[begin:end])
        if marker == restart.SOS:
            return _scan(picture, payload, end)
        if marker in REFUSED:
            raise NotRewritable(REFUSED[marker])
        if marker in (0xC0, 0xC1, 0xC2):
            _frame(picture, marker, payload)
        elif marker == 0xC4:
            _codes(picture, payload)
        elif marker == 0xDB:
            _quantisation(picture, payload)
        elif marker == restart.DRI:
            if len(payload) != 2:
                raise NotRewritable("damaged: a restart interval of the wrong length")
            picture.interval = int.from_bytes(payload, "big")
        elif restart.APP0 <= marker <= restart.APP15 or marker == restart.COM:
            _kept(picture, marker, payload)
        else:
            raise NotRewritable(f"a segment of an unknown kind, FF{marker:02X}")
    raise AssertionError("segments() ends with SOS, EOI or an error")


def _kept(picture: Picture, marker: int, payload: bytes) -> None:
    whole = bytes((0xFF, marker)) + (len(payload) + 2).to_bytes(2, "big") + payload
    if marker == 0xEE and payload[:5] == b"Adobe":
        picture.colour.append(whole)
    elif marker == restart.APP0 and payload[:5] == b"JFIF\0":
        picture.jfif = True
        picture.kept.append(whole)
    elif not (marker == restart.APP9 and payload.startswith(restart.IDENTIFIER)):
        picture.kept.append(whole)
        return
    if picture.scans:
        raise NotRewritable("its colour space stands behind a scan")


def _frame(picture: Picture, marker: int, payload: bytes) -> None:
    if picture.frame or len(payload) < 6 or len(payload) != 6 + 3 * payload[5]:
        raise NotRewritable("damaged: a second frame, or one of the wrong length")
    if payload[0] != 8:
        raise NotRewritable(f"{payload[0]} bits a sample, not 8")
    picture.frame, picture.height, picture.width = marker, *restart.SIZE.unpack_from(payload, 1)
    count = payload[5]
    if count not in (1, 3):
        raise NotRewritable(f"{count} components (CMYK has 4), not 1 or 3")
    picture.parts = tuple(Part(payload[i], payload[i + 1] >> 4, payload[i + 1] & 15, payload[i + 2]) for i in range(6, len(payload), 3))
    if len({part.name for part in picture.parts}) != count or not all(1 <= f <= 4 for part in picture.parts for f in (part.across, part.down)):
        raise NotRewritable("damaged: impossible components")
    across, down = max(part.across for part in picture.parts), max(part.down for part in picture.parts)
    if any(across % part.across or down % part.down for part in picture.parts):
        raise NotRewritable("sampling by a fraction")
    if count > 1 and sum(part.across * part.down for part in picture.parts) > 10:
        raise NotRewritable("more than 10 blocks in a unit")
    most = MAX_PROGRESSIVE_PIXELS if picture.progressive else MAX_PIXELS
    if not 0 < picture.height * picture.width <= most:
        raise NotRewritable(f"{picture.height} x {picture.width} pixels, of at most {most}")


def _codes(picture: Picture, payload: bytes) -> None:
    at = 0
    while at < len(payload):
        kind, counts = payload[at], payload[at + 1 : at + 17]
        symbols = payload[at + 17 : at + 17 + sum(counts)]
        if len(counts) != 16 or len(symbols) != sum(counts) or len(symbols) > 256 or kind >> 4 > 1 or kind & 15 > 3:
            raise NotRewritable("damaged: an impossible Huffman table")
        picture.codes[kind >> 4, kind & 15] = counts + symbols.ljust(256, b"\0")
        at += 17 + len(symbols)


def _quantisation(picture: Picture, payload: bytes) -> None:
    if picture.scans:
        raise NotRewritable("its quantisation changes between scans")
    at = 0
    while at < len(payload):
        wide, number = payload[at] >> 4, payload[at] & 15
        values = payload[at + 1 : at + 65 + 64 * wide]
        if wide > 1 or number > 3 or len(values) != 64 * (1 + wide):
            raise NotRewritable("damaged: an impossible quantisation table")
        picture.quantisation[number] = (wide, values)
        at += 1 + len(values)


def _scan(picture: Picture, payload: bytes, begin: int) -> Scan:
    count = payload[0] if payload else 0
    if not picture.frame or count < 1 or len(payload) != 4 + 2 * count:
        raise NotRewritable("damaged: a scan without a frame, or of the wrong length")
    names = [part.name for part in picture.parts]
    if any(name not in names for name in payload[1:-3:2]):
        raise NotRewritable("damaged: a scan of a component that isn't there")
    members = tuple(names.index(name) for name in payload[1:-3:2])
    if any(a >= b for a, b in zip(members, members[1:], strict=False)):
        raise NotRewritable("components in an unusual order")
    if not picture.progressive and len(members) != len(picture.parts):
        raise NotRewritable("several sequential scans")
    if any(part.quantisation not in picture.quantisation for part in picture.parts):
        raise NotRewritable("damaged: no quantisation table")
    first, last, precision = payload[-3:]
    if not picture.progressive:
        first, last, precision = 0, 63, 0  # decoders don't look at these
    empty, tables = bytes(272), b""
    for kinds in payload[2:-3:2]:
        dc, ac = picture.codes.get((0, kinds >> 4)), picture.codes.get((1, kinds & 15))
        if (dc is None and first == 0 and precision >> 4 == 0) or (ac is None and last > 0):
            raise NotRewritable("no Huffman table")
        # A progressive scan reads one kind only: the other may be left over from before, or missing.
        tables += (dc if dc and first == 0 else empty) + (ac if ac and last > 0 else empty)
    picture.scans += 1
    return Scan(members, first, last, precision >> 4, precision & 15, picture.interval, tables, begin)


# ---- the work ----


def _read_scans(library: ctypes.CDLL, handle: int, picture: Picture, data: Data, scan: Scan | None) -> None:
    known = np.full((len(picture.parts), 64), -1)  # the lowest bit of each coefficient that has come
    source = np.frombuffer(data, np.uint8)
    while scan is not None:
        if picture.progressive:
            _advance(known, scan)
        elif picture.scans > 1:
            raise NotRewritable("several sequential scans")
        how = np.array([len(scan.members), scan.interval, scan.first, scan.last, scan.high, scan.low, *scan.members], np.int32)
        address = source.ctypes.data + scan.begin
        used = library.loaderd_jpeg_scan(handle, address, len(data) - scan.begin, how.ctypes.data, scan.codes)
        _check(used)
        if picture.scans == MAX_SCANS:
            raise NotRewritable(f"more than {MAX_SCANS} scans")
        scan = _headers(picture, data, scan.begin + used)
    if picture.progressive:
        if known.any():
            raise NotRewritable("its progressive scans don't say everything: decoders guess the rest")
        _check(library.loaderd_jpeg_finish(handle))


def _advance(known: np.ndarray, scan: Scan) -> None:
    """Checks that a progressive scan follows those before it, and notes what it adds."""
    fits = scan.first <= scan.last <= 63 and scan.low <= 13 and (scan.last == 0 if scan.first == 0 else len(scan.members) == 1)
    part = known[list(scan.members), scan.first : scan.last + 1]
    refines = scan.high == scan.low + 1 and (part == scan.high).all()
    if not fits or not (refines or (scan.high == 0 and (part == -1).all())):
        raise NotRewritable("damaged: progressive scans that don't fit together")
    known[list(scan.members), scan.first : scan.last + 1] = scan.low


def _check(result: int) -> None:
    if result < 0:
        raise NotRewritable(FAULTS.get(result, f"error {result}"))


@functools.lru_cache(1024)
def intervals(columns: int, rows: int, across: int) -> tuple[int, ...]:
    """Restart intervals (in MCUs of `across` blocks) that make tiles, best first: the width nearest to TILE, then wider ones, which take
    less room."""
    fit = [n for n in range(1, columns + 1) if columns % n == 0 and columns // n * rows <= restart.MAX_TILES]
    if not fit:
        return ()
    best = min(fit, key=lambda n: (abs(math.log2(n * across * 8 / TILE)), n))
    wider = [n for n in fit if n > best]
    return tuple(dict.fromkeys([best, *wider[:1], *fit[-1:]]))


def _write(library: ctypes.CDLL, handle: int, picture: Picture, budget: int) -> bytes:
    columns, rows = picture.mcus
    out = np.empty(budget + SLACK, np.uint8)
    tables = np.empty((4, 272), np.uint8)
    for interval in intervals(*picture.mcus, picture.factors[0]):
        lengths = np.empty(columns // interval * rows, np.uint16)
        used = library.loaderd_jpeg_write(handle, interval, out.ctypes.data, len(out), lengths.ctypes.data, tables.ctypes.data)
        if used in (NO_ROOM, LONG_TILE):
            continue
        _check(used)
        codes = [bytes(table[:16]) + bytes(table[16 : 16 + int(table[:16].sum())]) for table in tables]
        result = _assembled(picture, interval, codes, lengths, out[:used].data)
        if len(result) <= budget:
            return result
    raise NotRewritable(f"it would be longer than {budget} bytes")


def _by_jpegtran(picture: Picture, data: Data, budget: int) -> bytes:
    for interval in intervals(*picture.mcus, picture.factors[0]):
        command = [_jpegtran(), "-copy", "none", "-optimize", "-restart", f"{interval}B"]
        try:
            done = subprocess.run(command, input=data, capture_output=True, timeout=JPEGTRAN_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotRewritable(f"jpegtran failed: {error}") from None
        if done.returncode or done.stderr:
            raise NotRewritable(f"jpegtran: {done.stderr.decode(errors='replace').strip()[:200]}")
        made = Picture()
        scan = _headers(made, done.stdout, 2)
        if scan is None or made.frame not in restart.SEQUENTIAL or scan.interval != interval:
            raise NotRewritable("jpegtran made something else than was asked for")
        lengths = restart.tile_lengths(done.stdout, scan.begin, len(done.stdout) - 2)
        if len(lengths) * interval != made.mcus[0] * made.mcus[1] or lengths.max() > 65535:
            continue
        made.kept, made.colour, made.jfif = picture.kept, picture.colour, picture.jfif
        codes = [made.codes.get(key, bytes(272)) for key in ((0, 0), (0, 1), (1, 0), (1, 1))]
        codes = [table[:16] + table[16 : 16 + sum(table[:16])] for table in codes]
        result = _assembled(made, interval, codes, lengths, memoryview(done.stdout)[scan.begin : -2])
        if len(result) <= budget:
            return result
    raise NotRewritable(f"it would be longer than {budget} bytes")


# ---- headers out ----


def _segment(marker: int, payload: bytes) -> bytes:
    return bytes((0xFF, marker)) + (len(payload) + 2).to_bytes(2, "big") + payload


def _assembled(picture: Picture, interval: int, codes: list[bytes], lengths: np.ndarray, scan: memoryview) -> bytes:
    """The file: segments kept, index, tables, scan."""
    parts, (columns, rows) = picture.parts, picture.mcus
    used = sorted({part.quantisation for part in parts})
    before = b"".join(picture.colour)
    before += _segment(0xDB, b"".join(bytes((picture.quantisation[n][0] << 4 | n,)) + picture.quantisation[n][1] for n in used))
    marker = 0xC1 if any(picture.quantisation[n][0] for n in used) else 0xC0
    frame = b"".join(bytes((part.name, part.across << 4 | part.down, part.quantisation)) for part in parts)
    frame = _segment(marker, b"\x08" + restart.SIZE.pack(picture.height, picture.width) + bytes((len(parts),)) + frame)
    kinds = (0x00, 0x01, 0x10, 0x11) if len(parts) > 1 else (0x00, 0x10)
    places = (0, 1, 2, 3) if len(parts) > 1 else (0, 2)
    after = _segment(0xC4, b"".join(bytes((kind,)) + codes[place] for kind, place in zip(kinds, places, strict=True)))
    after += _segment(restart.DRI, interval.to_bytes(2, "big"))
    members = b"".join(bytes((part.name, 0x11 if i else 0x00)) for i, part in enumerate(parts))
    after += _segment(restart.SOS, bytes((len(parts),)) + members + b"\x00\x3f\x00")
    across, down = picture.factors
    flags = (restart.JFIF if picture.jfif else 0) | (restart.SUBSAMPLED if max(across, down) > 1 else 0)
    tile, grid = (8 * down, 8 * across * interval), (rows, columns // interval)
    index = restart.index_segment(tile, grid, flags, before + frame + after, len(before), lengths)
    return b"".join((b"\xff\xd8", *picture.kept, index, before, frame, after, scan, b"\xff\xd9"))
