"""Antialiased bilinear resizing, close to Pillow's: a triangle filter as wide as the shrink factor.

A filter of three or five taps before an interpolation does it, several times faster than the wide
triangle itself: up to a shrink of 3 directly, beyond that after averaging blocks of pixels. Boxes
need not lie on whole pixels.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import cv2
import numpy as np

MAX_SHRINK = 3.0  # without averaging first
STEP = 0.125
TINY = 1e-6
# Outer taps for a shrink of 1, 1.125, ... up to 3: the symmetric filter of sum 1 which, followed by
# the interpolation, differs least from the wide triangle: least squares over all phases, for
# pictures whose pixels correlate by 0.95 (0.9 or 0.98 move the fourth digit). Five taps before
# linear interpolation (one pixel away, two pixels away; at 2 and 3 they are the triangle itself),
# three before it, three before cubic interpolation. What is left, in standard deviations of the
# picture: five 0.019 at most; three before cubic 0.015 within CUBIC; three before linear 0.014
# outside of FIVE.
NEAR = (
    0.0,
    0.0581,
    0.1094,
    0.1509,
    0.1837,
    0.2094,
    0.2285,
    0.2418,
    0.25,
    0.2538,
    0.2542,
    0.2521,
    0.2483,
    0.2426,
    0.2362,
    0.2293,
    0.2222,
)
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
LINEAR = (0.0, 0.0431, 0.0831, 0.1184, 0.1501, 0.179, 0.205, 0.2284, 0.25, 0.2701)
BEFORE_CUBIC = (0.0732, 0.1059, 0.1371, 0.1658, 0.1926, 0.2175)
# shrinks, both axes, for which cubic interpolation is better, and cheaper than five taps
CUBIC = (1.08, 1.625)
FIVE = ((1.1, 1.75), (2.125, MAX_SHRINK))  # shrinks that need five taps before linear interpolation
TRIES = 48
NEAR_ENOUGH, TOO_FAR = 1 / 40, 1 / 20  # pixels


def _at(table: tuple[float, ...], shrink: float) -> float:
    at, part = divmod((shrink - 1.0) / STEP, 1.0)
    low, high = int(at), min(int(at) + 1, len(table) - 1)
    return table[low] + part * (table[high] - table[low])


def _taps(shrink: float, cubic: bool = False) -> np.ndarray:
    """The filter for this shrink along one axis; [0, 1, 0] where the picture grows (a filter of one
    tap is slower than one of three).
    """
    if shrink <= 1.0:
        return np.array([0, 1, 0], np.float32)
    if not cubic and any(low < shrink < high + TINY for low, high in FIVE):
        near, far = _at(NEAR, shrink), _at(FAR, shrink)
        return np.array([far, near, 1.0 - 2.0 * (near + far), near, far], np.float32)
    near = _at(BEFORE_CUBIC if cubic else LINEAR, shrink)
    return np.array([near, 1.0 - 2.0 * near, near], np.float32)


class Axis(NamedTuple):
    """How the pixels of one axis lie over a source: pixel i's centre at start + i * step, in source
    pixels (0 is the centre of the first).
    """

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
        return (
            abs(self.start - (self.step - 1) / 2) < TINY
            and abs(self.pixels * self.step - size) < TINY
        )


def reach(step: float) -> int:
    """Source pixels on either side of a centre that a pixel depends on, at most."""
    return 3 * _blocks(step)


def _blocks(step: float) -> int:
    """Pixels that are averaged first, along an axis."""
    return max(1, math.ceil(step / MAX_SHRINK - TINY))


def whole(size: int, count: int) -> Axis:
    """`count` pixels over a source of `size`."""
    return Axis((size / count - 1) / 2, size / count, count)


def resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """`image` (uint8 or float32, height x width x channels, any strides) at the new size; a new
    array, or `image` itself if it has it.
    """
    return resample(image, whole(image.shape[0], height), whole(image.shape[1], width))


def _nearest(axis: Axis, size: int) -> np.ndarray:
    """For each pixel of the axis, the source pixel (of `size`) that its centre lies in."""
    places = np.floor(axis.start + np.arange(axis.pixels) * axis.step + 0.5 + TINY).astype(np.intp)
    return places.clip(0, size - 1)


def resample(image: np.ndarray, rows: Axis, columns: Axis, *, nearest: bool = False) -> np.ndarray:
    """The pixels of `image` (as in `resize`) that lie on these axes.

    What lies beyond its edges is like the edge. A view of `image` where that shows them, `image`
    itself if it is they. nearest: nothing is computed between its numbers, which may be of any
    type.
    """
    height, width = image.shape[:2]
    top, left = rows.begin, columns.begin
    if top is not None and left is not None:
        same = (top, left, rows.pixels, columns.pixels) == (0, 0, height, width)
        return image if same else image[top : top + rows.pixels, left : left + columns.pixels]
    if nearest:
        return image.take(_nearest(rows, height), axis=0).take(_nearest(columns, width), axis=1)
    if max(rows.step, columns.step) > MAX_SHRINK:
        image, rows, columns = _averaged(image, rows, columns)
    above, before = _lead(rows), _lead(columns)
    low, high = min(rows.step, columns.step), max(rows.step, columns.step)
    cubic = CUBIC[0] <= low and high <= CUBIC[1] and above is not None and before is not None
    if high > 1.0:
        down, across = _taps(rows.step, cubic), _taps(columns.step, cubic)
        image = cv2.sepFilter2D(image, -1, across, down, borderType=cv2.BORDER_REPLICATE)
    if above is None or before is None:
        out = _warped(image, rows, columns)
    else:
        out = _resized(
            image, rows, columns, above, before, cv2.INTER_CUBIC if cubic else cv2.INTER_LINEAR
        )
    return out if out.ndim == 3 else out[:, :, np.newaxis]


def _averaged(image: np.ndarray, rows: Axis, columns: Axis) -> tuple[np.ndarray, Axis, Axis]:
    """Blocks of pixels made one, and the axes over those."""
    down, across = _blocks(rows.step), _blocks(columns.step)
    height, width, channels = image.shape
    high, wide = -(-height // down), -(-width // across)
    image = _edged(image, 0, high * down - height, 0, wide * across - width)
    image = cv2.resize(image, (wide, high), interpolation=cv2.INTER_AREA).reshape(
        high, wide, channels
    )
    return image, _over_blocks(rows, down), _over_blocks(columns, across)


def _over_blocks(axis: Axis, size: int) -> Axis:
    return Axis((axis.start + 0.5) / size - 0.5, axis.step / size, axis.pixels)


def _edged(image: np.ndarray, top: int, bottom: int, left: int, right: int) -> np.ndarray:
    """The image with its edges repeated."""
    return (
        cv2.copyMakeBorder(image, top, bottom, left, right, cv2.BORDER_REPLICATE)
        if top or bottom or left or right
        else image
    )


def _resized(
    image: np.ndarray,
    rows: Axis,
    columns: Axis,
    above: tuple[int, int],
    before: tuple[int, int],
    how: int,
) -> np.ndarray:
    """By `cv2.resize`, from where `_lead` says that its grid meets each axis."""
    height, width = image.shape[:2]
    if rows.covers(height) and columns.covers(width):
        return cv2.resize(image, (columns.pixels, rows.pixels), interpolation=how)
    (over, top), (ahead, left) = above, before
    high, wide = over + rows.pixels, ahead + columns.pixels  # of what comes out
    bottom, right = (
        top + math.ceil(high * rows.step - TINY),
        left + math.ceil(wide * columns.step - TINY),
    )
    image = _edged(
        image, max(0, -top), max(0, bottom - height), max(0, -left), max(0, right - width)
    )
    part = image[max(0, top) :, max(0, left) :][: bottom - top, : right - left]
    return cv2.resize(part, None, fx=1 / columns.step, fy=1 / rows.step, interpolation=how)[
        over:high, ahead:wide
    ]


def _lead(axis: Axis) -> tuple[int, int] | None:
    """`cv2.resize` takes whole pixels of a source from edge to edge.

    A few pixels before the first one that is wanted its grid may meet the
    axis: (how many pixels before, the source pixel to begin with there), or None if it does nowhere
    near.
    """
    offset = axis.start - (axis.step - 1) / 2
    found, least = None, TOO_FAR
    for lead in range(TRIES):
        place = offset - lead * axis.step
        away = abs(place - round(place))
        if away < least:
            found, least = (lead, round(place)), away
            if away < NEAR_ENOUGH:
                break
    return found


def _warped(image: np.ndarray, rows: Axis, columns: Axis) -> np.ndarray:
    """By linear interpolation to a 32nd of a pixel; several times slower."""
    matrix = np.array([[columns.step, 0.0, columns.start], [0.0, rows.step, rows.start]])
    how = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    planes = [image] if image.ndim == 2 or image.shape[2] <= 4 else np.moveaxis(image, 2, 0)
    size = (columns.pixels, rows.pixels)
    out = [
        cv2.warpAffine(
            np.ascontiguousarray(plane), matrix, size, flags=how, borderMode=cv2.BORDER_REPLICATE
        )
        for plane in planes
    ]
    return out[0] if len(out) == 1 else np.dstack(out)
