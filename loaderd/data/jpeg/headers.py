"""The headers of a JPEG, read strictly, and those of the JPEG that takes its place.

The latter is baseline, with restart markers and an index.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from loaderd.data.jpeg import tiles
from loaderd.data.jpeg.tiles import Data

MAX_PIXELS = 178_956_970  # what images.py refuses too
MAX_PROGRESSIVE_PIXELS = 67_108_864  # its coefficients are held at once: 2 bytes times 1.5 to 3
REFUSED = {
    0xC3: "lossless",
    0xC5: "hierarchical",
    0xC6: "hierarchical",
    0xC7: "lossless",
    0xC9: "arithmetic coding",
    0xCA: "arithmetic coding",
}
REFUSED |= {
    0xCB: "arithmetic coding",
    0xCC: "arithmetic coding",
    0xCD: "hierarchical",
    0xCE: "hierarchical",
    0xCF: "hierarchical",
}
REFUSED |= {
    0xDC: "its height comes after the image (DNL)",
    0xDE: "hierarchical",
    0xDF: "hierarchical",
}


class NotRewritable(ValueError):
    """This JPEG can't, or shouldn't, be rewritten; it may be stored as it is. The text says why."""


@dataclass(frozen=True, slots=True)
class PayloadPart:
    """A component of an image."""

    name: int
    across: int  # sampling factors
    down: int
    quantisation: int


@dataclass(slots=True)
class JpegScan:
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
class JpegImage:
    """A JPEG's headers, as far as they have been read. Sizes are in pixels."""

    frame: int = 0  # SOF marker
    width: int = 0
    height: int = 0
    parts: tuple[PayloadPart, ...] = ()
    kept: list[bytes] = field(default_factory=list)  # APPn and COM, but those of `colour`
    # what tells a decoder the colour space, apart from JFIF
    colour: list[bytes] = field(default_factory=list)
    jfif: bool = False
    quantisation: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    codes: dict[tuple[int, int], bytes] = field(default_factory=dict)
    interval: int = 0
    scans: int = 0
    end: int = 0  # byte behind the image, once it has ended

    @property
    def progressive(self) -> bool:
        """Its frame is SOF2: coefficients come in several scans."""
        return self.frame == 0xC2

    @property
    def factors(self) -> tuple[int, int]:
        """Blocks of an MCU, across and down, of the component that has most."""
        return (
            (1, 1)
            if len(self.parts) == 1
            else (max(part.across for part in self.parts), max(part.down for part in self.parts))
        )

    @property
    def mcus(self) -> tuple[int, int]:
        """MCU columns and rows."""
        across, down = self.factors
        return -(-self.width // (8 * across)), -(-self.height // (8 * down))


def headers(picture: JpegImage, data: Data, start: int) -> JpegScan | None:
    """Reads segments into `picture` until a scan begins; None at the end of the image."""
    for marker, begin, end in tiles.segments(data, start):
        if marker == tiles.EOI:
            picture.end = end
            return None
        payload = bytes(data[begin:end])
        if marker == tiles.SOS:
            return _scan(picture, payload, end)
        if marker in REFUSED:
            raise NotRewritable(REFUSED[marker])
        if marker in (0xC0, 0xC1, 0xC2):
            _frame(picture, marker, payload)
        elif marker == 0xC4:
            _codes(picture, payload)
        elif marker == 0xDB:
            _quantisation(picture, payload)
        elif marker == tiles.DRI:
            if len(payload) != 2:
                raise NotRewritable("damaged: a restart interval of the wrong length")
            picture.interval = int.from_bytes(payload, "big")
        elif tiles.APP0 <= marker <= tiles.APP15 or marker == tiles.COM:
            _kept(picture, marker, payload)
        else:
            raise NotRewritable(f"a segment of an unknown kind, FF{marker:02X}")
    raise AssertionError("segments() ends with SOS, EOI or an error")


def _kept(picture: JpegImage, marker: int, payload: bytes) -> None:
    if marker == 0xE2 and payload[:4] == b"MPF\0":
        raise NotRewritable("it holds more pictures (MPO) and stores their byte positions")
    whole = bytes((0xFF, marker)) + (len(payload) + 2).to_bytes(2, "big") + payload
    if marker == 0xEE and payload[:5] == b"Adobe":
        picture.colour.append(whole)
    elif marker == tiles.APP0 and payload[:5] == b"JFIF\0":
        if len(payload) < 14 or payload[5] != 1:
            raise NotRewritable("damaged: JFIF of an unknown version")
        picture.jfif = True
        picture.kept.append(whole)
    elif not (marker == tiles.APP9 and payload.startswith(tiles.IDENTIFIER)):
        picture.kept.append(whole)
        return
    if picture.scans:
        raise NotRewritable("its colour space comes after a scan")


def _frame(picture: JpegImage, marker: int, payload: bytes) -> None:
    if picture.frame or len(payload) < 6 or len(payload) != 6 + 3 * payload[5]:
        raise NotRewritable("damaged: a second frame, or one of the wrong length")
    if payload[0] != 8:
        raise NotRewritable(f"{payload[0]} bits a sample, not 8")
    picture.frame, picture.height, picture.width = marker, *tiles.SIZE.unpack_from(payload, 1)
    count = payload[5]
    if count not in (1, 3):
        raise NotRewritable(f"{count} components (CMYK has 4), not 1 or 3")
    picture.parts = tuple(
        PayloadPart(payload[i], payload[i + 1] >> 4, payload[i + 1] & 15, payload[i + 2])
        for i in range(6, len(payload), 3)
    )
    if len({part.name for part in picture.parts}) != count or not all(
        1 <= f <= 4 for part in picture.parts for f in (part.across, part.down)
    ):
        raise NotRewritable("damaged: impossible components")
    across, down = (
        max(part.across for part in picture.parts),
        max(part.down for part in picture.parts),
    )
    if any(across % part.across or down % part.down for part in picture.parts):
        raise NotRewritable("sampling by a fraction")
    if count > 1 and sum(part.across * part.down for part in picture.parts) > 10:
        raise NotRewritable("more than 10 blocks in a unit")
    most = MAX_PROGRESSIVE_PIXELS if picture.progressive else MAX_PIXELS
    if not 0 < picture.height * picture.width <= most:
        raise NotRewritable(f"{picture.height} x {picture.width} pixels, of at most {most}")


def _codes(picture: JpegImage, payload: bytes) -> None:
    at = 0
    while at < len(payload):
        kind, counts = payload[at], payload[at + 1 : at + 17]
        symbols = payload[at + 17 : at + 17 + sum(counts)]
        if (
            len(counts) != 16
            or len(symbols) != sum(counts)
            or len(symbols) > 256
            or kind & 0xEC
            or (kind < 16 and max(symbols, default=0) > 15)
        ):
            raise NotRewritable("damaged: an impossible Huffman table")
        picture.codes[kind >> 4, kind & 15] = counts + symbols.ljust(256, b"\0")
        at += 17 + len(symbols)


def _quantisation(picture: JpegImage, payload: bytes) -> None:
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


def _scan(picture: JpegImage, payload: bytes, begin: int) -> JpegScan:
    count = payload[0] if payload else 0
    if not picture.frame or count < 1 or len(payload) != 4 + 2 * count:
        raise NotRewritable("damaged: a scan without a frame, or of the wrong length")
    names = [part.name for part in picture.parts]
    if any(name not in names for name in payload[1:-3:2]):
        raise NotRewritable("damaged: a scan of a component that isn't there")
    members = tuple(names.index(name) for name in payload[1:-3:2])
    if any(a >= b for a, b in pairwise(members)):
        raise NotRewritable("components in an unusual order")
    if not picture.progressive and len(members) != len(picture.parts):
        raise NotRewritable("several sequential scans")
    if any(part.quantisation not in picture.quantisation for part in picture.parts):
        raise NotRewritable("damaged: no quantisation table")
    first, last, precision = payload[-3:]
    if not picture.progressive and (first, last, precision) != (0, 63, 0):
        raise NotRewritable("damaged: a sequential scan of a part of the coefficients")
    empty, tables = bytes(272), b""
    for kinds in payload[2:-3:2]:
        dc, ac = picture.codes.get((0, kinds >> 4)), picture.codes.get((1, kinds & 15))
        if (dc is None and first == 0 and precision >> 4 == 0) or (ac is None and last > 0):
            raise NotRewritable("no Huffman table")
        # A progressive scan reads one kind only: the other may be left over from before, or
        # missing.
        tables += (dc if dc and first == 0 else empty) + (ac if ac and last > 0 else empty)
    picture.scans += 1
    return JpegScan(
        members, first, last, precision >> 4, precision & 15, picture.interval, tables, begin
    )


def _segment(marker: int, payload: bytes) -> bytes:
    return bytes((0xFF, marker)) + (len(payload) + 2).to_bytes(2, "big") + payload


def trimmed(table: bytes) -> bytes:
    """Counts, and as many symbols as they say."""
    return table[: 16 + sum(table[:16])]


def assembled(
    picture: JpegImage, interval: int, codes: list[bytes], lengths: np.ndarray, scan: memoryview
) -> bytes:
    """The file: segments kept, index, tables, scan."""
    parts, (columns, rows) = picture.parts, picture.mcus
    used = sorted({part.quantisation for part in parts})
    before = b"".join(picture.colour)
    before += _segment(
        0xDB,
        b"".join(
            bytes((picture.quantisation[n][0] << 4 | n,)) + picture.quantisation[n][1] for n in used
        ),
    )
    marker = 0xC1 if any(picture.quantisation[n][0] for n in used) else 0xC0
    frame = b"".join(
        bytes((part.name, part.across << 4 | part.down, part.quantisation)) for part in parts
    )
    frame = _segment(
        marker,
        b"\x08" + tiles.SIZE.pack(picture.height, picture.width) + bytes((len(parts),)) + frame,
    )
    kinds = (0x00, 0x01, 0x10, 0x11) if len(parts) > 1 else (0x00, 0x10)
    places = (0, 1, 2, 3) if len(parts) > 1 else (0, 2)
    after = _segment(
        0xC4,
        b"".join(bytes((kind,)) + codes[place] for kind, place in zip(kinds, places, strict=True)),
    )
    after += _segment(tiles.DRI, interval.to_bytes(2, "big"))
    members = b"".join(bytes((part.name, 0x11 if i else 0x00)) for i, part in enumerate(parts))
    after += _segment(tiles.SOS, bytes((len(parts),)) + members + b"\x00\x3f\x00")
    across, down = picture.factors
    flags = (tiles.JFIF if picture.jfif else 0) | (tiles.SUBSAMPLED if max(across, down) > 1 else 0)
    tile, grid = (8 * down, 8 * across * interval), (rows, columns // interval)
    tables = before + frame + after
    if len(tables) > tiles.MAX_TABLES:
        raise NotRewritable(
            f"its headers are too long for an index: {len(tables)} bytes of at most "
            f"{tiles.MAX_TABLES}"
        )
    index = tiles.index_segment(tile, grid, flags, tables, len(before), lengths)
    return b"".join((b"\xff\xd8", *picture.kept, index, before, frame, after, scan, b"\xff\xd9"))
