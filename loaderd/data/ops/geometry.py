"""Ops that move pixels: crops, sizes, mirrors, turns, edges.

Each is called with a plane (a picture that is not made yet, or boxes on it) and the sample's
draws. What it draws depends on the op's place among the stream's transforms (`number`) and the
sample alone, so all planes of one size get the same geometry.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from loaderd.core.rng import CounterRng
from loaderd.data.images.edges import Fill
from loaderd.data.images.image_error import OpError
from loaderd.data.ops.plane import Plane, pair

TRIES = 10


@dataclass(frozen=True, slots=True)
class Resize:
    """Bring a picture to a size.

    Attributes:
        size: The shorter side, or (height, width).
    """

    number: int
    size: Any
    interpolation: str
    exact: bool

    def __call__(self, plane: Plane, draws: CounterRng) -> None:
        height, width, size = plane.height, plane.width, self.size
        if not isinstance(size, int):
            plane.resize(size[0], size[1], self.interpolation, exact=self.exact)
        # torchvision's rule: the longer side is rounded down.
        elif height <= width:
            plane.resize(
                size, max(1, int(size * width / height)), self.interpolation, exact=self.exact
            )
        else:
            plane.resize(
                max(1, int(size * height / width)), size, self.interpolation, exact=self.exact
            )


@dataclass(frozen=True, slots=True)
class LongSide:
    """Bring a picture to a size that fits.

    Attributes:
        size: The longer side, or the (height, width) that it has to fit into.
    """

    number: int
    size: Any
    interpolation: str
    exact: bool

    def __call__(self, plane: Plane, draws: CounterRng) -> None:
        high, wide = pair(self.size)
        height, width = plane.height, plane.width
        if high * width <= wide * height:
            wide = max(1, min(wide, round(width * high / height)))
        else:
            high = max(1, min(high, round(height * wide / width)))
        plane.resize(high, wide, self.interpolation, exact=self.exact)


@dataclass(frozen=True, slots=True)
class CenterCrop:
    """The middle of a picture.

    Attributes:
        size: A side, or (height, width).
    """

    number: int
    size: Any

    def __call__(self, plane: Plane, draws: CounterRng) -> None:
        height, width = pair(self.size)
        if plane.height < height or plane.width < width:
            down, across = max(0, height - plane.height), max(0, width - plane.width)
            plane.pad(down // 2, (down + 1) // 2, across // 2, (across + 1) // 2)
        plane.crop(
            round((plane.height - height) / 2), round((plane.width - width) / 2), height, width
        )


@dataclass(frozen=True, slots=True)
class RandomCrop:
    """A random part of a picture.

    Attributes:
        size: A side, or (height, width).
        padding: Zeros on each side first.
    """

    number: int
    size: Any
    padding: int

    def __call__(self, plane: Plane, draws: CounterRng) -> None:
        (height, width), padding = pair(self.size), self.padding
        if plane.height + 2 * padding < height or plane.width + 2 * padding < width:
            raise OpError(
                f"random_crop of {height} x {width} from an image of "
                f"{plane.height + 2 * padding} x {plane.width + 2 * padding} "
                "(padding included): raise padding, or resize first"
            )
        if padding:
            plane.pad(padding, padding, padding, padding)
        top = draws.integer(self.number, 0, plane.height - height + 1)
        left = draws.integer(self.number, 1, plane.width - width + 1)
        plane.crop(top, left, height, width)


def crop_box(
    height: int, width: int, scale: Any, ratio: Any, draws: CounterRng, number: int
) -> tuple[int, int, int, int]:
    """(top, left, height, width) of random_resized_crop.

    Ten tries at a random area and aspect, else the largest middle part that fits. Draws 4t ...
    4t + 3 belong to try t.
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for attempt in range(0, 4 * TRIES, 4):
        area = height * width * (scale[0] + (scale[1] - scale[0]) * draws.uniform(number, attempt))
        aspect = math.exp(low + (high - low) * draws.uniform(number, attempt + 1))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return (
                draws.integer(number, attempt + 2, height - h + 1),
                draws.integer(number, attempt + 3, width - w + 1),
                h,
                w,
            )
    if width / height < ratio[0]:
        w, h = width, min(height, max(1, round(width / ratio[0])))
    elif width / height > ratio[1]:
        w, h = min(width, max(1, round(height * ratio[1]))), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


@dataclass(frozen=True, slots=True)
class RandomResizedCrop:
    """A random part of a picture, brought to a size.

    Attributes:
        size: A side, or (height, width).
        scale: As `crop_box`.
        ratio: As `crop_box`.
    """

    number: int
    size: Any
    scale: Any
    ratio: Any
    interpolation: str
    exact: bool

    def __call__(self, plane: Plane, draws: CounterRng) -> None:
        height, width = pair(self.size)
        plane.crop(*crop_box(plane.height, plane.width, self.scale, self.ratio, draws, self.number))
        plane.resize(height, width, self.interpolation, exact=self.exact)


@dataclass(frozen=True, slots=True)
class HFlip:
    """Mirror left and right.

    Attributes:
        p: Probability.
    """

    number: int
    p: float

    def __call__(self, plane: Plane, draws: CounterRng) -> None:
        if draws.uniform(self.number, 0) < self.p:
            plane.flip()


@dataclass(frozen=True, slots=True)
class VFlip:
    """Mirror top and bottom.

    Attributes:
        p: Probability.
    """

    number: int
    p: float

    def __call__(self, plane: Plane, draws: CounterRng) -> None:
        if draws.uniform(self.number, 0) < self.p:
            plane.flip(rows=True)


@dataclass(frozen=True, slots=True)
class Rotate90:
    """Turn by quarters.

    Attributes:
        k: Quarters counterclockwise; None: drawn.
        p: Probability.
    """

    number: int
    k: int | None
    p: float

    def __call__(self, plane: Plane, draws: CounterRng) -> None:
        if draws.uniform(self.number, 0) < self.p:
            plane.turn(draws.integer(self.number, 1, 4) if self.k is None else self.k)


class Pad:
    """Pixels at the edges, as the config says."""

    def __init__(
        self, number: int, padding: Any, fill: Any, label_fill: int, padding_mode: str
    ) -> None:
        sides = [padding] if isinstance(padding, int) else list(padding)
        self._left, self._top, self._right, self._bottom = sides * (4 // len(sides))
        self._fill = Fill(fill, label_fill, padding_mode)

    def __call__(self, plane: Plane, draws: CounterRng) -> None:
        plane.pad(self._top, self._bottom, self._left, self._right, self._fill)
