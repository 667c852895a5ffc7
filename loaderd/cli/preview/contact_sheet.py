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
MARK = (255, 176, 0)
INK, PALE, ALARM, PAPER = (20, 20, 20), (110, 110, 110), (190, 30, 30), (255, 255, 255)


@dataclass(frozen=True, slots=True)
class Cell:
    """A picture of the sheet.

    Attributes:
        picture: As in a sample, or None.
        lines: Below it.
        alarm: This one has failed.
        boxes: n x 4, x1, y1, x2, y2 in the picture's pixels.
        points: n x 2.
        text: Inside the cell, where there is no picture.
    """

    picture: np.ndarray | None
    lines: tuple[str, ...]
    alarm: bool = False
    boxes: np.ndarray | None = None
    points: np.ndarray | None = None
    text: str = ""


def picture_of(sample: Any, modes: DecodeModes) -> np.ndarray | None:
    """The sample's first picture as uint8, its first mask of the same size beside it.

    Each label of a mask has a colour of its own: 0 is black.

    Returns:
        [height, width, 1 or 3]; None if it has neither.
    """
    pictures = [name for name in sample if name in sample.images or name in sample.planar]
    masks = [name for name in sample if is_mask(name, sample, pictures, modes)]
    first = [shown(name, sample) for name in pictures if name not in masks][:1]
    mask = next(
        (
            mask
            for mask in map(coloured, (sample[name] for name in masks))
            if not first or mask.shape[:2] == first[0].shape[:2]
        ),
        None,
    )
    if mask is None or not first:
        return mask if mask is not None else first[0] if first else None
    return np.concatenate([np.broadcast_to(first[0], mask.shape), mask], axis=1)


def is_mask(name: str, sample: Any, pictures: list[str], modes: DecodeModes) -> bool:
    """Whether a field has a label for each pixel; pictures: the fields that are images."""
    value = sample[name]
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biu":
        return False
    if name in pictures:
        return modes.of(name) == "index"
    return name in modes.paired and (value.ndim == 2 or (value.ndim == 3 and value.shape[2] == 1))


def coloured(labels: np.ndarray) -> np.ndarray:
    """A colour for each label, uint8, height x width x 3."""
    plain = (
        labels if labels.ndim == 2 else labels[0] if labels.shape[0] == 1 else labels[..., 0]
    ).astype(np.int64)
    return np.stack([plain * factor % 256 for factor in (103, 53, 199)], axis=2).astype(np.uint8)


def shown(name: str, sample: Any) -> np.ndarray:
    """A picture as uint8, height x width x 1 or 3; floats are spread over what can be shown."""
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
            _paste(sheet, cell, cell.picture, left, top)
        else:
            pen.rectangle(
                (left, top, left + CELL - 1, top + CELL - 1), outline=ALARM if cell.alarm else PALE
            )
            for at, line in enumerate(_wrapped(cell.text, font)):
                pen.text((left + 5, top + 4 + at * LINE), line, INK, font)
        for at, line in enumerate(cell.lines):
            ink = ALARM if cell.alarm else INK if at == 0 else PALE
            pen.text(
                (left, top + CELL + PAD // 2 + at * LINE), _fitting(line, CELL, font), ink, font
            )
    return sheet


def _paste(sheet: Image.Image, cell: Cell, picture: np.ndarray, left: int, top: int) -> None:
    image = Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture).convert("RGB")
    scale = CELL / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    # small pictures keep their pixels, so that one sees what the network sees
    image = image.resize(size, Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX)
    pen = ImageDraw.Draw(image)
    for x1, y1, x2, y2 in cell.boxes if cell.boxes is not None else ():
        if x2 > x1 and y2 > y1:
            right, bottom = max(x1 * scale, x2 * scale - 1), max(y1 * scale, y2 * scale - 1)
            pen.rectangle((x1 * scale, y1 * scale, right, bottom), outline=MARK)
    for x, y in cell.points if cell.points is not None else ():
        pen.ellipse((x * scale - 1, y * scale - 1, x * scale + 1, y * scale + 1), fill=MARK)
    sheet.paste(image, (left + (CELL - image.width) // 2, top + (CELL - image.height) // 2))


def _wrapped(text: str, font: Any) -> list[str]:
    """The text in lines of a cell's width, as many as it has room for."""
    lines: list[str] = []
    text = printable(text)
    while text and len(lines) < (CELL - 8) // LINE:
        count = min(len(text), CELL)
        while count > 1 and font.getlength(text[:count]) > CELL - 10:
            count -= 1
        space = text.rfind(" ", 0, count)
        count = space + 1 if count < len(text) and space > 0 else count
        lines.append(text[:count])
        text = text[count:]
    return lines


def printable(text: str) -> str:
    """The text with ? for what the font can't draw."""
    return "".join(c if c.isprintable() and ord(c) < 256 else "?" for c in text)


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
    text = printable(text)
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(".." + text) > width:
        text = text[1:]
    return ".." + text
