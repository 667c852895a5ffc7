"""What a contact sheet shows of a sample in its one cell."""

from __future__ import annotations

from typing import Any

import numpy as np

from loaderd.cli.preview.contact_sheet import CELL, picture_of
from loaderd.cli.preview.drawing import envelope
from loaderd.cli.preview.panels import Curve, Panels
from loaderd.config.decode_modes import DecodeModes

INK, PAPER = 70, 250


def picture(sample: Any, panels: Panels | None, modes: DecodeModes) -> np.ndarray | None:
    """The sample's first picture, else its first array or curve as one; None without any."""
    found = picture_of(sample, modes)
    if found is None and panels is not None:
        if panels.pictures:
            return panels.pictures[0].pixels
        if panels.curves:
            return _curve(panels.curves[0])
    return found


def marks(panels: Panels | None) -> tuple[np.ndarray | None, np.ndarray | None, str]:
    """Boxes and points of the first picture, and the text of a sample that has none."""
    if panels is None:
        return None, None, ""
    if panels.pictures:
        return panels.pictures[0].boxes, panels.pictures[0].points, ""
    text = "  ".join(f"{each.name}: {each.text}" for each in panels.words)
    return None, None, text


def _curve(panel: Curve) -> np.ndarray:
    """A curve as uint8, CELL x CELL x 1."""
    columns = envelope(panel.values, CELL)
    low, high = float(columns.min()), float(columns.max())
    if panel.sound:
        low = min(low, -high)
        high = -low
    rows = (
        (CELL - 1) * (1 - (columns - low) / (high - low)) if high > low else columns * 0 + CELL / 2
    )
    drawn = np.full((CELL, CELL, 1), PAPER, np.uint8)
    ends = np.linspace(0, CELL, len(rows) + 1).astype(int)
    for (bottom, top), first, last in zip(rows, ends[:-1], ends[1:], strict=True):
        drawn[int(top) : int(bottom) + 1, first:last] = INK
    return drawn
