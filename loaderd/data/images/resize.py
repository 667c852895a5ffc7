"""Resizing with an antialiased filter: Pillow's, whose result this is.

A pixel is a weighted sum of the stored ones around its centre. The filter (a triangle, or Keys's
cubic) is as wide as the shrink factor. Bytes are rounded after each of the two passes, across and
down, and the weights are whole numbers of 22 bits: so native code and numpy give the same. Boxes
need not lie on whole pixels.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from typing import NamedTuple

import numpy as np

from loaderd.data.native_library import CROP, load

TINY = 1e-6
BITS = 22  # of a weight
PLAN = struct.Struct("=2d2i2d2i3i")
FILTERS = ("bilinear", "bicubic")
MAX_NATIVE_CHANNELS = 4


class Axis(NamedTuple):
    """How the pixels of one axis lie over a source.

    Pixel i's centre is at start + i * step, in source pixels (0 is the centre of the first).
    """

    start: float
    step: float
    pixels: int

    @property
    def begin(self) -> int | None:
        """The source pixel that the first one is, if each is just a pixel of the source."""
        whole = round(self.start)
        return whole if abs(self.step - 1) < TINY and abs(self.start - whole) < TINY else None

    @property
    def edge(self) -> float:
        """Where the first pixel begins; 0 is the edge of the source."""
        return self.start + 0.5 - self.step / 2


def reach(step: float, how: str = "bilinear") -> int:
    """Source pixels on either side of a centre that a pixel depends on, at most."""
    return math.ceil((2 if how == "bicubic" else 1) * max(step, 1.0)) + 1


def whole(size: int, count: int) -> Axis:
    """`count` pixels over a source of `size`."""
    return Axis((size / count - 1) / 2, size / count, count)


def resize(image: np.ndarray, height: int, width: int, how: str = "bilinear") -> np.ndarray:
    """Resize an image.

    Args:
        image: [height, width, channels], any strides.
        height: The new one.
        width: The new one.
        how: As for `resample`.

    Returns:
        A new array, or `image` itself if it has that size.
    """
    return resample(image, whole(image.shape[0], height), whole(image.shape[1], width), how)


def resample(image: np.ndarray, rows: Axis, columns: Axis, how: str = "bilinear") -> np.ndarray:
    """The pixels of `image` (as in `resize`) that lie on these axes.

    Args:
        image: uint8, uint16 or float32; any type for "nearest".
        rows: The axis down; its centres lie in the image.
        columns: The axis across, likewise.
        how: "bilinear", "bicubic", or "nearest": nothing is computed between its numbers.

    Returns:
        A view of `image` where that shows them, `image` itself if it is they, else a new array.
    """
    height, width = image.shape[:2]
    top, left = rows.begin, columns.begin
    if top is not None and left is not None:
        same = (top, left, rows.pixels, columns.pixels) == (0, 0, height, width)
        return image if same else image[top : top + rows.pixels, left : left + columns.pixels]
    if how == "nearest":
        return image.take(_nearest(rows, height), axis=0).take(_nearest(columns, width), axis=1)
    made = _native(image, rows, columns, how)
    if made is not None:
        return made
    down, across = _weights(rows, height, how), _weights(columns, width, how)
    low, high = int(down[0].min()), int(down[0].max()) + down[1].shape[1]
    woven = _summed(image[low:high].swapaxes(0, 1), *across).swapaxes(0, 1)
    return np.ascontiguousarray(_summed(woven, down[0] - low, down[1]))


def _nearest(axis: Axis, size: int) -> np.ndarray:
    """For each pixel of the axis, the source pixel (of `size`) that its centre lies in."""
    places = np.floor(axis.start + np.arange(axis.pixels) * axis.step + 0.5 + TINY).astype(np.intp)
    return places.clip(0, size - 1)


@functools.cache
def library() -> ctypes.CDLL | None:
    """The shared object, if it is there and has this part."""
    return load(CROP, _declare)


def _declare(found: ctypes.CDLL) -> None:
    pointer = ctypes.c_void_p
    found.loaderd_resize.argtypes = [pointer, ctypes.c_int64, ctypes.c_char_p, pointer]


def _native(
    image: np.ndarray, rows: Axis, columns: Axis, how: str, *, plain: bool = False
) -> np.ndarray | None:
    """The pixels as native code makes them; None if it cannot be done here.

    plain: by the code for any machine, which gives the same.
    """
    found = library()
    height, width, channels = image.shape
    if found is None or image.dtype != np.uint8 or channels > MAX_NATIVE_CHANNELS:
        return None
    if image.strides[1:] != (channels, 1) or image.strides[0] < width * channels:
        image = np.ascontiguousarray(image)
    out = np.empty((rows.pixels, columns.pixels, channels), np.uint8)
    plan = PLAN.pack(
        *(rows.edge, rows.step, rows.pixels, height),
        *(columns.edge, columns.step, columns.pixels, width),
        channels,
        FILTERS.index(how),
        plain,
    )
    if found.loaderd_resize(image.ctypes.data, image.strides[0], plan, out.ctypes.data) != 0:
        raise MemoryError
    return out


def _share(x: np.ndarray, how: str) -> np.ndarray:
    x = np.abs(x)
    if how == "bilinear":
        return np.where(x < 1.0, 1.0 - x, 0.0)
    near = (1.5 * x - 2.5) * x * x + 1.0
    far = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def _weights(axis: Axis, size: int, how: str) -> tuple[np.ndarray, np.ndarray]:
    """(first source pixel of each pixel, float64 weights of it and the ones that follow).

    The weights are whole numbers whose sum is about 2**22.
    """
    wide = max(axis.step, 1.0)
    far = (2.0 if how == "bicubic" else 1.0) * wide
    centre = axis.edge + (np.arange(axis.pixels) + 0.5) * axis.step
    low = (centre - far + 0.5).astype(np.int64).clip(0)
    high = (centre + far + 0.5).astype(np.int64).clip(None, size)
    most = int((high - low).max())
    shares = np.zeros((axis.pixels, most))
    total = np.zeros(axis.pixels)
    for k in range(most):
        share = _share((low + k - centre + 0.5) * (1.0 / wide), how)
        shares[:, k] = np.where(low + k < high, share, 0.0)
        total += shares[:, k]
    weights = shares / total[:, np.newaxis] * (1 << BITS)
    return low, np.trunc(weights + np.copysign(0.5, weights))


def _summed(image: np.ndarray, first: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The weighted sums of rows of `image`, in its dtype; whole numbers are rounded."""
    whole_numbers = image.dtype.kind in "iu"
    out = np.zeros((len(first), *image.shape[1:]))
    for k in range(weights.shape[1]):
        rows = image[np.minimum(first + k, len(image) - 1)]
        out += rows * weights[:, k].reshape(-1, *[1] * (image.ndim - 1))
    if not whole_numbers:
        return (out / (1 << BITS)).astype(image.dtype)
    out = np.floor((out + (1 << (BITS - 1))) / (1 << BITS))
    return out.clip(0, np.iinfo(image.dtype).max).astype(image.dtype)
