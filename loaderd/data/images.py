"""Stored images to pixels. One policy for every format and codec:

- uint8, height x width x channels, writable, contiguous; "rgb" has 3 channels, "gray" 1.
- EXIF orientation is ignored (as torchvision's ImageFolder does); only a TIFF's own tag is obeyed, by Pillow itself. The first frame of
  an animation counts.
- Alpha is dropped, not composited: the colours are what is stored. Palettes, 1-bit, gray, gray + alpha become RGB.
- CMYK and YCCK go through Pillow's conversion, which has no colour profile.
- 16-bit images are scaled to 8 bits (their high byte); 32-bit integer and float images are refused: nobody knows their range.
- A truncated or damaged file is an error, never a partly gray picture. More than MAX_PIXELS is refused before memory is taken.
"""

from __future__ import annotations

import io
import threading
import warnings
from typing import Any

import cv2
import numpy as np
import simplejpeg
from PIL import Image, ImageFile, UnidentifiedImageError

MAX_PIXELS = 178_956_970  # what Pillow refuses too
JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
# No format that runs a program (EPS) or has no magic number.
FORMATS = (
    "JPEG",
    "MPO",
    "PNG",
    "WEBP",
    "GIF",
    "BMP",
    "DIB",
    "TIFF",
    "PPM",
    "AVIF",
    "JPEG2000",
    "ICO",
    "QOI",
    "PCX",
    "SGI",
    "DDS",
    "SUN",
    "XBM",
    "PSD",
)
_QUIET = threading.Lock()  # which warnings are shown is the process's, not a thread's
PLAIN = {"rgb": "RGB", "gray": "L"}


class ImageError(ValueError):
    """An image that cannot be decoded; the text says why."""


def codec_of(data: bytes | memoryview) -> str:
    """ "jpeg", "png" or "other"."""
    head = bytes(data[:8])
    return "jpeg" if head.startswith(JPEG) else "png" if head == PNG else "other"


def allowed(height: int, width: int) -> None:
    """Raises ImageError for an image without pixels, or with too many."""
    if height < 1 or width < 1:
        raise ImageError(f"the image has no pixels ({height} x {width})")
    if height * width > MAX_PIXELS:
        raise ImageError(f"the image has {height} x {width} = {height * width} pixels, more than the limit of {MAX_PIXELS}")


def decode(data: bytes | memoryview, mode: str = "rgb") -> np.ndarray:
    """The pixels of a stored image (see the policy above) as an array of the caller's own. Raises ImageError."""
    if len(data) == 0:
        raise ImageError("the image is empty (0 bytes)")
    codec = codec_of(data)
    if codec == "jpeg":
        return _jpeg(data, mode)
    if codec == "png":
        return _png(data, mode)
    return _pillow(data, mode)


def _jpeg(data: bytes | memoryview, mode: str) -> np.ndarray:
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(data)
        allowed(height, width)
        if space in ("CMYK", "YCCK"):
            return _pillow(data, mode)
        channels = 1 if mode == "gray" else 3
        out = np.empty((height, width, channels), np.uint8)
        simplejpeg.decode_jpeg(data, colorspace="GRAY" if channels == 1 else "RGB", buffer=out)
        return out
    except ImageError:
        raise
    except ValueError as error:
        # What libjpeg-turbo's simple interface will not read (12 bits, arithmetic coding, lossless) Pillow may.
        return _second_try(data, mode, f"damaged JPEG: {error}")


def _second_try(data: bytes | memoryview, mode: str, first: str) -> np.ndarray:
    try:
        return _pillow(data, mode)
    except ImageError:
        raise ImageError(first) from None


def _png(data: bytes | memoryview, mode: str) -> np.ndarray:
    head = bytes(data[:33])
    if len(head) < 33 or head[8:16] != b"\0\0\0\rIHDR":
        raise ImageError("damaged PNG: it has no header")
    allowed(int.from_bytes(head[20:24], "big"), int.from_bytes(head[16:20], "big"))
    _walk_png(data)
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as error:
        return _second_try(data, mode, f"damaged PNG: {str(error).strip()}")
    if image is None:
        return _second_try(data, mode, "damaged PNG")
    if mode == "gray":
        return cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)[:, :, np.newaxis]
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB, dst=image)


def _walk_png(data: bytes | memoryview) -> None:
    """Raises ImageError unless every chunk lies within the data, up to the last one: OpenCV takes memory for what a chunk says it is long,
    which in a file of a hundred bytes may be 4 GB, and says nothing of an end that is missing."""
    at = len(PNG)
    while at + 8 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if data[at + 4 : at + 8] == b"IEND" and size == 0:
            return
        at += 12 + size
    raise ImageError(f"truncated or damaged PNG: its parts need more than its {len(data)} bytes")


def _formats() -> list[str]:
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _pillow(data: bytes | memoryview, mode: str) -> np.ndarray:
    # User code in this process may have set it, and then Pillow would fill what is missing with gray.
    lenient, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, False
    try:
        with _QUIET, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=_formats()) as image:
                allowed(image.height, image.width)
                image.load()
                return from_pillow(image, mode)
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise ImageError(f"not an image that can be read: {len(data)} bytes that begin with {bytes(data[:8]).hex(' ')}") from None
    except Image.DecompressionBombError as error:
        raise ImageError(f"more pixels than the limit: {error}") from None
    except Exception as error:  # noqa: BLE001 - Pillow's plugins raise anything on damaged files: OSError, SyntaxError, struct.error, ...
        raise ImageError(f"damaged image: {type(error).__name__}: {error}") from None
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = lenient


def from_pillow(image: Any, mode: str = "rgb") -> np.ndarray:
    """A Pillow image as pixels, by the policy above. Raises ImageError for modes that have no known range."""
    if image.mode in ("I", "F") and not (image.mode == "I" and image.format in ("PNG", "PPM")):
        raise ImageError(f"an image of mode {image.mode!r} (32 bits) has no known range: convert it to 8 bits first")
    if image.mode == "I" or image.mode.startswith("I;16"):
        high = (np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
        pixels = high if mode == "gray" else np.repeat(high[:, :, np.newaxis], 3, axis=2)
    else:
        # Pillow composites nothing here: RGBA -> RGB and LA -> L leave the alpha away. La, RGBa hold premultiplied colours.
        plain = image.convert({"RGBa": "RGBA", "La": "LA"}[image.mode]) if image.mode in ("RGBa", "La") else image
        if mode == "gray" and plain.mode not in ("L", "LA", "1"):
            plain = plain.convert("RGB")
        pixels = np.array(plain.convert(PLAIN[mode]))
    return pixels if pixels.ndim == 3 else pixels[:, :, np.newaxis]
