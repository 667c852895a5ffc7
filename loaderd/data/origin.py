"""Where a picture's pixels come from: an array, or a JPEG of which only the part that is wanted is decoded, at a fraction of its size.

Both give the same for the same question whether a JPEG has an index of tiles or not: what is spliced shows the pixels of the whole.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import simplejpeg

from loaderd.data import restart
from loaderd.data.images import allowed, codec_of, decode
from loaderd.data.restart import SCALES, Tiles

# A JPEG whose scaled result has a shorter side is decoded whole: decoders choose a scale by the size that comes out, which for so few
# pixels more than one has.
LEAST_SIDE = 16


class Part(NamedTuple):
    """A rectangle of scaled pixels, half-open, at a scale of eighths / 8."""

    top: int
    left: int
    bottom: int
    right: int
    eighths: int = 8


class Raster:
    """Pixels that are there: height x width x channels."""

    scales = (8,)

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.height, self.width, self.channels = array.shape
        self.dtype = array.dtype

    def read(self, part: Part) -> np.ndarray:
        """A view of the part; the array itself if that is all of it."""
        return _cut(self.array, *part[:4])


class Coded:
    """A stored JPEG that simplejpeg reads. Holds a view of the data."""

    scales = SCALES
    dtype = np.dtype(np.uint8)

    def __init__(self, data: restart.Data, mode: str, height: int, width: int, tiles: Tiles | None) -> None:
        self.data = data
        self.mode = mode
        self.height, self.width = height, width
        self.channels = 1 if mode == "gray" else 3
        self._tiles = tiles

    def read(self, part: Part) -> np.ndarray:
        """The part's pixels, in an array that is nobody else's. Raises ValueError for a file that is damaged: then `whole` may know more."""
        top, left, bottom, right, eighths = part
        if self._tiles is None:
            return _cut(self._decode(self.data, self.height, self.width, eighths), top, left, bottom, right)
        step = 8 // eighths
        piece = self._tiles.splice(left * step, top * step, min(right * step, self.width), min(bottom * step, self.height), eighths)
        image = self._decode(piece.data, piece.height, piece.width, eighths)
        y, x = piece.top // step, piece.left // step
        return _cut(image, top - y, left - x, bottom - y, right - x)

    def whole(self) -> Raster:
        """All of its pixels, by whatever decoder can. Raises ImageError."""
        return Raster(decode(self.data, self.mode))

    def _decode(self, data: restart.Data, height: int, width: int, eighths: int) -> np.ndarray:
        shape = (-(-height * eighths // 8), -(-width * eighths // 8), self.channels)
        out = np.empty(shape, np.uint8)
        scaled = {} if eighths == 8 else {"min_height": shape[0], "min_width": shape[1]}
        simplejpeg.decode_jpeg(data, "RGB" if self.channels == 3 else "GRAY", buffer=out, **scaled)
        return out


def _cut(image: np.ndarray, top: int, left: int, bottom: int, right: int) -> np.ndarray:
    all_of_it = (top, left, bottom, right) == (0, 0, *image.shape[:2])
    return image if all_of_it else image[top:bottom, left:right]


Origin = Raster | Coded


def look(data: bytes | memoryview, mode: str) -> Origin:
    """Where the pixels of a stored image come from. What cannot be read in part is decoded here and now. Raises ImageError."""
    if codec_of(data) == "jpeg":
        tiles = restart.read(data)
        if tiles is not None:
            allowed(tiles.height, tiles.width)
            return Coded(data, mode, tiles.height, tiles.width, tiles)
        try:
            height, width, space, _ = simplejpeg.decode_jpeg_header(data)
        except ValueError:
            return Raster(decode(data, mode))
        if space not in ("CMYK", "YCCK"):
            allowed(height, width)
            return Coded(data, mode, height, width, None)
    return Raster(decode(data, mode))
