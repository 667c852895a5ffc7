"""Stored images to pixels, with one policy for every format and codec.

- uint8, height x width x channels, writable, contiguous; "rgb" has 3 channels, "gray" 1.
- "rgba" has 4 channels, alpha 255 where the file has none. "unchanged" has the channels and the
  bits that are stored (16 bits stay uint16; palettes become colours, CMYK RGB).
- "index" keeps the numbers as they are stored, for masks: 1 channel, uint8 (palette, gray; 1 bit is
  0 or 1), or uint16 (16-bit gray). What has colours of its own is refused, and what Pillow changes
  so that it can't be undone.
- EXIF orientation is left to orientation.py (as torchvision's ImageFolder ignores it); only a
  TIFF's own tag is obeyed, by Pillow itself. The first frame of an animation counts.
- "rgb" and "gray" drop alpha and do not composite: the colours are what is stored. Palettes,
  1-bit, gray, gray + alpha become RGB.
- CMYK and YCCK go through Pillow's conversion, which has no colour profile.
- 16-bit images are scaled to 8 bits (their high byte); 32-bit integer and float images are refused:
  nobody knows their range.
- A truncated or damaged file is an error, never a partly gray picture. More than MAX_PIXELS is
  refused before memory is taken.
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

from loaderd.data.images.image_error import MAX_PIXELS, ImageError, NoMemory, allowed
from loaderd.data.images.label_numbers import has_sixteen_bits, holds_labels, stored_numbers
from loaderd.data.jpeg import tiles

FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF markers
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
PLAIN = {"rgb": "RGB", "gray": "L", "rgba": "RGBA"}
# Modes of Pillow whose numbers "unchanged" keeps, and what others become.
KEPT = ("L", "LA", "RGB", "RGBA", "F", "I")
KEPT_AS = {"1": "L", "La": "LA", "RGBa": "RGBA", "PA": "RGBA"}


def codec_of(data: bytes | memoryview) -> str:
    """ "jpeg", "png" or "other"."""
    head = bytes(data[:8])
    return "jpeg" if head.startswith(JPEG) else "png" if head == PNG else "other"


def decode(data: bytes | memoryview, mode: str = "rgb", limit: int = MAX_PIXELS) -> np.ndarray:
    """The pixels of a stored image (see the policy above) as an array of the caller's own.

    Raises ImageError.
    """
    if len(data) == 0:
        raise ImageError("the image is empty (0 bytes)")
    codec = codec_of(data)
    try:
        return (_pillow if mode == "index" else {"jpeg": _jpeg, "png": _png}.get(codec, _pillow))(
            data, mode, limit
        )
    except Exception as error:  # noqa: BLE001 - decoders raise anything on damaged files: KeyError, SyntaxError, struct.error, cv2.error, ...
        raise image_error(error, codec) from None


def image_error(error: Exception, codec: str) -> ImageError:
    """What a decoder raised, as an ImageError that says what happened."""
    if isinstance(error, ImageError):
        return error
    if _short_of_memory(error):
        return NoMemory(
            "not enough memory to decode it: make the image smaller or raise the memory limit"
        )
    kind = {"jpeg": "damaged JPEG", "png": "damaged PNG"}.get(
        codec, f"damaged image: {type(error).__name__}"
    )
    return ImageError(f"{kind}: {str(error).strip()}")


def _short_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or (
        isinstance(error, cv2.error) and error.code == cv2.Error.StsNoMem
    )


def jpeg_head(data: bytes | memoryview) -> tuple[int, int, bool]:
    """(height, width, whether simplejpeg has its colours) of a JPEG.

    Raises ValueError for one that simplejpeg doesn't read.
    """
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(data)
        return int(height), int(width), space not in ("CMYK", "YCCK")
    except KeyError:  # it has no name for the sampling (4:4:1), but reads it
        for marker, begin, end in tiles.segments(data):
            if marker in FRAMES and end - begin >= 6:
                height, width = tiles.SIZE.unpack_from(data, begin + 1)
                return height, width, data[begin + 5] in (1, 3)
    raise ValueError("it has no frame")


def jpeg_pixels(
    data: tiles.Data, out: np.ndarray, *, min_height: int = 0, min_width: int = 0
) -> None:
    """Decode a JPEG.

    Args:
        data: The file.
        out: [height, width, channels], takes the pixels; channels are 1 (luma) or 3 (RGB).
        min_height: Decode at the smallest scale of the format that has as many pixels; 0 at full
            scale.
        min_width: Likewise.

    Raises:
        ImageError: It cannot be decoded.
    """
    try:
        simplejpeg.decode_jpeg(
            data,
            "GRAY" if out.shape[2] == 1 else "RGB",
            buffer=out,
            min_height=min_height,
            min_width=min_width,
        )
    except Exception as error:  # noqa: BLE001 - decoders raise anything on damaged files
        raise image_error(error, "jpeg") from None


def jpeg_mode(data: bytes | memoryview, mode: str) -> str:
    """ "gray" or "rgb" for "unchanged", as the JPEG is stored; any other mode as it is."""
    if mode != "unchanged":
        return mode
    try:
        return "gray" if simplejpeg.decode_jpeg_header(data)[2].lower() == "gray" else "rgb"
    except (KeyError, ValueError):
        return "rgb"


def _jpeg(data: bytes | memoryview, mode: str, limit: int) -> np.ndarray:
    mode = jpeg_mode(data, mode)
    try:
        height, width, known = jpeg_head(data)
        allowed(height, width, limit=limit)
        if not known:
            return _pillow(data, mode, limit)
        out = np.empty((height, width, 1 if mode == "gray" else 3), np.uint8)
        simplejpeg.decode_jpeg(data, "GRAY" if mode == "gray" else "RGB", buffer=out)
        return opaque(out) if mode == "rgba" else out
    except (ImageError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - decoders raise anything on damaged files
        # What libjpeg-turbo's simple interface will not read (12 bits, arithmetic coding, lossless)
        # Pillow may.
        return _second_try(data, mode, limit, f"damaged JPEG: {error}")


def opaque(image: np.ndarray) -> np.ndarray:
    """uint8 of any number of channels as RGBA: 1 or 3 channels get an alpha of 255."""
    height, width, channels = image.shape
    if channels == 4:
        return image
    out = np.full((height, width, 4), 255, np.uint8)
    out[:, :, :3] = image
    return out


def _second_try(data: bytes | memoryview, mode: str, limit: int, first: str) -> np.ndarray:
    try:
        return _pillow(data, mode, limit)
    except ImageError:
        raise ImageError(first) from None


def _png(data: bytes | memoryview, mode: str, limit: int) -> np.ndarray:
    head = bytes(data[:33])
    if len(head) < 33 or head[8:16] != b"\0\0\0\rIHDR":
        raise ImageError("damaged PNG: it has no header")
    height, width = int.from_bytes(head[20:24], "big"), int.from_bytes(head[16:20], "big")
    allowed(height, width, limit=limit)
    _walk_png(data)
    try:
        image = cv2.imdecode(
            np.frombuffer(data, np.uint8),
            cv2.IMREAD_UNCHANGED
            if mode in ("rgba", "unchanged")
            else cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION,
        )
    except cv2.error as error:
        if _short_of_memory(error):
            raise
        return _second_try(data, mode, limit, f"damaged PNG: {str(error).strip()}")
    if image is None:
        return _second_try(data, mode, limit, "damaged PNG")
    if mode in ("rgba", "unchanged"):
        return _as_stored(image, mode)
    if mode == "gray":
        return cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)[:, :, np.newaxis]
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB, dst=image)


def _as_stored(image: np.ndarray, mode: str) -> np.ndarray:
    """What OpenCV read without changes, in the order of channels that everything here has."""
    if image.ndim == 2:
        image = image[:, :, np.newaxis]
    elif image.shape[2] >= 3:
        order = cv2.COLOR_BGRA2RGBA if image.shape[2] == 4 else cv2.COLOR_BGR2RGB
        image = cv2.cvtColor(image, order, dst=image)
    if mode == "unchanged":
        return image
    return opaque((image >> 8).astype(np.uint8) if image.dtype == np.uint16 else image)


def _walk_png(data: bytes | memoryview) -> None:
    """Raises ImageError unless every chunk lies within the data, up to the last one.

    OpenCV takes memory for what a chunk says it is long, which in a file of a hundred bytes may be
    4 GB, and says nothing of an end that is missing.
    """
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


def _pillow(data: bytes | memoryview, mode: str, limit: int) -> np.ndarray:
    # User code in this process may have set it, and then Pillow would fill what is missing with
    # gray.
    lenient, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, False
    bomb = Image.MAX_IMAGE_PIXELS
    try:
        with _QUIET, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if limit != MAX_PIXELS:
                Image.MAX_IMAGE_PIXELS = None
            with Image.open(io.BytesIO(data), formats=_formats()) as image:
                allowed(image.height, image.width, limit=limit)
                return stored_numbers(image) if mode == "index" else _loaded(image, mode)
    except UnidentifiedImageError:
        raise ImageError(
            f"not an image that can be read: {len(data)} bytes that begin with "
            f"{bytes(data[:8]).hex(' ')}"
        ) from None
    except Image.DecompressionBombError as error:
        raise ImageError(f"more pixels than the limit: {error}") from None
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS = lenient, bomb


def _loaded(image: Any, mode: str) -> np.ndarray:
    image.load()
    return from_pillow(image, mode)


def label_mode(data: bytes | memoryview, *, gray: bool = False) -> str:
    """Pillow's mode of a stored image that `holds_labels`.

    Args:
        data: The file.
        gray: As there.

    Returns:
        "" for any other, and for what can't be read.
    """
    if codec_of(data) == "jpeg":
        return ""
    try:
        with _QUIET, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=_formats()) as image:
                return image.mode if holds_labels(image, gray=gray) else ""
    except Exception:  # noqa: BLE001 - whoever decodes it says what is wrong with it
        return ""


def from_pillow(image: Any, mode: str = "rgb") -> np.ndarray:
    """A Pillow image as pixels, by the policy above.

    Raises ImageError for modes that have no known range.
    """
    if mode == "index":
        return stored_numbers(image)
    if mode == "unchanged":
        return _unchanged(image)
    if image.mode in ("I", "F") and not has_sixteen_bits(image):
        raise ImageError(
            f"an image of mode {image.mode!r} (32 bits) has no known range: convert it to 8 bits "
            "first"
        )
    if has_sixteen_bits(image):
        high = (np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
        pixels = high if mode == "gray" else np.repeat(high[:, :, np.newaxis], 3, axis=2)
        pixels = opaque(pixels) if mode == "rgba" else pixels
    else:
        # Pillow composites nothing here: RGBA -> RGB and LA -> L leave the alpha away. La, RGBa
        # hold premultiplied colours.
        plain = (
            image.convert({"RGBa": "RGBA", "La": "LA"}[image.mode])
            if image.mode in ("RGBa", "La")
            else image
        )
        if mode == "gray" and plain.mode not in ("L", "LA", "1"):
            plain = plain.convert("RGB")
        pixels = np.array(plain.convert(PLAIN[mode]))
    return pixels if pixels.ndim == 3 else pixels[:, :, np.newaxis]


def _unchanged(image: Any) -> np.ndarray:
    """A Pillow image's numbers in the type and number of channels that they are stored in."""
    if has_sixteen_bits(image):
        pixels = np.asarray(image).astype(np.uint16)
    elif image.mode in KEPT:
        pixels = np.array(image)
    else:
        clear = image.mode == "P" and "transparency" in image.info
        pixels = np.array(image.convert("RGBA" if clear else KEPT_AS.get(image.mode, "RGB")))
    return pixels if pixels.ndim == 3 else pixels[:, :, np.newaxis]
