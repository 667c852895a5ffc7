"""Ops on the colours of a uint8 picture, by Pillow: what torchvision gives for Pillow's images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance

from loaderd.core.rng import CounterRng
from loaderd.data.images.lazy_image import LazyImage
from loaderd.data.ops.plane import drawn

STRENGTHS = ("brightness", "contrast", "saturation", "hue")
Change = Callable[[Any], Any]  # of a Pillow image of mode L or RGB


def change(view: LazyImage, made: Change) -> None:
    """Apply it to the picture's colours: 1, 3, or 4 channels, the last of which (alpha) stays."""
    image = view.settled()
    colours = np.ascontiguousarray(image[:, :, : 1 if view.channels == 1 else 3])
    plain = Image.fromarray(colours[:, :, 0] if view.channels == 1 else colours)
    out = np.array(made(plain)).reshape(colours.shape)
    view.become(out if view.channels < 4 else np.dstack([out, image[:, :, 3]]))


def _around_one(value: Any) -> tuple[float, float]:
    if isinstance(value, (int, float)):
        return max(0.0, 1.0 - value), 1.0 + value
    return value[0], value[1]


def turned(image: Any, part: float) -> Any:
    """The image with its hue turned by this part of the circle, in 256 steps."""
    if image.mode == "L":
        return image
    hue, saturation, value = image.convert("HSV").split()
    steps = np.uint8(int(part * 255) % 256)
    hue = Image.fromarray(np.asarray(hue) + steps)
    return Image.merge("HSV", (hue, saturation, value)).convert("RGB")


class ColorJitter:
    """Factors of brightness, contrast and saturation and a turn of the hue, in random order.

    Draws 0 to 3 are the four strengths, 4 to 6 the order, 7 whether at all.
    """

    def __init__(
        self, number: int, brightness: Any, contrast: Any, saturation: Any, hue: Any, p: float
    ) -> None:
        self._number, self._p = number, p
        turn = (-hue, hue) if isinstance(hue, (int, float)) else tuple(hue)
        self._ranges = (
            _around_one(brightness),
            _around_one(contrast),
            _around_one(saturation),
            turn,
        )
        self._changes: tuple[Callable[[Any, float], Any], ...] = (
            lambda image, by: ImageEnhance.Brightness(image).enhance(by),
            lambda image, by: ImageEnhance.Contrast(image).enhance(by),
            lambda image, by: ImageEnhance.Color(image).enhance(by),
            turned,
        )
        self._nothing = ((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (0.0, 0.0))

    def __call__(self, view: LazyImage, draws: CounterRng) -> None:
        changes = self._drawn(draws)

        def all_of_them(image: Any) -> Any:
            for each, by in changes:
                image = self._changes[each](image, by)
            return image

        if changes:
            change(view, all_of_them)

    def _drawn(self, draws: CounterRng) -> list[tuple[int, float]]:
        """Which changes, in their order, and how much of each."""
        number = self._number
        if draws.uniform(number, 7) >= self._p:
            return []
        order = [0, 1, 2, 3]
        for last in (3, 2, 1):
            other = draws.integer(number, 7 - last, last + 1)
            order[last], order[other] = order[other], order[last]
        return [
            (each, drawn(draws, number, each, *self._ranges[each]))
            for each in order
            if self._ranges[each] != self._nothing[each]
        ]

    def told(self, height: int, width: int, draws: CounterRng) -> list[str]:
        """What it does to a picture of this size."""
        return [f"{STRENGTHS[each]} {by:.2f}" for each, by in self._drawn(draws)]


@dataclass(frozen=True, slots=True)
class Grayscale:
    """Luma in each channel.

    Attributes:
        p: Probability.
    """

    number: int
    p: float

    def __call__(self, view: LazyImage, draws: CounterRng) -> None:
        if view.channels > 1 and draws.uniform(self.number, 0) < self.p:
            change(view, lambda image: image.convert("L").convert("RGB"))

    def told(self, height: int, width: int, draws: CounterRng) -> list[str]:
        """What it does to a picture of this size."""
        return ["gray"] if draws.uniform(self.number, 0) < self.p else []
