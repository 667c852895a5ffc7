"""Ops that blur a picture or overwrite a part of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from loaderd.core.rng import CounterRng
from loaderd.data.images.edges import in_dtype, of_channels
from loaderd.data.images.image_error import OpError
from loaderd.data.images.lazy_image import LazyImage
from loaderd.data.ops.plane import drawn

TRIES = 10
AT_ALL, NOISE = 4 * TRIES, 4 * TRIES + 1  # numbers of draws


class GaussianBlur:
    """A Gaussian filter of kernel_size pixels; beyond the edges the picture is mirrored."""

    def __init__(self, number: int, kernel_size: int, sigma: Any, p: float) -> None:
        self._number, self._size, self._p = number, kernel_size, p
        self._sigma = (sigma, sigma) if isinstance(sigma, (int, float)) else tuple(sigma)

    def __call__(self, view: LazyImage, draws: CounterRng) -> None:
        if draws.uniform(self._number, 1) >= self._p:
            return
        if self._size // 2 >= min(view.height, view.width):
            raise OpError(
                f"gaussian_blur with kernel_size = {self._size} cannot mirror an image of "
                f"{view.height} x {view.width}: a side needs more than half as many pixels"
            )
        sigma = drawn(draws, self._number, 0, *self._sigma)
        image = view.settled()
        places = np.arange(self._size) - self._size // 2
        weights = np.exp(-0.5 * (places / sigma) ** 2)
        weights /= weights.sum()
        out = cv2.sepFilter2D(
            image.astype(np.float32), -1, weights, weights, borderType=cv2.BORDER_REFLECT_101
        )
        if image.dtype != np.float32:
            out = np.rint(out).astype(image.dtype)
        view.become(out.reshape(image.shape))

    def told(self, height: int, width: int, draws: CounterRng) -> list[str]:
        """What it does to a picture of this size."""
        if draws.uniform(self._number, 1) >= self._p:
            return []
        return [f"sigma {drawn(draws, self._number, 0, *self._sigma):.2f}"]


def erased_box(
    height: int, width: int, scale: Any, ratio: Any, draws: CounterRng, number: int
) -> tuple[int, int, int, int] | None:
    """(top, left, height, width) of a random part that is smaller than the picture on both axes.

    None if ten tries find none. Draws 4t ... 4t + 3 belong to try t.
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for attempt in range(0, 4 * TRIES, 4):
        area = height * width * drawn(draws, number, attempt, scale[0], scale[1])
        aspect = math.exp(drawn(draws, number, attempt + 1, low, high))
        h, w = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < h < height and 0 < w < width:
            return (
                draws.integer(number, attempt + 2, height - h + 1),
                draws.integer(number, attempt + 3, width - w + 1),
                h,
                w,
            )
    return None


@dataclass(frozen=True, slots=True)
class RandomErasing:
    """A random rectangle becomes `value`, or noise: normal in floats, uniform in whole numbers."""

    number: int
    scale: Any
    ratio: Any
    value: Any
    p: float

    def __call__(self, view: LazyImage, draws: CounterRng) -> None:
        number = self.number
        if draws.uniform(number, AT_ALL) >= self.p:
            return
        box = erased_box(view.height, view.width, self.scale, self.ratio, draws, number)
        if box is None:
            return
        top, left, height, width = box
        image = np.array(view.settled())
        shape = (height, width, view.channels)
        if self.value != "random":
            value = of_channels("random_erasing", "value", self.value, view.channels)
            noise = in_dtype("random_erasing", "value", value, image.dtype)
        else:
            rng = np.random.Generator(np.random.PCG64(draws.integer(number, NOISE, 1 << 62)))
            if image.dtype.kind == "f":
                noise = rng.standard_normal(shape, np.float32)
            else:
                noise = rng.integers(0, np.iinfo(image.dtype).max, shape, image.dtype, True)
        image[top : top + height, left : left + width] = noise
        view.become(image)

    def told(self, height: int, width: int, draws: CounterRng) -> list[str]:
        """What it does to a picture of this size."""
        if draws.uniform(self.number, AT_ALL) >= self.p:
            return []
        box = erased_box(height, width, self.scale, self.ratio, draws, self.number)
        return [] if box is None else ["{2} x {3} at {0}, {1}".format(*box)]
