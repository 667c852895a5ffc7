"""Where a picture's pixels come from: an array, or a stored JPEG.

Of a JPEG only the part that is wanted is decoded, at a fraction of its size.

Both give the same for the same question whether a JPEG has an index of tiles or not: what is
spliced shows the pixels of the whole.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loaderd.data.images.decode import (
    codec_of,
    decode,
    image_error,
    jpeg_head,
    jpeg_mode,
    jpeg_pixels,
)
from loaderd.data.images.image_error import MAX_PIXELS, allowed
from loaderd.data.jpeg import fused_decode
from loaderd.data.jpeg import tiles as jpeg_tiles
from loaderd.data.jpeg.tiles import SCALES, SIZE, DamagedJpeg, Tiles

# A JPEG whose scaled result has a shorter side is decoded whole: decoders choose a scale by the
# size that comes out, which for so few pixels more than one has.
LEAST_SIDE = 16
SAVES = 0.9  # a part that ends above this share of the height is decoded from a file cut short
# what decoders say of the scan that they leave unread; their first complaint is what is told
BEHIND = "extraneous bytes before marker"


class ImagePart(NamedTuple):
    """A rectangle of scaled pixels, half-open, at a scale of eighths / 8."""

    top: int
    left: int
    bottom: int
    right: int
    eighths: int = 8


class Rows(NamedTuple):
    """What is known of a JPEG whose rows of MCUs come one after the other."""

    place: int  # byte of the height in its header
    height: int  # pixels of a row


class ArraySource:
    """Pixels that are there: height x width x channels."""

    scales = (8,)

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.height, self.width, self.channels = array.shape
        self.dtype = array.dtype

    def read(self, part: ImagePart) -> np.ndarray:
        """A view of the part; the array itself if that is all of it."""
        return _cut(self.array, *part[:4])


class JpegSource:
    """A stored JPEG that simplejpeg reads. Holds a view of the data."""

    scales = SCALES
    dtype = np.dtype(np.uint8)

    def __init__(
        self,
        data: bytes | memoryview,
        mode: str,
        height: int,
        width: int,
        tiles: Tiles | None,
        rows: Rows | None = None,
        fusable: bool = False,
        *,
        limit: int = MAX_PIXELS,
    ) -> None:
        """Decode nothing yet.

        Args:
            data: The file.
            mode: "rgb" or "gray".
            height: In pixels.
            width: In pixels.
            tiles: What is known of the file, if anything, so that not all of it has to be decoded.
            rows: Likewise.
            fusable: Nothing is known yet, because `fused_decode.crop` may not need it.
            limit: Most pixels.
        """
        self.data = data
        self.mode = mode
        self.height, self.width = height, width
        self.channels = 1 if mode == "gray" else 3
        self.fusable = fusable
        self._known = not fusable
        self._tiles = tiles
        self._rows = rows
        self._limit = limit

    def read(self, part: ImagePart) -> np.ndarray:
        """The part's pixels, in a new array.

        Raises ValueError for a file that is damaged: then `whole` may know more.
        """
        top, left, bottom, right, eighths = part
        step = 8 // eighths
        if not self._known:
            self._tiles, self._known = jpeg_tiles.read(self.data), True
            self._rows = None if self._tiles is not None else _rows(self.data)
        if self._tiles is None:
            if self._rows is not None and (bottom + 1) * step < SAVES * self.height:
                return self._cut_short(self._rows, part)
            return _cut(
                self._decode(self.data, self.height, self.width, eighths), top, left, bottom, right
            )
        piece = self._tiles.splice(
            left * step,
            top * step,
            min(right * step, self.width),
            min(bottom * step, self.height),
            eighths,
        )
        image = self._decode(piece.data, piece.height, piece.width, eighths)
        y, x = piece.top // step, piece.left // step
        return _cut(image, top - y, left - x, bottom - y, right - x)

    def _cut_short(self, rows: Rows, part: ImagePart) -> np.ndarray:
        """The same from a file whose header says that it ends behind the part.

        That is behind the row of MCUs below it: decoders don't read further.
        """
        top, left, bottom, right, eighths = part
        height = -(-(bottom + 1) * (8 // eighths) // rows.height) * rows.height
        if height >= self.height:
            return _cut(
                self._decode(self.data, self.height, self.width, eighths), top, left, bottom, right
            )
        data = bytearray(self.data)
        SIZE.pack_into(data, rows.place, height, self.width)
        out, scaled = self._room(height, self.width, eighths)
        try:
            jpeg_pixels(data, out, **scaled)
        except ValueError as error:
            if BEHIND not in str(error):
                raise
        return _cut(out, top, left, bottom, right)

    def whole(self) -> ArraySource:
        """All of its pixels, by whatever decoder can. Raises ImageError."""
        return ArraySource(decode(self.data, self.mode, self._limit))

    def _decode(self, data: jpeg_tiles.Data, height: int, width: int, eighths: int) -> np.ndarray:
        out, scaled = self._room(height, width, eighths)
        jpeg_pixels(data, out, **scaled)
        return out

    def _room(self, height: int, width: int, eighths: int) -> tuple[np.ndarray, dict[str, int]]:
        """Where an image of this size goes at this scale, and what tells the decoder so."""
        high, wide = -(-height * eighths // 8), -(-width * eighths // 8)
        try:
            out = np.empty((high, wide, self.channels), np.uint8)
        except MemoryError as error:
            raise image_error(error, "jpeg") from None
        return out, {} if eighths == 8 else {"min_height": high, "min_width": wide}


def _cut(image: np.ndarray, top: int, left: int, bottom: int, right: int) -> np.ndarray:
    all_of_it = (top, left, bottom, right) == (0, 0, *image.shape[:2])
    return image if all_of_it else image[top:bottom, left:right]


def _rows(data: jpeg_tiles.Data) -> Rows | None:
    """The rows of a file, where they come one after the other.

    That is in one sequential scan of all components; None for any other file.
    """
    rows, parts = None, 0
    try:
        for marker, begin, end in jpeg_tiles.segments(data):
            if marker in jpeg_tiles.SEQUENTIAL and end - begin >= 9:
                parts = data[begin + 5]
                down = (
                    max((data[begin + 7 + 3 * part] & 15 for part in range(parts)), default=0)
                    if end - begin == 6 + 3 * parts
                    else 0
                )
                rows = Rows(begin + 1, 8 * down) if parts > 1 else Rows(begin + 1, 8)
            elif marker == jpeg_tiles.SOS:
                return (
                    rows
                    if parts and rows is not None and rows.height and data[begin] == parts
                    else None
                )
    except DamagedJpeg:
        pass
    return None


Origin = ArraySource | JpegSource


def open_image(data: bytes | memoryview, mode: str, limit: int = MAX_PIXELS) -> Origin:
    """Where the pixels of a stored image come from.

    What cannot be read in part is decoded here and now. Raises ImageError.
    """
    if codec_of(data) == "jpeg":
        mode = jpeg_mode(data, mode)
    if mode in ("rgb", "gray") and codec_of(data) == "jpeg":
        size = fused_decode.look(data)
        if size is not None:
            allowed(*size, limit=limit)
            return JpegSource(data, mode, *size, None, fusable=True, limit=limit)
        tiles = jpeg_tiles.read(data)
        if tiles is not None:
            allowed(tiles.height, tiles.width, limit=limit)
            return JpegSource(data, mode, tiles.height, tiles.width, tiles, limit=limit)
        try:
            height, width, known = jpeg_head(data)
        except ValueError:
            return ArraySource(decode(data, mode, limit))
        if known:
            allowed(height, width, limit=limit)
            return JpegSource(data, mode, height, width, None, _rows(data), limit=limit)
    return ArraySource(decode(data, mode, limit))
