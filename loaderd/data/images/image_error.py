"""What makes an image one that cannot be decoded, or not be changed."""

from __future__ import annotations

from loaderd.config.decode_modes import MAX_PIXELS


class ImageError(ValueError):
    """An image that cannot be decoded; the text says why."""


class OpError(ValueError):
    """A picture that an op cannot work on."""


class NoMemory(ImageError):
    """Memory does not suffice to decode it, here and now."""


def allowed(height: int, width: int, what: str = "the image has", limit: int = MAX_PIXELS) -> None:
    """Check that an image has pixels, and not too many.

    Args:
        height: In pixels.
        width: In pixels.
        what: Begins the sentence, where it is to become one.
        limit: Most pixels.

    Raises:
        ImageError: It has none, or too many.
    """
    if height < 1 or width < 1:
        raise ImageError(f"{what} no pixels ({height} x {width})")
    if height * width > limit:
        raise ImageError(
            f"{what} {height} x {width} = {height * width} pixels, more than the limit of {limit}: "
            "raise max_pixels of the stream to allow it"
        )
