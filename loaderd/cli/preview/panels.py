"""What of a sample can be looked at: pictures with what is drawn over them, curves, texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loaderd.cli.preview.contact_sheet import is_mask, shown
from loaderd.config.stream import StreamConfig
from loaderd.config.transforms import MARKS
from loaderd.data.sample import Sample

BOXES, NAMES = ("boxes", "bboxes"), ("labels", "label")
SHOWN_TEXT, SHOWN_NUMBERS = 600, 24
AUDIO = 1000  # values of a float array that is taken for sound
LEAST_CURVE = 8  # values of a curve; fewer are written as numbers


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of uint8, height x width x 1 or 3.

    Attributes:
        pixels: It.
        mask: A whole number for each pixel, or None.
        boxes: n x 4, x1, y1, x2, y2 in pixels.
        names: Of the boxes, or ().
        points: n x 2.
        matrix: It is no picture, but an array shown as one.
    """

    name: str
    pixels: np.ndarray
    mask: np.ndarray | None = None
    boxes: np.ndarray = field(default_factory=lambda: np.empty((0, 4)))
    names: tuple[str, ...] = ()
    points: np.ndarray = field(default_factory=lambda: np.empty((0, 2)))
    matrix: bool = False


@dataclass(frozen=True, slots=True)
class Curve:
    """Numbers along one axis, without gaps.

    Attributes:
        sound: They are a waveform.
    """

    name: str
    values: np.ndarray
    note: str
    sound: bool = False


@dataclass(frozen=True, slots=True)
class Words:
    """A field as text."""

    name: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Panels:
    """All that is shown of one sample."""

    pictures: tuple[Picture, ...] = ()
    curves: tuple[Curve, ...] = ()
    words: tuple[Words, ...] = ()


class PanelMaker:
    """Makes the panels of a stream's samples.

    Args of the config say which fields are boxes and points; fields called `boxes` are, too.
    """

    def __init__(self, plan: StreamConfig, classes: Sequence[str]) -> None:
        self._modes = plan.modes()
        self._classes = classes
        said: dict[str, set[str]] = {word: set() for word in MARKS}
        for step in plan.transforms:
            for word in ("boxes", "keypoints", "polygons"):
                value = (step.args if step.op else step.options).get(word)
                said[word].update([value] if value else [])
        self._boxes = (*said["boxes"], *BOXES)
        self._points = (*said["keypoints"], *said["polygons"])

    def of(self, sample: Sample) -> Panels:
        """The panels of one sample. Its fields are arrays, str and bytes."""
        pictures, used = self._pictures(sample)
        curves: list[Curve] = []
        words: list[Words] = []
        for name, value in sample.items():
            if name in used:
                continue
            if isinstance(value, (str, bytes)):
                words.append(_text(name, value))
            elif value.ndim == 0:
                words.append(Words(name, str(value.dtype), self._number(name, value)))
            elif (curve := _curve(name, value)) is not None:
                curves.append(curve)
            elif _is_matrix(value):
                pictures.append(Picture(f"{name} {_kind(value)}", _heat(value), matrix=True))
            else:
                words.append(Words(name, _kind(value), _numbers(value)))
        return Panels(tuple(pictures), tuple(curves), tuple(words))

    def _number(self, name: str, value: np.ndarray) -> str:
        number = value.item()
        known = name in NAMES and value.dtype.kind in "iu" and 0 <= number < len(self._classes)
        return f"{number} ({self._classes[number]})" if known else f"{number:.6g}"

    def _pictures(self, sample: Sample) -> tuple[list[Picture], set[str]]:
        """The pictures, and the fields that need not be shown apart from them."""
        names = [name for name in sample if name in sample.images or name in sample.planar]
        masks = [name for name in sample if is_mask(name, sample, names, self._modes)]
        whole = [(name, shown(name, sample)) for name in names if name not in masks]
        labels = {name: _flat(sample[name]) for name in masks}
        used = set(names)
        found: list[Picture] = []
        for name, pixels in whole:
            size = pixels.shape[:2]
            mask = next((each for each in labels.values() if each.shape == size), None)
            boxes, box_names, points = np.empty((0, 4)), (), np.empty((0, 2))
            if len(whole) == 1 or not found:
                boxes, box_names = self._marks(sample)
                points = self._keypoints(sample)
            found.append(Picture(name, pixels, mask, boxes, box_names, points))
            used |= {each for each, value in labels.items() if value is mask}
        found += [
            Picture(name, np.zeros((*value.shape, 1), np.uint8), value)
            for name, value in labels.items()
            if name not in used or not whole
        ]
        return found, used | set(labels)

    def _marks(self, sample: Sample) -> tuple[np.ndarray, tuple[str, ...]]:
        for name in self._boxes:
            boxes = sample.get(name)
            if not isinstance(boxes, np.ndarray) or boxes.ndim != 2 or boxes.shape[1] != 4:
                continue
            labels = sample.get("labels")
            if isinstance(labels, np.ndarray) and labels.shape == (len(boxes),):
                return boxes.astype(np.float64), tuple(map(self._class, labels.tolist()))
            return boxes.astype(np.float64), ()
        return np.empty((0, 4)), ()

    def _class(self, number: Any) -> str:
        known = isinstance(number, int) and 0 <= number < len(self._classes)
        return self._classes[number] if known else str(number)

    def _keypoints(self, sample: Sample) -> np.ndarray:
        found = [np.empty((0, 2))]
        for name in self._points:
            value = sample.get(name)
            if isinstance(value, np.ndarray) and value.ndim >= 2 and value.shape[-1] in (2, 3):
                found.append(value[..., :2].reshape(-1, 2).astype(np.float64))
        return np.concatenate(found)


def _flat(labels: np.ndarray) -> np.ndarray:
    """A mask without its axis of channels."""
    if labels.ndim == 2:
        return labels.astype(np.int64)
    return (labels[0] if labels.shape[0] == 1 else labels[..., 0]).astype(np.int64)


def _text(name: str, value: str | bytes) -> Words:
    if isinstance(value, str):
        cut = value if len(value) <= SHOWN_TEXT else value[:SHOWN_TEXT] + " ..."
        return Words(name, f"text, {len(value):,} characters", cut)
    more = " ..." if len(value) > 32 else ""
    return Words(name, f"bytes, {len(value):,}", value[:32].hex(" ") + more)


def _kind(value: np.ndarray) -> str:
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"


def _numbers(value: np.ndarray) -> str:
    """The first numbers of an array, and what it spans if there are more."""
    if value.size == 0:
        return "empty"
    rows = value.reshape(-1, value.shape[-1]) if value.ndim > 1 else value[np.newaxis]
    lines: list[str] = []
    left = SHOWN_NUMBERS
    for row in rows:
        lines.append(" ".join(_word(each) for each in row[:left].tolist()))
        left -= len(row)
        if left <= 0:
            break
    text = "\n".join(lines)
    return text if value.size <= SHOWN_NUMBERS else f"{text} ... ({_span(value)})"


def _word(number: Any) -> str:
    return f"{number:.4g}" if isinstance(number, float) else str(number)


def _span(value: np.ndarray) -> str:
    if value.dtype.kind not in "biuf":
        return f"{value.size:,} values"
    real = value[np.isfinite(value)] if value.dtype.kind == "f" else value
    if not real.size:
        return "no finite values"
    odd = value.size - real.size
    return f"{_word(real.min().item())} to {_word(real.max().item())}" + (
        f", {odd:,} not finite" if odd else ""
    )


def _curve(name: str, value: np.ndarray) -> Curve | None:
    """A curve of an array along one axis, of several channels the first; else None.

    Whole numbers are tokens, unless they are sound of 16 bits.
    """
    if value.ndim == 2 and min(value.shape) <= 2 and max(value.shape) >= AUDIO:
        line = value[0] if value.shape[0] <= 2 else value[:, 0]
    elif value.ndim == 1:
        line = value
    else:
        return None
    sound = len(line) >= AUDIO
    if len(line) < LEAST_CURVE or not (
        value.dtype.kind == "f" or (value.dtype == np.int16 and sound)
    ):
        return None
    numbers = np.nan_to_num(line.astype(np.float64), posinf=0, neginf=0)
    return Curve(name, numbers, f"{_kind(value)}, {_span(value)}", sound)


def _is_matrix(value: np.ndarray) -> bool:
    return value.ndim >= 2 and value.dtype.kind in "biuf" and min(value.shape[-2:]) >= LEAST_CURVE


def _heat(value: np.ndarray) -> np.ndarray:
    """The first plane of an array as gray levels, uint8, height x width x 1."""
    plane = value[(0,) * (value.ndim - 2)].astype(np.float64)
    real = plane[np.isfinite(plane)]
    low, high = (float(real.min()), float(real.max())) if real.size else (0.0, 0.0)
    levels = (np.nan_to_num(plane, nan=low, posinf=high, neginf=low) - low) / (high - low or 1.0)
    return (levels * 255).astype(np.uint8)[:, :, np.newaxis]
