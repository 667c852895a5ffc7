"""The numbers of a Pillow image as its file stores them.

mode = "index" delivers those, for masks whose numbers are labels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from loaderd.data.images.image_error import ImageError

LABELS = ("P", "PA", "1")  # Pillow's modes, besides 16-bit gray, whose numbers colours don't keep


def holds_labels(image: Any, *, gray: bool = False) -> bool:
    """Whether a Pillow image has numbers, maybe labels, that are lost in "rgb" or "gray".

    Args:
        image: The image.
        gray: Those of a gray one may be lost as well, since it is to be resized with a picture.
    """
    return image.mode in LABELS or has_sixteen_bits(image) or (gray and image.mode == "L")


def has_sixteen_bits(image: Any) -> bool:
    """Whether a Pillow image is gray with 16 bits, which colours of 8 bits don't keep."""
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))


def stored_numbers(image: Any) -> np.ndarray:
    """The numbers of a Pillow image as they are stored: height x width x 1.

    Raises ImageError for one with colours, and where they can't be known.
    """
    if image.mode not in ("P", "PA", "L", "1") and not has_sixteen_bits(image):
        raise ImageError(
            'mode = "index" keeps the numbers of palette, gray, 1-bit and 16-bit gray images; '
            f"this one is of mode {image.mode!r}: "
            'use "rgb" or "gray"'
        )
    top, inverted = _top(image)
    made = np.array(image.getchannel(0) if image.mode == "PA" else image)
    full = 1 if image.mode == "1" else 65535 if has_sixteen_bits(image) else 255
    numbers = made.astype(np.uint16 if full > 255 else np.uint8)[:, :, np.newaxis]
    if top not in (None, full):
        stored = np.rint(numbers * (top / full))
        if (np.rint(stored * (full / top)) != numbers).any():
            raise _unknown(
                image, f"it was changed after it was read from a file of numbers up to {top}"
            )
        numbers = stored.astype(np.uint16 if top > 255 else np.uint8)
    return (top or full) - numbers if inverted else numbers


def _unknown(image: Any, why: str) -> ImageError:
    return ImageError(
        f'mode = "index" cannot give the numbers of this {image.format} image as they are stored: '
        f"{why}. Store the mask as an 8-bit or "
        "16-bit gray PNG, or a palette PNG; a dataset may return the file's bytes, or "
        "numpy.asarray(image) for the numbers that Pillow makes"
    )


# Formats whose numbers Pillow hands out as they are. None: an image that no file was read for, or
# that user code made of another.
AS_THEY_ARE = (None, "JPEG", "MPO", "GIF", "BMP", "DIB", "PCX", "XBM", "PSD", "DDS", "TGA")
RAW_TOPS = {"L;2": 3, "L;4": 15}  # of Pillow's raw modes


def _top(image: Any) -> tuple[int | None, bool]:
    """What Pillow has done to the numbers; asked before the image is loaded: it forgets then.

    Returns:
        (the number that Pillow stretched to the largest of the image's mode, None if it stretched
        nothing; whether it turned the numbers round).

    Raises:
        ImageError: That can't be known.
    """
    tiles = getattr(image, "tile", None)
    gray_bmp = image.format in ("BMP", "DIB") and image.mode == "L"
    if gray_bmp and tiles and _at(image, 28 if image.format == "BMP" else 14, 2) != b"\x08\0":
        raise _unknown(image, "Pillow reads gray images of fewer than 8 bits wrongly")
    if image.format in AS_THEY_ARE and (tiles or not gray_bmp):
        return None, False
    if image.format == "TIFF":
        return _tiff_top(image)
    if image.mode == "1":
        return None, image.format in ("PPM", "SUN")
    if image.format == "PNG" and image.mode != "L":
        return None, False
    if not tiles:
        return _top_of_loaded(image)
    args = tiles[0][3]
    if image.format in ("PNG", "SUN"):
        return RAW_TOPS.get(args if isinstance(args, str) else args[0]), False
    if image.format == "PPM":
        return _ppm_top(image), False
    if image.format == "JPEG2000" and _jpeg2000_bits(image) == (
        16 if has_sixteen_bits(image) else 8
    ):
        return None, False
    if image.format == "SGI" and _at(image, 3, 1) == b"\1":
        return None, False
    raise _unknown(image, "Pillow changes numbers of this bit depth, or does not report it")


def _top_of_loaded(image: Any) -> tuple[int | None, bool]:
    name = getattr(image, "filename", "")
    try:
        again = Image.open(name) if name else None
    except OSError:
        again = None
    if again is not None:
        with again:
            if getattr(again, "tile", None) and (again.format, again.mode, again.size) == (
                image.format,
                image.mode,
                image.size,
            ):
                return _top(again)
    made = np.asarray(image)
    if (
        image.format in ("BMP", "DIB")
        or (image.format in ("PNG", "PPM") and not made.any())
        # what has 2 or 4 bits becomes multiples of 17
        or (image.format == "PNG" and (made % 17).any())
    ):
        return None, False
    raise _unknown(
        image, "it was loaded already, and Pillow does not keep how many bits the file had"
    )


def _tiff_top(image: Any) -> tuple[int | None, bool]:
    tags = image.tag_v2
    bits, white = tags.get(258, (1,))[0], tags.get(262, 0) == 0
    if tags.get(339, (1,))[0] != 1:
        raise _unknown(image, "they are signed or fractional")
    if has_sixteen_bits(image):  # Pillow leaves those as they are
        return None, False
    return (
        None if bits in (1, 8) or image.mode != "L" else (1 << bits) - 1
    ), white and image.mode in ("L", "1")


def _at(image: Any, offset: int, size: int) -> bytes:
    """Bytes of the file of an image that is not loaded yet."""
    here = image.fp.tell()
    try:
        image.fp.seek(offset)
        return image.fp.read(size)
    finally:
        image.fp.seek(here)


def _ppm_top(image: Any) -> int | None:
    codec, _, offset, args = image.tile[0]
    if isinstance(args, str):
        return None
    top = args[1]
    if codec == "ppm":  # it lowers what is larger
        number = np.dtype(">u2" if top > 255 else np.uint8)
        raster = _at(image, offset, image.width * image.height * number.itemsize)
        numbers = np.frombuffer(raster, number, len(raster) // number.itemsize)
        if numbers.size and numbers.max() > top:
            raise _unknown(image, f"some are larger than the maximum that the file declares, {top}")
    return top


def _jpeg2000_bits(image: Any) -> int:
    """Bits of the first component; 0 if that is not found, or signed."""
    head = _at(image, 0, 1 << 16)
    at = head.find(b"\xff\x4f\xff\x51")
    return head[at + 42] + 1 if at >= 0 and at + 42 < len(head) and head[at + 42] < 128 else 0
