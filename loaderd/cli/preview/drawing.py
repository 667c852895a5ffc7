"""Pictures and curves as a page has them: image data in the page, and SVG over it."""

from __future__ import annotations

import base64
import io
from html import escape
from itertools import pairwise

import numpy as np
from PIL import Image

from loaderd.cli.preview.contact_sheet import coloured
from loaderd.cli.preview.panels import Curve, Picture

MOST = 384  # pixels of the longer side; larger pictures are made smaller
PHOTO = 96  # from this side on pictures are JPEGs
COLUMNS = 240  # of a curve


def figure(picture: Picture, about: str) -> str:
    """A picture with its mask, boxes and points.

    Args:
        picture: What is shown.
        about: The sample, for those who do not see it.
    """
    height, width = picture.pixels.shape[:2]
    said = f"{picture.name} of {about}, {width} x {height} pixels"
    small = " pixels" if max(height, width) < PHOTO else ""
    layers = [f'<img class="base{small}" src="{_data(picture.pixels)}" alt="{escape(said)}">']
    if picture.mask is not None:
        values = np.unique(picture.mask)
        told = f"mask of {said}: labels {', '.join(map(str, values[:12].tolist()))}"
        layers.append(f'<img class="mask pixels" src="{_mask(picture.mask)}" alt="{escape(told)}">')
    marks = [_box(box, name) for box, name in _named(picture)]
    radius = max(height, width) / 80
    marks += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.2f}"/>' for x, y in picture.points]
    if marks:
        told = f"{len(picture.boxes)} boxes and {len(picture.points)} points"
        layers.append(
            f'<svg class="marks" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{told}" style="--u:{max(height, width) / 100:.2f}px">'
            f"{''.join(marks)}</svg>"
        )
    return (
        f"<figure{' class=matrix' if picture.matrix else ''}>"
        f'<div class="layers" style="aspect-ratio:{width}/{height}">'
        f"{''.join(layers)}</div><figcaption>{escape(picture.name)} "
        f"<span>{width} x {height}</span></figcaption></figure>"
    )


def _named(picture: Picture) -> list[tuple[list[float], str]]:
    names = picture.names or ("",) * len(picture.boxes)
    return list(zip(picture.boxes.tolist(), names, strict=True))


def _box(box: list[float], name: str) -> str:
    left, top, right, bottom = box
    shape = (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{max(0, right - left):.1f}" '
        f'height="{max(0, bottom - top):.1f}"/>'
    )
    return shape + (f'<text x="{left:.1f}" y="{top:.1f}">{escape(name)}</text>' if name else "")


def _data(pixels: np.ndarray) -> str:
    """The picture as a data URL: exact where it is small."""
    plain = pixels[..., 0] if pixels.shape[2] == 1 else pixels
    image = Image.fromarray(np.ascontiguousarray(plain))
    if max(image.size) > MOST:
        image.thumbnail((MOST, MOST), Image.Resampling.BOX)
    kind = "PNG" if max(image.size) < PHOTO else "JPEG"
    return _encoded(image, kind)


def _mask(labels: np.ndarray) -> str:
    """A mask as a data URL: a colour for each label, and 0 is not drawn."""
    alpha = np.where(labels == 0, 0, 255).astype(np.uint8)
    image = Image.fromarray(np.dstack([coloured(labels), alpha]))
    if max(image.size) > MOST:
        image.thumbnail((MOST, MOST), Image.Resampling.NEAREST)
    return _encoded(image, "PNG")


def _encoded(image: Image.Image, kind: str) -> str:
    buffer = io.BytesIO()
    image.save(buffer, kind, **({"quality": 88} if kind == "JPEG" else {"optimize": True}))
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def envelope(values: np.ndarray, columns: int) -> np.ndarray:
    """The least and the greatest value in each column, float64, columns x 2."""
    edges = np.linspace(0, len(values), min(columns, len(values)) + 1).astype(int)
    parts = [values[first:last] for first, last in pairwise(edges)]
    return np.array([(part.min(), part.max()) for part in parts])


def curve(panel: Curve, about: str) -> str:
    """A curve as SVG: of many values a band from the least to the greatest in each column."""
    low, high = float(panel.values.min()), float(panel.values.max())
    if panel.sound:  # silence lies in the middle
        high = max(abs(low), abs(high))
        low = -high
    columns = envelope(panel.values, COLUMNS)
    scaled = 38 - 36 * (columns - low) / (high - low or 1.0)
    if high == low:
        scaled[:] = 20
    xs = np.linspace(0, COLUMNS, len(columns)) if len(columns) > 1 else np.zeros(1)
    top = [f"{x:.1f} {y:.1f}" for x, y in zip(xs, scaled[:, 1], strict=True)]
    bottom = [f"{x:.1f} {y:.1f}" for x, y in zip(xs, scaled[:, 0], strict=True)]
    band = len(panel.values) > COLUMNS
    path = f"M{' L'.join([*top, *bottom[::-1]] if band else top)}{'Z' if band else ''}"
    what = "waveform" if panel.sound else "values"
    label = escape(f"{what} of {panel.name} of {about}: {panel.note}")
    zero = '<line x1="0" x2="240" y1="20" y2="20"/>' if panel.sound else ""
    return (
        f'<figure><svg class="curve{" band" if band else ""}" viewBox="0 0 {COLUMNS} 40" '
        f'preserveAspectRatio="none" role="img" aria-label="{label}">{zero}<path d="{path}"/></svg>'
        f"<figcaption>{escape(panel.name)} <span>{escape(panel.note)}</span></figcaption></figure>"
    )
