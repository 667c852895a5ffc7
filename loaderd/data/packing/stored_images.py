"""What becomes of an image's file when it is packed.

It is kept, rewritten for random access, or made smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import simplejpeg
from PIL import Image

from loaderd.data.errors import SampleFault
from loaderd.data.images.decode import codec_of, decode, label_mode
from loaderd.data.images.image_error import ImageError
from loaderd.data.images.lazy_image import LazyImage
from loaderd.data.images.orientation import TAG, orientation_of
from loaderd.data.images.pixel_source import ArraySource, ImagePart, open_image
from loaderd.data.jpeg.headers import NotRewritable
from loaderd.data.jpeg.rewrite import available, can_rewrite, rewrite

REWRITTEN, KEPT, RESIZED, ENCODED = (
    "rewritten for random access",
    "kept as they are",
    "made smaller",
    "encoded again",
)
QUALITY = 90
Bytes = bytes | memoryview


def means() -> str:
    """What rewrites JPEGs here, as far as it decides about their bytes; "" if nothing does."""
    return available().partition(" ")[0] if can_rewrite() else ""


@dataclass(frozen=True, slots=True)
class StoredImages:
    """What is to become of images.

    Attributes:
        verify: Decode each; one that cannot be is a bad sample.
        means: What rewrites JPEGs for random access, "" to leave them.
        shorter_side: Pixels that the shorter side has at most; 0 for any number.
        quality: JPEG quality of what is encoded again; 0: only what is made smaller, by QUALITY.
    """

    verify: bool = True
    means: str = ""
    shorter_side: int = 0
    quality: int = 0

    @property
    def words(self) -> str:
        """What tells the bytes that come out from others."""
        # Two means may give different bytes, of the same pixels.
        said = f"{self.verify} {self.means}"
        if self.shorter_side or self.quality:
            said += f" {self.shorter_side} {self.quality}"
        return said

    def stored(self, data: Bytes) -> tuple[Bytes, str]:
        """What is kept of a file, and what became of it.

        Raises ValueError if it is no image, which makes it a bad sample.
        """
        remark = ""
        if self.shorter_side or self.quality:
            data, remark = self._smaller(data)
            if remark and codec_of(data) != "jpeg":
                return data, remark
        if self.means and codec_of(data) == "jpeg":
            try:
                return rewritten(data), remark or REWRITTEN
            except NotRewritable as error:
                remark = remark or f"{KEPT}: {str(error).partition(':')[0]}"
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - it is only kept as it is, if decoders take it
                remark = remark or f"{KEPT}: {type(error).__name__}"
        if self.verify:
            decode(data)
        elif not len(data):
            raise SampleFault("read", "ValueError", "the file is empty")
        return data, remark

    def _smaller(self, data: Bytes) -> tuple[Bytes, str]:
        """The image with a shorter side of at most `shorter_side`; (data, "") where it has that.

        Raises ImageError.
        """
        labels = label_mode(data)
        view = LazyImage(
            ArraySource(decode(data, "index" if labels else "unchanged"))
            if labels or codec_of(data) != "jpeg"
            else open_image(data, "unchanged"),
            labels=bool(labels),
        )
        short = min(view.height, view.width)
        small = not self.shorter_side or short <= self.shorter_side
        if small and (self.shorter_side or labels):
            return data, ""
        if view.dtype not in (np.uint8, np.uint16):
            raise ImageError(
                f"an image of {view.dtype} is not encoded again: leave out --resize, --quality"
            )
        if not small:
            share = self.shorter_side / short
            view.resize(round(view.height * share), round(view.width * share))
        pixels = view.pixels()
        remark = ENCODED if small else RESIZED
        if labels or pixels.dtype != np.uint8 or pixels.shape[2] not in (1, 3):
            return (data, "") if small else (_png(pixels), remark)
        made = simplejpeg.encode_jpeg(
            np.ascontiguousarray(pixels),
            self.quality or QUALITY,
            "GRAY" if pixels.shape[2] == 1 else "RGB",
            "Gray" if pixels.shape[2] == 1 else "420",
        )
        return _turned(made, orientation_of(data)), remark


def _png(pixels: np.ndarray) -> bytes:
    """Whatever JPEG does not hold: labels, alpha, 16 bits. Raises ImageError."""
    if pixels.shape[2] == 2:  # OpenCV's PNG has no gray with alpha
        pixels = pixels[:, :, [0, 0, 0, 1]]
    order = {3: cv2.COLOR_RGB2BGR, 4: cv2.COLOR_RGBA2BGRA}.get(pixels.shape[2])
    done, made = cv2.imencode(".png", pixels if order is None else cv2.cvtColor(pixels, order))
    if not done:
        raise ImageError("OpenCV cannot write it as PNG")
    return made.tobytes()


def _turned(jpeg: bytes, orientation: int) -> bytes:
    """The JPEG with the orientation that the camera had written down, behind its first segment."""
    if orientation == 1:
        return jpeg
    exif = Image.Exif()
    exif[TAG] = orientation
    payload = exif.tobytes()
    behind = 4 + int.from_bytes(jpeg[4:6], "big")
    segment = b"\xff\xe1" + (2 + len(payload)).to_bytes(2, "big") + payload
    return jpeg[:behind] + segment + jpeg[behind:]


def rewritten(data: Bytes) -> bytes:
    """The JPEG for random access.

    That reads every coefficient, more strictly than decoders do; so that they take what comes out
    is known from a pixel of it. Raises NotRewritable.
    """
    out = rewrite(data)
    try:
        open_image(out, "rgb").read(ImagePart(0, 0, 1, 1))
    except ValueError as error:
        raise NotRewritable(f"no decoder can read it: {error}") from None
    return out
