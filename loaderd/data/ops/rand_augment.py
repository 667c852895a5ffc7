"""RandAugment (Cubuk et al., 2019) with torchvision's changes, strengths and signs, by Pillow."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from loaderd.core.rng import CounterRng
from loaderd.data.images.edges import in_dtype, of_channels
from loaderd.data.images.image_error import OpError
from loaderd.data.images.lazy_image import LazyImage
from loaderd.data.ops.colour import change

# Pixels of the largest shift, of an image of 331 pixels, for which the paper's strengths were made.
SHIFT = 150 / 331


def _affine(image: Any, matrix: tuple[float, ...], fill: Any) -> Any:
    return image.transform(
        image.size,
        Image.Transform.AFFINE,
        matrix,
        Image.Resampling.NEAREST,
        fillcolor=fill,
    )


# Name -> the change of a Pillow image by a strength, with a fill for pixels from outside.
CHANGES: dict[str, Callable[[Any, float, Any], Any]] = {
    "identity": lambda image, by, fill: image,
    "shear_x": lambda image, by, fill: _affine(image, (1, by, 0, 0, 1, 0), fill),
    "shear_y": lambda image, by, fill: _affine(image, (1, 0, 0, by, 1, 0), fill),
    "translate_x": lambda image, by, fill: _affine(image, (1, 0, -int(by), 0, 1, 0), fill),
    "translate_y": lambda image, by, fill: _affine(image, (1, 0, 0, 0, 1, -int(by)), fill),
    "rotate": lambda image, by, fill: image.rotate(by, fillcolor=fill),
    "brightness": lambda image, by, fill: ImageEnhance.Brightness(image).enhance(1 + by),
    "color": lambda image, by, fill: ImageEnhance.Color(image).enhance(1 + by),
    "contrast": lambda image, by, fill: ImageEnhance.Contrast(image).enhance(1 + by),
    "sharpness": lambda image, by, fill: ImageEnhance.Sharpness(image).enhance(1 + by),
    "posterize": lambda image, by, fill: ImageOps.posterize(image, int(by)),
    "solarize": lambda image, by, fill: ImageOps.solarize(image, ceil(by)),
    "auto_contrast": lambda image, by, fill: ImageOps.autocontrast(image),
    "equalize": lambda image, by, fill: ImageOps.equalize(image),
}
NAMES = tuple(CHANGES)
SIGNED = NAMES[NAMES.index("shear_x") : NAMES.index("posterize")]


def strength(name: str, share: float, height: int, width: int) -> float:
    """What a change is called with.

    Args:
        name: Of the change.
        share: Of the largest strength, in [0, 1].
        height: Of the picture, in pixels.
        width: Likewise.
    """
    largest = {
        "shear_x": 0.3,
        "shear_y": 0.3,
        "translate_x": SHIFT * width,
        "translate_y": SHIFT * height,
        "rotate": 30.0,
        "brightness": 0.9,
        "color": 0.9,
        "contrast": 0.9,
        "sharpness": 0.9,
    }
    if name == "posterize":
        return 8 - round(4 * share)  # bits that are kept
    return 255.0 - 255.0 * share if name == "solarize" else largest.get(name, 0.0) * share


class RandAugment:
    """num_ops changes of one strength.

    Draws 2t and 2t + 1 are the change of try t and its sign.
    """

    def __init__(
        self, number: int, num_ops: int, magnitude: int, num_magnitude_bins: int, fill: Any
    ) -> None:
        if magnitude >= num_magnitude_bins:
            raise ValueError(
                f"op 'rand_augment': magnitude = {magnitude} must be below num_magnitude_bins = "
                f"{num_magnitude_bins}"
            )
        self._number, self._times, self._fill = number, num_ops, fill
        self._share = magnitude / (num_magnitude_bins - 1)

    def __call__(self, view: LazyImage, draws: CounterRng) -> None:
        size, colours = (view.height, view.width), 1 if view.channels == 1 else 3
        fill = of_channels("rand_augment", "fill", self._fill, colours)
        if view.channels == 4:
            raise OpError(
                "rand_augment cannot turn the alpha of a picture of 4 channels: decode it as rgb"
            )
        values = [int(each) for each in in_dtype("rand_augment", "fill", fill, np.dtype(np.uint8))]

        def all_of_them(image: Any) -> Any:
            outside = values[0] if image.mode == "L" else tuple(values)
            for name, by in self._drawn(*size, draws):
                image = CHANGES[name](image, by, outside)
            return image

        change(view, all_of_them)

    def _drawn(self, height: int, width: int, draws: CounterRng) -> list[tuple[str, float]]:
        """Names of the changes, and the strength of each."""
        made: list[tuple[str, float]] = []
        for turn in range(self._times):
            name = NAMES[draws.integer(self._number, 2 * turn, len(NAMES))]
            by = strength(name, self._share, height, width)
            negative = name in SIGNED and draws.integer(self._number, 2 * turn + 1, 2)
            made.append((name, -by if negative else by))
        return made

    def told(self, height: int, width: int, draws: CounterRng) -> list[str]:
        """What it does to a picture of this size."""
        return [f"{name} {by:.2f}" for name, by in self._drawn(height, width, draws)]
