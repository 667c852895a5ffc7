"""A contact sheet: one cell a sample, with its picture and a few lines of text, as a PNG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from loaderd.config.decode_modes import DecodeModes

CELL = 160  # pixels, the longer side of a picture
PAD = 8
LINE = 15
FONT = 12
INK, PALE, ALARM, PAPER = (20, 20, 20), (110, 110, 110), (190, 30, 30), (255, 255, 255)


@dataclass(frozen=True, slots=True)
class Cell:
    """A picture of the sheet.

    Attributes:
        picture: As in a sample, or None.
        lines: Below it.
        alarm: This one has failed.
    """

    picture: np.ndarray | None
    lines: tuple[str, ...]
    alarm: bool = False


def picture_of(sample: Any, modes: DecodeModes) -> np.ndarray | None:
    """The sample's first picture as uint8, its first mask of the same size beside it.

    Each label of a mask has a colour of its own: 0 is black.

    Returns:
        [height, width, 1 or 3]; None if it has neither.
    """
    pictures = [name for name in sample if name in sample.images or name in sample.planar]
    masks = [name for name in sample if _is_mask(name, sample, pictures, modes)]
    shown = [_shown(name, sample) for name in pictures if name not in masks][:1]
    mask = next(
        (
            mask
            for mask in map(_coloured, (sample[name] for name in masks))
            if not shown or mask.shape[:2] == shown[0].shape[:2]
        ),
        None,
    )
    if mask is None or not shown:
        return mask if mask is not None else shown[0] if shown else None
    return np.concatenate([np.broadcast_to(shown[0], mask.shape), mask], axis=1)


def _is_mask(name: str, sample: Any, pictures: list[str], modes: DecodeModes) -> bool:
    value = sample[name]
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biu":
        return False
    if name in pictures:
        return modes.of(name) == "index"
    return name in modes.paired and (value.ndim == 2 or (value.ndim == 3 and value.shape[2] == 1))


def _coloured(labels: np.ndarray) -> np.ndarray:
    plain = (
        labels if labels.ndim == 2 else labels[0] if labels.shape[0] == 1 else labels[..., 0]
    ).astype(np.int64)
    return np.stack([plain * factor % 256 for factor in (103, 53, 199)], axis=2).astype(np.uint8)


def _shown(name: str, sample: Any) -> np.ndarray:
    picture = np.asarray(sample[name])
    if name in sample.planar:
        picture = picture.transpose(1, 2, 0)
    picture = picture[..., :3] if picture.shape[-1] in (3, 4) else picture[..., :1]
    if picture.dtype == np.uint8:
        return picture
    low, high = float(np.nanmin(picture)), float(np.nanmax(picture))
    if low < 0 or high > 1:  # normalised, or of another range: spread over what can be shown
        picture = (picture - low) / max(1e-12, high - low)
    return (np.nan_to_num(picture) * 255).clip(0, 255).astype(np.uint8)


def draw(title: str, cells: Sequence[Cell]) -> Image.Image:
    """The sheet, about as wide as a screen."""
    columns = max(1, min(len(cells), 10, math.ceil(math.sqrt(len(cells) * 1.6))))
    lines = max((len(cell.lines) for cell in cells), default=0)
    wide, high = CELL + PAD, CELL + PAD + lines * LINE + PAD
    rows = math.ceil(len(cells) / columns)
    sheet = Image.new("RGB", (columns * wide + PAD, rows * high + PAD + LINE + PAD), PAPER)
    pen, font = ImageDraw.Draw(sheet), _font()
    pen.text((PAD, PAD), _fitting(title, sheet.width - 2 * PAD, font), INK, font)
    for n, cell in enumerate(cells):
        left, top = PAD + n % columns * wide, PAD + LINE + PAD + n // columns * high
        if cell.picture is not None:
            _paste(sheet, cell.picture, left, top)
        else:
            pen.rectangle(
                (left, top, left + CELL - 1, top + CELL - 1), outline=ALARM if cell.alarm else PALE
            )
        for at, line in enumerate(cell.lines):
            ink = ALARM if cell.alarm else INK if at == 0 else PALE
            pen.text(
                (left, top + CELL + PAD // 2 + at * LINE), _fitting(line, CELL, font), ink, font
            )
    return sheet


def _paste(sheet: Image.Image, picture: np.ndarray, left: int, top: int) -> None:
    image = Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture).convert("RGB")
    scale = CELL / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    # small pictures keep their pixels, so that one sees what the network sees
    image = image.resize(size, Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX)
    sheet.paste(image, (left + (CELL - image.width) // 2, top + (CELL - image.height) // 2))


def _font() -> Any:
    try:
        return ImageFont.load_default(FONT)
    except (TypeError, OSError, ImportError):
        # Pillow before 10.1, or without FreeType: its bitmap font.
        return ImageFont.load_default()


def _fitting(text: str, width: int, font: Any) -> str:
    """The text, or its end: of a long key that is what tells it from others.

    What the font can't draw is shown as ?.
    """
    text = "".join(c if c.isprintable() and ord(c) < 256 else "?" for c in text)
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(".." + text) > width:
        text = text[1:]
    return ".." + text
