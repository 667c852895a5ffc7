"""What an op does to one picture, in words: for people who look at a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loaderd.core.rng import CounterRng
from loaderd.data.images.edges import ZEROS, Fill
from loaderd.data.ops.plane import Run

PLAIN = ("to_float", "normalize", "to_chw")  # do the same to every picture


class PlaneLog:
    """A Plane that writes down what is done to it."""

    def __init__(self, height: int, width: int) -> None:
        self.height, self.width = height, width
        self.words: list[str] = []

    def crop(self, top: int, left: int, height: int, width: int) -> None:
        """Written with the place of its upper left corner: row, column."""
        self.words.append(f"{height} x {width} at {top}, {left} of {self.height} x {self.width}")
        self.height, self.width = height, width

    def resize(
        self, height: int, width: int, how: str = "bilinear", *, exact: bool = False
    ) -> None:
        """Written with the size that comes out."""
        self.words.append(f"resized to {height} x {width}")
        self.height, self.width = height, width

    def flip(self, *, rows: bool = False) -> None:
        """Written as yes: the op's name says what it is."""
        self.words.append("yes")

    def turn(self, quarters: int) -> None:
        """Written in degrees."""
        self.words.append(f"{90 * quarters} degrees")
        if quarters % 2:
            self.height, self.width = self.width, self.height

    def pad(self, top: int, bottom: int, left: int, right: int, fill: Fill = ZEROS) -> None:
        """Written with the pixels on each side."""
        self.words.append(f"padded by {top}, {bottom}, {left}, {right}")
        self.height, self.width = self.height + top + bottom, self.width + left + right


def told(op: str, run: Run, height: int, width: int, draws: CounterRng) -> str:
    """What the op does to a picture of this size, with these draws; "" for one that never differs.

    Args:
        op: Its name.
        run: The op, ready to run.
        height: Of the picture before, in pixels.
        width: Likewise.
        draws: Of the sample.
    """
    if op in PLAIN:
        return ""
    tell: Callable[..., list[str]] | None = getattr(run, "told", None)
    if tell is None:
        log: Any = PlaneLog(height, width)
        run(log, draws)
        words = log.words
    else:
        words = tell(height, width, draws)
    return f"{op}: {', '.join(words) or 'no'}"
