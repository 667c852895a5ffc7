"""A picture not made yet.

Where its pixels come from, and what has been asked for so far, carried out once at the end.

Ops add to the plan; nothing is decoded or computed until `pixels`. The plan is: a box of the
origin, brought to a size, of which a window is cut out, which may be mirrored, whose levels may be
looked up in a table, whose channels may come first. What doesn't fit into that order any more (a
second resize, padding) carries out what there is and begins a new plan on the result.

Since the plan is known before a pixel is decoded, a JPEG is decoded only where the window needs it,
and at the smallest of its scales that still has more pixels than are wanted.
"""

from __future__ import annotations

from math import ceil, floor
from typing import Any

import cv2
import numpy as np

from loaderd.data.images.edges import ZEROS, Fill, padded
from loaderd.data.images.image_error import MAX_PIXELS, allowed
from loaderd.data.images.pixel_source import LEAST_SIDE, ArraySource, ImagePart, JpegSource, Origin
from loaderd.data.images.resize import Axis, reach, resample
from loaderd.data.jpeg import fused_decode

# From which shrink on (source pixels a pixel, the less of the two axes) a JPEG is decoded at so
# many eighths. What decoders do to shrink is not quite the same for each pixel of a block; what is
# left to `resample` has to be enough to even that out.
LEAST_SHRINK = {8: 0.0, 4: 5.0, 2: 10.0, 1: 20.0}


class LazyImage:
    """A picture, and the plan for it.

    Attributes:
        height: Of the picture as planned so far.
        width: Likewise.
        channels: Likewise.
        dtype: Likewise.
        planar: Channels come first in the end.
        levels: float32, channels x 256; level v of channel c becomes levels[c, v] (only a picture
            of bytes may have them).
        labels: Its numbers are labels, so nothing is computed between them.
    """

    __slots__ = (
        "_box", "_exact", "_flipped", "_how", "_limit", "_loaded", "_made", "_origin", "_size",
        "_window", "channels", "height", "labels", "levels", "planar", "width",
    )  # fmt: skip

    def __init__(self, origin: Origin, *, labels: bool = False, limit: int = MAX_PIXELS) -> None:
        """Plan nothing yet.

        Args:
            origin: Where the pixels come from.
            labels: Its numbers are labels.
            limit: Most pixels that it may be brought to.
        """
        self.planar = False
        self.labels = labels
        self._limit = limit
        self._begin(origin)

    def _begin(self, origin: Origin) -> None:
        self._origin = origin
        self.height, self.width, self.channels = origin.height, origin.width, origin.channels
        self._box = (0, 0, self.height, self.width)  # top, left, bottom, right
        self._size = (self.height, self.width)  # that the box is brought to
        self._how = "nearest" if self.labels else "bilinear"
        self._exact = False
        self._window = (0, 0)  # top, left in that size; height and width are the window's
        self._flipped = (False, False)  # top and bottom, left and right
        self.levels: np.ndarray | None = None
        self._loaded: tuple[np.ndarray, Axis, Axis] | None = None
        self._made: np.ndarray | None = None

    # -- planning

    @property
    def dtype(self) -> np.dtype:
        """Of the pixels as they would be made now."""
        return self._origin.dtype if self.levels is None else self.levels.dtype

    def crop(self, top: int, left: int, height: int, width: int) -> None:
        """Keep this part, which lies inside."""
        if self._flipped[0]:
            top = self.height - top - height
        if self._flipped[1]:
            left = self.width - left - width
        y, x = self._window[0] + top, self._window[1] + left
        if self._resized:
            self._window = (y, x)
        else:
            y, x = self._box[0] + top, self._box[1] + left
            self._box, self._size = (y, x, y + height, x + width), (height, width)
        self.height, self.width = height, width

    def resize(
        self, height: int, width: int, how: str = "bilinear", *, exact: bool = False
    ) -> None:
        """Bring it to this size.

        Args:
            height: In pixels.
            width: In pixels.
            how: "bilinear", "bicubic" or "nearest"; a picture of labels takes the nearest always.
            exact: A JPEG is decoded at full scale, and resized by `resample`.

        Raises:
            ImageError: More pixels than an image may have.
        """
        allowed(
            height, width, f"{self.height} x {self.width} pixels would be resized to", self._limit
        )
        if (height, width) == (self.height, self.width):
            return
        if self._resized or self.levels is not None:
            self._settle()
        self._size = (height, width)
        self._how, self._exact = "nearest" if self.labels else how, exact
        self.height, self.width = height, width

    def flip(self, *, rows: bool = False) -> None:
        """Mirror left and right; top and bottom if rows."""
        down, across = self._flipped
        self._flipped = (down != rows, across == rows)

    def turn(self, quarters: int) -> None:
        """Turn counterclockwise by 0 to 3 quarters."""
        if quarters == 2:
            self._flipped = (not self._flipped[0], not self._flipped[1])
        elif quarters:
            self.become(np.ascontiguousarray(np.rot90(self.settled(), quarters)))

    def pad(self, top: int, bottom: int, left: int, right: int, fill: Fill = ZEROS) -> None:
        """Pixels around it. Raises ImageError for more pixels than an image may have."""
        allowed(
            top + self.height + bottom,
            left + self.width + right,
            f"{self.height} x {self.width} pixels would be padded to",
            self._limit,
        )
        value = fill.labels if self.labels else fill.value
        self.become(padded(self.settled(), (top, bottom, left, right), value, fill.mode))

    def become(self, array: np.ndarray) -> None:
        """Go on with this height x width x channels array, made of what `settled` returned."""
        self._begin(ArraySource(array))

    def settled(self) -> np.ndarray:
        """What has been planned so far as height x width x channels, not to be written to.

        The plan begins anew with it.
        """
        self._settle()
        assert isinstance(self._origin, ArraySource)
        return self._origin.array

    @property
    def _resized(self) -> bool:
        box = self._box
        return self._size != (box[2] - box[0], box[3] - box[1])

    def _settle(self) -> None:
        self._begin(ArraySource(self._flat()))

    # -- carrying out

    @property
    def stored(self) -> bool:
        """True if pixels have yet to be decoded."""
        return isinstance(self._origin, JpegSource) and self._loaded is None and self._made is None

    def load(self, out: np.ndarray | None = None) -> None:
        """Decode what is needed.

        Args:
            out: See `pixels`.

        Raises:
            ImageError: It cannot be decoded.
        """
        if self._loaded is None and self._made is None and not self._fused(out):
            self._loaded = self._load(self._eighths())

    def _fused(self, out: np.ndarray | None) -> bool:
        """Decode and carry out everything at once, if that can be done here."""
        origin, levels = self._origin, self.levels
        if not (isinstance(origin, JpegSource) and origin.fusable and self._resized):
            return False
        if self._how != "bilinear" or self._exact:
            return False
        shape = (
            (self.channels, self.height, self.width)
            if self.planar
            else (self.height, self.width, self.channels)
        )
        made = (
            out if out is not None and fits(out, shape, self.dtype) else np.empty(shape, self.dtype)
        )
        (top, left, bottom, right), (height, width), (y, x) = self._box, self._size, self._window
        rows = fused_decode.Span(top, bottom, height, y, self.height, self._flipped[0])
        columns = fused_decode.Span(left, right, width, x, self.width, self._flipped[1])
        levels = None if levels is None else np.ascontiguousarray(levels, np.float32)
        if fused_decode.crop(
            origin.data,
            rows,
            columns,
            self._eighths(),
            levels,
            made,
            planar=self.planar,
        ):
            self._made = made
        return self._made is not None

    def pixels(self, out: np.ndarray | None = None) -> np.ndarray:
        """The picture, height x width x channels, or channels first.

        It may share memory with the array that the image was begun with, and is that array if no op
        changed it.

        Args:
            out: An array that may be written to, whether it is used or not. If it has the picture's
                shape and dtype, the picture may be made in it; then it is what is returned.

        Raises:
            ImageError: The stored image is damaged, or too large.
        """
        self.load(out)
        if self._made is not None:
            return self._made
        if not self.planar:
            return self._flat()
        image, levels = self._geometry(), self.levels
        if self.channels > 4 or image.dtype != np.uint8:
            return np.ascontiguousarray(self._leveled(image).transpose(2, 0, 1))
        made = np.empty(
            (self.channels, *image.shape[:2]), np.uint8 if levels is None else np.float32
        )
        if levels is None:
            planes: list[Any] = list(made)
            cv2.split(image, planes)
        else:
            for channel, plane in enumerate(cv2.split(image)):
                cv2.LUT(plane, levels[channel], dst=made[channel])
        return made

    def _flat(self) -> np.ndarray:
        self.load()
        if self._made is not None:
            return self._made.transpose(1, 2, 0) if self.planar else self._made
        return self._leveled(self._geometry())

    def _leveled(self, image: np.ndarray) -> np.ndarray:
        levels = self.levels
        if levels is None:
            return image
        if self.channels > 4:
            return levels[np.arange(self.channels), image]
        table = np.ascontiguousarray(levels.T).reshape(1, 256, self.channels)
        return cv2.LUT(np.ascontiguousarray(image), table).reshape(image.shape)

    def _geometry(self) -> np.ndarray:
        self.load()
        assert self._loaded is not None
        image, rows, columns = self._loaded
        self._loaded = None
        image = resample(image, rows, columns, self._how)
        down, across = self._flipped
        if not (down or across):
            return image
        if self.labels:
            return np.ascontiguousarray(image[:: -1 if down else 1, :: -1 if across else 1])
        return cv2.flip(image, -1 if down and across else int(across)).reshape(image.shape)

    def _eighths(self) -> int:
        """The smallest scale that leaves pixels enough."""
        (top, left, bottom, right), (height, width) = self._box, self._size
        if min(height, width) < LEAST_SIDE or self._how == "nearest" or self._exact:
            return 8
        shrink = min((bottom - top) / height, (right - left) / width)
        return min(eighths for eighths in self._origin.scales if shrink >= LEAST_SHRINK[eighths])

    def _load(self, eighths: int) -> tuple[np.ndarray, Axis, Axis]:
        top, left, bottom, right = self._box
        step = 8 // eighths
        y0, y1, rows = self._axis(top / step, bottom / step, 0)
        x0, x1, columns = self._axis(left / step, right / step, 1)
        origin = self._origin
        if isinstance(origin, ArraySource):
            return origin.read(ImagePart(y0, x0, y1, x1)), rows, columns
        try:
            return origin.read(ImagePart(y0, x0, y1, x1, eighths)), rows, columns
        except ValueError:
            self._origin = origin.whole()
        return self._load(8)

    def _axis(self, begin: float, end: float, which: int) -> tuple[int, int, Axis]:
        """What the window needs along an axis.

        Args:
            begin: The box is [begin, end) of the source.
            end: See there.
            which: 0 down, 1 across.

        Returns:
            (first source pixel, end, axis).
        """
        step = (end - begin) / self._size[which]
        start = begin + (self._window[which] + 0.5) * step - 0.5
        count, around = (self.height, self.width)[which], reach(step, self._how)
        low = max(floor(begin), floor(start) - around)
        high = min(ceil(end), floor(start + (count - 1) * step) + around + 2)
        return low, high, Axis(start - low, step, count)


def fits(out: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """True if such a picture can be written there as it is."""
    return (
        out.shape == shape and out.dtype == dtype and out.flags.c_contiguous and out.flags.writeable
    )
