"""Ops that change a picture's type of numbers or the order of its axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from loaderd.core.rng import CounterRng
from loaderd.data.images.edges import of_channels
from loaderd.data.images.lazy_image import LazyImage

BYTES = (np.arange(256) / 255).astype(np.float32)


def as_float(image: np.ndarray) -> np.ndarray:
    """The image as float32.

    Whole numbers are divided by the largest that their type has, bools are 0 and 1, floats stay as
    they are.
    """
    if image.dtype.kind in "iu":
        return (image / np.float64(np.iinfo(image.dtype).max)).astype(np.float32)
    return image.astype(np.float32, copy=False)


@dataclass(frozen=True, slots=True)
class ToFloat:
    """float32 in [0, 1]."""

    number: int

    def __call__(self, view: LazyImage, draws: CounterRng) -> None:
        if view.dtype == np.uint8:
            view.levels = np.tile(BYTES, (view.channels, 1))
        elif view.dtype != np.float32:
            view.become(as_float(view.settled()))


class Normalize:
    """(x - mean) / std of a picture in [0, 1]."""

    def __init__(self, number: int, mean: Any, std: Any) -> None:
        self._mean, self._std = mean, std
        self._tables: dict[int, np.ndarray] = {}  # by number of channels

    def __call__(self, view: LazyImage, draws: CounterRng) -> None:
        channels = view.channels
        center = of_channels("normalize", "mean", self._mean, channels)
        spread = of_channels("normalize", "std", self._std, channels)
        if view.dtype == np.uint8:
            if channels not in self._tables:
                exact = (np.arange(256) / 255 - center[:, np.newaxis]) / spread[:, np.newaxis]
                self._tables[channels] = exact.astype(np.float32)
            view.levels = self._tables[channels]
            return
        center, spread = center.astype(np.float32), spread.astype(np.float32)
        if view.levels is not None:
            view.levels = (view.levels - center[:, np.newaxis]) / spread[:, np.newaxis]
        else:
            view.become(
                ((as_float(view.settled()) - center) / spread).astype(np.float32, copy=False)
            )


@dataclass(frozen=True, slots=True)
class ToChw:
    """Channels first."""

    number: int

    def __call__(self, view: LazyImage, draws: CounterRng) -> None:
        view.planar = True
