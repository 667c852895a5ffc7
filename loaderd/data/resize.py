"""Antialiased bilinear resizing, close to Pillow's: a triangle filter as wide as the shrink factor.

Up to a shrink of 3 a five-tap prefilter before a linear interpolation does it, several times faster than the wide triangle itself;
beyond that Pillow does.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

MAX_PREFILTER = 3.0
STEP = 0.125
TINY = 1e-6
# Outer taps (one pixel away, two pixels away) for a shrink of 1, 1.125, ... 3: the symmetric filter of sum 1 which, followed by linear
# interpolation, differs least from the wide triangle: least squares over all phases, for pictures whose pixels correlate by 0.95
# (0.9 or 0.98 move the fourth digit). At 2 and 3 it is the triangle itself.
NEAR = (0.0, 0.0581, 0.1094, 0.1509, 0.1837, 0.2094, 0.2285, 0.2418, 0.25, 0.2538, 0.2542, 0.2521, 0.2483, 0.2426, 0.2362, 0.2293, 0.2222)
FAR = (
    0.0,
    -0.0115,
    -0.0203,
    -0.0253,
    -0.0264,
    -0.0233,
    -0.0178,
    -0.0101,
    0.0,
    0.0122,
    0.0256,
    0.0396,
    0.0539,
    0.0687,
    0.0833,
    0.0974,
    0.1111,
)


def _taps(shrink: float) -> np.ndarray:
    """The five taps for this shrink; [0, 0, 1, 0, 0] where the picture grows."""
    at, part = divmod((max(1.0, shrink) - 1.0) / STEP, 1.0)
    low, high = int(at), min(int(at) + 1, len(NEAR) - 1)
    near = NEAR[low] + part * (NEAR[high] - NEAR[low])
    far = FAR[low] + part * (FAR[high] - FAR[low])
    return np.array([far, near, 1.0 - 2.0 * (near + far), near, far], np.float32)


class Axis(NamedTuple):
    """How the pixels of one axis lie over a source: pixel i's centre at start + i * step, in source pixels (0 is the centre of the first)."""

    start: float
    step: float
    pixels: int

    @property
    def begin(self) -> int | None:
        """The source pixel that the first one is, if each is just a pixel of the source."""
        whole = round(self.start)
        return whole if abs(self.step - 1) < TINY and abs(self.start - whole) < TINY else None

    def covers(self, size: int) -> bool:
        """True if the pixels show a source of `size` pixels from edge to edge."""
        return abs(self.start - (self.step - 1) / 2) < TINY and abs(self.pixels * self.step - size) < TINY


def reach(step: float) -> int:
    """Source pixels on either side of a centre that a pixel depends on, at most."""
    return 3 if step <= MAX_PREFILTER else math.ceil(step) + 1


def whole(size: int, count: int) -> Axis:
    """`count` pixels over a source of `size`."""
    return Axis((size / count - 1) / 2, size / count, count)


def resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """`image` (uint8 or float32, height x width x channels, any strides) at the new size; a new array, or `image` itself if it has it."""
    return resample(image, whole(image.shape[0], height), whole(image.shape[1], width))


def resample(image: np.ndarray, rows: Axis, columns: Axis) -> np.ndarray:
    """The pixels of `image` (as in `resize`) that lie on these axes. What lies beyond its edges is like the edge. A view of `image` where
    that shows them, `image` itself if it is they."""
    height, width, channels = image.shape
    top, left = rows.begin, columns.begin
    if top is not None and left is not None:
        same = (top, left, rows.pixels, columns.pixels) == (0, 0, height, width)
        return image if same else image[top : top + rows.pixels, left : left + columns.pixels]
    if max(rows.step, columns.step) > MAX_PREFILTER:
        return _pillow(image, rows, columns)
    if rows.step > 1.0 or columns.step > 1.0:
        image = cv2.sepFilter2D(image, -1, _taps(columns.step), _taps(rows.step), borderType=cv2.BORDER_REPLICATE)
    size, shape = (columns.pixels, rows.pixels), (rows.pixels, columns.pixels, channels)
    if rows.covers(height) and columns.covers(width):
        return cv2.resize(image, size, interpolation=cv2.INTER_LINEAR).reshape(shape)
    image = image.reshape(height, width, channels)
    if channels <= 4:
        return _warped(image, rows, columns).reshape(shape)
    return np.dstack([_warped(image[:, :, channel], rows, columns) for channel in range(channels)])


def _warped(image: np.ndarray, rows: Axis, columns: Axis) -> np.ndarray:
    matrix = np.array([[columns.step, 0.0, columns.start], [0.0, rows.step, rows.start]])
    how = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(image, matrix, (columns.pixels, rows.pixels), flags=how, borderMode=cv2.BORDER_REPLICATE)


def _box(rows: Axis, columns: Axis, height: int, width: int) -> tuple[float, float, float, float]:
    """Left, top, right, bottom of what the pixels show."""
    left, top = columns.start - (columns.step - 1) / 2, rows.start - (rows.step - 1) / 2
    right, bottom = left + columns.step * columns.pixels, top + rows.step * rows.pixels
    return max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height))


def _pillow(image: np.ndarray, rows: Axis, columns: Axis) -> np.ndarray:
    old_height, old_width, channels = image.shape
    size, box = (columns.pixels, rows.pixels), _box(rows, columns, old_height, old_width)
    if image.dtype == np.uint8 and channels == 3:
        return np.array(Image.fromarray(np.ascontiguousarray(image)).resize(size, Image.Resampling.BILINEAR, box))
    out = np.empty((rows.pixels, columns.pixels, channels), image.dtype)
    for channel in range(channels):
        plane = Image.fromarray(np.ascontiguousarray(image[:, :, channel]))
        out[:, :, channel] = np.asarray(plane.resize(size, Image.Resampling.BILINEAR, box))
    return out
