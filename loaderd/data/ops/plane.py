"""What an op works on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from loaderd.core.rng import CounterRng
from loaderd.data.images.edges import ZEROS, Fill


class Plane(Protocol):
    """Whatever follows a change of geometry: a picture, or boxes and points on it.

    Attributes:
        height: In pixels, after what was done so far.
        width: Likewise.
    """

    height: int
    width: int

    def crop(self, top: int, left: int, height: int, width: int) -> None:
        """Keep this part, which lies inside."""

    def resize(
        self, height: int, width: int, how: str = "bilinear", *, exact: bool = False
    ) -> None:
        """Bring it to this size, by this interpolation.

        Args:
            height: In pixels.
            width: In pixels.
            how: As LazyImage.resize.
            exact: Of all pixels of the picture.
        """

    def flip(self, *, rows: bool = False) -> None:
        """Mirror left and right; top and bottom if rows."""

    def turn(self, quarters: int) -> None:
        """Turn counterclockwise by 0 to 3 quarters."""

    def pad(self, top: int, bottom: int, left: int, right: int, fill: Fill = ZEROS) -> None:
        """Pixels around it."""


# An op, ready to run on one picture after the other.
Run = Callable[[Any, CounterRng], None]


def pair(size: Any) -> tuple[int, int]:
    """(height, width) of a size as a config has it."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def drawn(draws: CounterRng, number: int, k: int, low: float, high: float) -> float:
    """Uniform in [low, high): draw k of op `number`."""
    return low + (high - low) * draws.uniform(number, k)
