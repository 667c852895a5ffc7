"""Random access inside a JPEG: the tiles under a crop as a small JPEG.

A restart marker ends a stretch of the entropy-coded scan that can be decoded without what comes
before it. If the interval divides the MCUs of a row, the stretches are rectangles: tiles.
`rewrite.rewrite` makes such a file and puts an index of its tiles in front of the tables, in a
segment that other decoders pass over (APP9, identifier "loaderd"): it travels with the file through
any store. Here the tiles that a crop needs are copied, their markers numbered anew, under the
original tables and a frame of the new size: an ordinary JPEG that any decoder reads, several times
smaller than the whole.

The pixels of the crop are those of the whole image, bit for bit, at each of the scales of SCALES:
chroma that is interpolated between neighbours reaches one pixel of the scaled image, and the tiles
taken cover the crop and that pixel around it.

The index: 30 bytes, then the length of each tile in uint16, row by row; 2 bytes a tile, 400 to 600
for a photo of 500 x 375.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

Data = bytes | bytearray | memoryview
SCALES = (8, 4, 2, 1)  # eighths of the full size that decoders do quickly
SOI, EOI, SOS, DRI = 0xD8, 0xD9, 0xDA, 0xDD
APP0, APP9, APP15, COM = 0xE0, 0xE9, 0xEF, 0xFE
SEQUENTIAL = (0xC0, 0xC1)  # baseline; extended sequential, Huffman
IDENTIFIER = b"loaderd\0"
# version, flags, tile height and width in pixels, tile rows and columns, bytes of the tables, place
# of the frame in them, bytes of the scan
HEAD = struct.Struct("<BBHHHHHHI")
VERSION = 1
JFIF, SUBSAMPLED = 1, 2  # flags
JFIF_SEGMENT = b"\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00"
MAX_TABLES = 65535  # bytes
MAX_TILES = (65535 - 2 - len(IDENTIFIER) - HEAD.size) // 2
SIZE = struct.Struct(">HH")
RENUMBERED = (0xD0 + (np.arange(1 << 16) & 7)).astype(np.uint8)


class DamagedJpeg(ValueError):
    """Bytes that aren't what a JPEG, or its index, says they are; the text says where."""


def segments(data: Data, start: int = 2) -> Iterator[tuple[int, int, int]]:
    """Go through the marker segments of a JPEG.

    Args:
        data: The file.
        start: Where the first one begins.

    Yields:
        (marker, begin, end) of each. `begin` is that of the payload, behind marker and length. The
        last one is SOS, at whose end the scan follows, or EOI.

    Raises:
        DamagedJpeg: There is no segment where one must be.
    """
    size, at = len(data), start
    while True:
        if at + 2 > size:
            raise DamagedJpeg(f"truncated: {size} bytes end where a marker should be")
        if data[at] != 0xFF:
            raise DamagedJpeg(f"no marker at byte {at}, where a segment should begin")
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
            continue
        if marker == EOI:
            yield EOI, at + 2, at + 2
            return
        if marker < 0xC0 or 0xD0 <= marker <= 0xD8:
            raise DamagedJpeg(f"marker FF{marker:02X} at byte {at} has no place between segments")
        end = at + 2 + (data[at + 2] << 8 | data[at + 3]) if at + 4 <= size else size + 1
        if end > size or end < at + 4:
            raise DamagedJpeg(
                f"truncated: the segment FF{marker:02X} at byte {at} ends at {end} of {size}"
            )
        yield marker, at + 4, end
        if marker == SOS:
            return
        at = end


def scan_bytes(data: Data, begin: int) -> int:
    """Length of a scan in bytes.

    It goes up to the next marker that is no restart marker, or to the end of the data.

    Args:
        data: The file.
        begin: Where the scan begins.
    """
    scan = np.frombuffer(data, np.uint8, len(data) - begin, begin)
    marked = np.flatnonzero(scan[:-1] == 0xFF)
    after = scan[marked + 1]
    ends = marked[(after != 0) & (after != 0xFF) & ((after & 0xF8) != 0xD0)]
    return int(ends[0]) if len(ends) else len(scan)


def tile_lengths(data: Data, begin: int, end: int) -> np.ndarray:
    """Bytes of each stretch of a scan, with the two of the marker that follows it.

    Args:
        data: The file.
        begin: Where the scan begins.
        end: Where it ends; the image's end marker stands there.
    """
    scan = np.frombuffer(data, np.uint8, end - begin, begin)
    marked = np.flatnonzero(scan[:-1] == 0xFF)
    marked = marked[(scan[marked + 1] & 0xF8) == 0xD0]
    return np.diff(np.concatenate(([0], marked + 2, [end - begin + 2])))


def index_segment(
    tile: tuple[int, int],
    grid: tuple[int, int],
    flags: int,
    tables: bytes,
    frame: int,
    lengths: np.ndarray,
) -> bytes:
    """The segment that says where the tiles are. It stands right before `tables`.

    Args:
        tile: (height, width) of a tile in pixels.
        grid: (rows, columns) of tiles.
        flags: What kind of file it is.
        tables: The segments that follow, of which the last is SOS.
        frame: Where SOF begins in `tables`.
        lengths: Bytes of each tile, row by row.

    Raises:
        ValueError: A number does not fit.
    """
    if (
        grid[0] * grid[1] != len(lengths)
        or len(lengths) > MAX_TILES
        or int(lengths.max()) > 65535
        or len(tables) > MAX_TABLES
    ):
        raise ValueError(
            f"{grid[0]} x {grid[1]} tiles of up to {int(lengths.max())} bytes don't fit an index"
        )
    head = HEAD.pack(VERSION, flags, *tile, *grid, len(tables), frame, int(lengths.sum()))
    body = IDENTIFIER + head + lengths.astype("<u2").tobytes()
    return bytes((0xFF, APP9)) + (len(body) + 2).to_bytes(2, "big") + body


class TileRun(NamedTuple):
    """A rectangle of an image as a JPEG of its own.

    At a scale of e/8 its first pixel is number left * e // 8 (exactly) of the scaled image. Its
    last column and row end where the image's do, or at a whole number of scaled pixels.

    Attributes:
        data: The JPEG.
        left: First column in pixels of the whole image.
        top: First row, likewise.
        width: Columns, likewise.
        height: Rows, likewise.
    """

    data: Data  # a JPEG; the stored one itself when the crop needs all tiles
    left: int  # pixels of the whole image
    top: int
    width: int
    height: int


class Tiles(NamedTuple):
    """A JPEG and where its tiles are.

    Holds a view of the data; lives as long as that may be read.
    """

    data: Data
    width: int  # pixels
    height: int
    tile_width: int
    tile_height: int
    margin: int  # scaled pixels around a crop that its own depend on: 0 or 1
    scan: int  # byte at which the first tile begins
    frame: int  # byte of the frame's height in `header`
    header: bytes  # everything before the scan that a decoder needs
    lengths: np.ndarray  # uint16, rows x columns of tiles
    ends: np.ndarray  # int64, rows x columns: byte after a tile's marker, from the scan's begin

    def splice(
        self, left: float, top: float, right: float, bottom: float, eighths: int = 8
    ) -> TileRun:
        """The smallest piece that shows a box of the image as the whole image would.

        Args:
            left: Left border of the box, in pixels of the whole image; fractions are allowed.
            top: Top border.
            right: Right border, exclusive.
            bottom: Bottom border, exclusive. The box is inside the image and not empty.
            eighths: Scale, in eighths.

        Raises:
            ValueError: There is no such box or scale.
            DamagedJpeg: The index is not that of this file. The whole file may still be decoded.
        """
        if not (
            0 <= left < right <= self.width
            and 0 <= top < bottom <= self.height
            and eighths in SCALES
        ):
            raise ValueError(
                f"a crop of ({left}, {top}) to ({right}, {bottom}) at {eighths}/8 of {self.width} "
                f"x {self.height} pixels"
            )
        step = 8 // eighths
        first_column, columns = self._cover(left, right, step, self.width, self.tile_width)
        first_row, rows = self._cover(top, bottom, step, self.height, self.tile_height)
        if (
            self.margin
            and min(columns * self.tile_width, self.width) - first_column * self.tile_width
            <= 4 * step
        ):
            # Decoders don't interpolate chroma of one or two columns: none but a whole image may be
            # that narrow.
            first_column, columns = (
                max(first_column - 1, 0),
                columns if first_column else min(columns + 1, self.ends.shape[1]),
            )
        x, y = first_column * self.tile_width, first_row * self.tile_height
        width, height = (
            min(columns * self.tile_width, self.width) - x,
            min(rows * self.tile_height, self.height) - y,
        )
        if width == self.width and height == self.height:
            return TileRun(self.data, 0, 0, width, height)
        ends = self.ends[first_row:rows, first_column:columns]
        return TileRun(
            self._joined(ends, self.lengths[first_row:rows, first_column], height, width),
            x,
            y,
            width,
            height,
        )

    def _cover(self, low: float, high: float, step: int, size: int, tile: int) -> tuple[int, int]:
        """Which tiles hold some scaled pixels and the margin around them.

        Args:
            low: First pixel of the whole image.
            high: End of the pixels.
            step: Pixels of the whole image in a scaled one.
            size: Pixels of the whole image.
            tile: Pixels of a tile.

        Returns:
            A half-open range of tiles.
        """
        first = (int(low) // step - self.margin) * step
        last = (-int(-high // step) + self.margin) * step
        return max(first, 0) // tile, -(-min(last, size) // tile)

    def _joined(
        self, ends: np.ndarray, first_lengths: np.ndarray, height: int, width: int
    ) -> bytearray:
        header, frame, data, scan = self.header, self.frame, self.data, self.scan
        begin = (ends[:, 0] - first_lengths).tolist()
        end = ends[:, -1].tolist()
        parts: list[Data] = [header[:frame], SIZE.pack(height, width), header[frame + 4 :]]
        shifts, at = [], len(header)
        for low, high in zip(begin, end, strict=True):
            parts.append(data[scan + low : scan + high])
            shifts.append(at - low)
            at += high - low
        out = bytearray().join(parts)
        body = np.frombuffer(out, np.uint8)
        places = (ends + np.array(shifts)[:, np.newaxis]).ravel()
        places -= 2
        # In a scan 0xFF is followed by 0 unless it begins a marker: whatever else wrote this file,
        # tiles end at markers. (On so few bytes the methods of bytes are several times faster than
        # numpy's.)
        first = body[places].tobytes()
        places += 1
        if first.strip(b"\xff") or 0 in body[places].tobytes():
            raise DamagedJpeg(
                "the index of tiles isn't that of this file: a tile doesn't end at a marker"
            )
        body[places] = RENUMBERED[: len(places)]
        body[places[-1]] = EOI
        return out


def read(data: Data) -> Tiles | None:
    """The tiles of a stored value.

    A memoryview is not copied: the result lives no longer than the data.

    Args:
        data: Any bytes.

    Returns:
        The tiles, or None if there is no index that fits.
    """
    size, at = len(data), 2
    if size < 4 or data[0] != 0xFF or data[1] != SOI:
        return None
    while True:
        if (
            at + 4 + len(IDENTIFIER) > size
            or data[at] != 0xFF
            or not (APP0 <= data[at + 1] <= APP15 or data[at + 1] == COM)
        ):
            return None
        end = at + 2 + (data[at + 2] << 8 | data[at + 3])
        if data[at + 1] == APP9 and data[at + 4 : at + 12] == IDENTIFIER:
            return _tiles(data, at + 12, end)
        at = end


def _tiles(data: Data, at: int, end: int) -> Tiles | None:
    if end > len(data) or end - at < HEAD.size:
        return None
    version, flags, tile_height, tile_width, rows, columns, tables, frame, scan_bytes = (
        HEAD.unpack_from(data, at)
    )
    count, scan = rows * columns, end + tables
    # A file that another program has written anew keeps this segment, but hardly the length of its
    # scan; splice looks at the markers. Behind the image other bytes may follow.
    if (
        version != VERSION
        or count == 0
        or end - at != HEAD.size + 2 * count
        or frame + 9 > tables
        or scan_bytes < 2
    ):
        return None
    if bytes(data[scan + scan_bytes - 2 : scan + scan_bytes]) != b"\xff\xd9":
        return None
    header = bytes(data[end:scan])
    if header[frame] != 0xFF or header[frame + 1] not in SEQUENTIAL:
        return None
    height, width = SIZE.unpack_from(header, frame + 5)
    if (
        not (tile_height and tile_width)
        or -(-height // tile_height) != rows
        or -(-width // tile_width) != columns
    ):
        return None
    lengths = np.frombuffer(data, "<u2", count, at + HEAD.size)
    ends = lengths.cumsum(dtype=np.int64)
    if ends[-1] != scan_bytes:
        return None
    begin = b"\xff\xd8" + (JFIF_SEGMENT if flags & JFIF else b"")
    margin = 1 if flags & SUBSAMPLED else 0
    shape = (rows, columns)
    return Tiles(
        data,
        width,
        height,
        tile_width,
        tile_height,
        margin,
        scan,
        len(begin) + frame + 5,
        begin + header,
        lengths.reshape(shape),
        ends.reshape(shape),
    )
