"""Numbers that a config gives for pixels, and new pixels at the edges of a picture."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from loaderd.data.images.image_error import OpError


class Fill(NamedTuple):
    """What new pixels hold.

    Attributes:
        value: A number, or one for each channel.
        labels: Of pictures whose numbers are labels.
        mode: "constant", "edge", "reflect" (mirrored without the last pixel) or "symmetric" (with
            it).
    """

    value: Any = 0
    labels: int = 0
    mode: str = "constant"


ZEROS = Fill()


def padded(
    image: np.ndarray, sides: tuple[int, int, int, int], value: Any, mode: str
) -> np.ndarray:
    """A new height x width x channels array.

    Args:
        image: The old one.
        sides: New rows above and below, new columns left and right.
        value: A number, or one for each channel; for mode "constant".
        mode: See `Fill`.

    Raises:
        OpError: The value doesn't fit.
    """
    top, bottom, left, right = sides
    if mode != "constant":
        return np.pad(image, ((top, bottom), (left, right), (0, 0)), mode)  # pyright: ignore
    height, width, channels = image.shape
    out = np.empty((top + height + bottom, left + width + right, channels), image.dtype)
    out[:] = in_dtype("pad", "fill", of_channels("pad", "fill", value, channels), image.dtype)
    out[top : top + height, left : left + width] = image
    return out


def of_channels(op: str, name: str, value: Any, channels: int) -> np.ndarray:
    """float64, one for each channel. Raises OpError for another number of them."""
    values = np.atleast_1d(np.asarray(value, np.float64))
    if len(values) not in (1, channels):
        raise OpError(
            f"{op} has {len(values)} values of {name} for an image of {channels} channels"
        )
    return np.broadcast_to(values, (channels,))


def in_dtype(op: str, name: str, values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The numbers in a picture's dtype. Raises OpError for what it cannot hold."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        if (values != np.rint(values)).any() or values.min() < info.min or values.max() > info.max:
            raise OpError(
                f"{op}: {name} = {', '.join(f'{value:g}' for value in values)} does not fit a "
                f"picture of {dtype}: use whole numbers from {info.min} to {info.max}, or put "
                "to_float or normalize before it"
            )
    return values.astype(dtype)
