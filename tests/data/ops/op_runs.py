"""One op on one picture, with the draws that a test chooses."""

from __future__ import annotations

from typing import Any

import numpy as np

from loaderd.core.rng import CounterRng
from loaderd.data.images.lazy_image import LazyImage
from loaderd.data.images.pixel_source import ArraySource
from loaderd.data.ops.table import make_op


class Given(CounterRng):
    """Draws that the test chooses: number k of any op."""

    def __init__(self, *values: float) -> None:
        super().__init__(0, 0, 0)
        self.values = values

    def uniform(self, op: int, k: int) -> float:
        return self.values[k]

    def integer(self, op: int, k: int, n: int) -> int:
        assert 0 <= self.values[k] < n
        return int(self.values[k])


def run(
    name: str, image: np.ndarray, draws: CounterRng | None = None, number: int = 0, **args: Any
) -> np.ndarray:
    """What the op makes of the picture, which stays as it is."""
    before = image.copy()
    view = LazyImage(ArraySource(image))
    make_op(name, args, number).run(view, draws or CounterRng(0, 0, 0))
    out = view.pixels()
    np.testing.assert_array_equal(image, before)
    return out
