"""The orientation that a camera wrote into a stored image (EXIF)."""

from __future__ import annotations

import io
import warnings
from typing import Any, Protocol

import numpy as np
from PIL import Image

TAG = 0x0112
HEAD = 1 << 17  # bytes of a JPEG in which its EXIF data begins, if it has any
# Orientation -> (quarters to turn counterclockwise, then mirror left and right, top and bottom).
CHANGES = {
    2: (0, True, False),
    3: (2, False, False),
    4: (0, False, True),
    5: (1, False, True),
    6: (3, False, False),
    7: (1, True, False),
    8: (1, False, False),
}


class Turnable(Protocol):
    """A picture that can be turned and mirrored."""

    def turn(self, quarters: int) -> None:
        """Turn counterclockwise by 0 to 3 quarters."""

    def flip(self, *, rows: bool = False) -> None:
        """Mirror left and right; top and bottom if rows."""


def orientation_of(data: bytes | memoryview) -> int:
    """The EXIF orientation, 1 to 8; 1, which changes nothing, where nothing is said.

    Of a TIFF always 1, since decoding it obeys the tag.
    """
    head = bytes(data[:HEAD])
    if head.startswith(b"\xff\xd8\xff") and b"Exif\0\0" not in head:
        return 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data)) as image:
                return exif_orientation(image)
    except Exception:  # noqa: BLE001 - whoever decodes it says what is wrong with it
        return 1


def exif_orientation(image: Any) -> int:
    """The same of a Pillow image."""
    found = 1 if image.format == "TIFF" else image.getexif().get(TAG, 1)
    return found if found in CHANGES else 1


def upright(view: Turnable, orientation: int) -> None:
    """Undo what the camera did."""
    quarters, across, down = CHANGES.get(orientation, (0, False, False))
    if quarters:
        view.turn(quarters)
    if across:
        view.flip()
    if down:
        view.flip(rows=True)


def upright_pixels(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """The same with height x width x channels; `pixels` itself where nothing is to be undone."""
    quarters, across, down = CHANGES.get(orientation, (0, False, False))
    if not (quarters or across or down):
        return pixels
    turned = np.rot90(pixels, quarters)
    return np.ascontiguousarray(turned[:: -1 if down else 1, :: -1 if across else 1])
