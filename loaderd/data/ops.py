"""The code behind each name of `ops_table.OPS`: pictures in, pictures out.

An op gets height x width x channels (uint8 or float32) and returns a new array or its argument, never changes its argument. What it
draws comes from `Draws` with the op's place among the stream's transforms, so that a result depends on (seed, epoch, index) alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np

from loaderd.core.draws import Draws
from loaderd.data.ops_table import resolved
from loaderd.data.resize import resize

TRIES = 10
BYTES = (np.arange(256) / 255).astype(np.float32)


class OpError(ValueError):
    """A picture that an op cannot work on."""


Picture = np.ndarray
Run = Callable[[Picture, Draws], Picture]


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _crop(image: Picture, top: int, left: int, height: int, width: int) -> Picture:
    return image[top : top + height, left : left + width]


def _pad(image: Picture, top: int, bottom: int, left: int, right: int) -> Picture:
    return np.pad(image, ((top, bottom), (left, right), (0, 0)))


def _resize(number: int, size: Any) -> Run:
    def run(image: Picture, draws: Draws) -> Picture:
        height, width, _ = image.shape
        if not isinstance(size, int):
            return resize(image, size[0], size[1])
        # torchvision's rule: the longer side is rounded down.
        if height <= width:
            return resize(image, size, max(1, int(size * width / height)))
        return resize(image, max(1, int(size * height / width)), size)

    return run


def _center_crop(number: int, size: Any) -> Run:
    want_height, want_width = _pair(size)

    def run(image: Picture, draws: Draws) -> Picture:
        height, width, _ = image.shape
        if height < want_height or width < want_width:
            down, across = max(0, want_height - height), max(0, want_width - width)
            image = _pad(image, down // 2, (down + 1) // 2, across // 2, (across + 1) // 2)
            height, width, _ = image.shape
        return _crop(image, round((height - want_height) / 2), round((width - want_width) / 2), want_height, want_width)

    return run


def _random_crop(number: int, size: Any, padding: int) -> Run:
    want_height, want_width = _pair(size)

    def run(image: Picture, draws: Draws) -> Picture:
        if padding:
            image = _pad(image, padding, padding, padding, padding)
        height, width, _ = image.shape
        if height < want_height or width < want_width:
            raise OpError(
                f"random_crop of {want_height} x {want_width} from an image of {height} x {width} (padding included): "
                "raise padding, or resize first"
            )
        top = draws.integer(number, 0, height - want_height + 1)
        left = draws.integer(number, 1, width - want_width + 1)
        return _crop(image, top, left, want_height, want_width)

    return run


def crop_box(height: int, width: int, scale: Any, ratio: Any, draws: Draws, number: int) -> tuple[int, int, int, int]:
    """(top, left, height, width) of random_resized_crop: ten tries at a random area and aspect, else the largest middle part that fits.

    Draws 4t ... 4t + 3 belong to try t.
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for attempt in range(0, 4 * TRIES, 4):
        area = height * width * (scale[0] + (scale[1] - scale[0]) * draws.uniform(number, attempt))
        aspect = math.exp(low + (high - low) * draws.uniform(number, attempt + 1))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return draws.integer(number, attempt + 2, height - h + 1), draws.integer(number, attempt + 3, width - w + 1), h, w
    if width / height < ratio[0]:
        w, h = width, min(height, max(1, round(width / ratio[0])))
    elif width / height > ratio[1]:
        w, h = min(width, max(1, round(height * ratio[1]))), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


def _random_resized_crop(number: int, size: Any, scale: Any, ratio: Any) -> Run:
    want_height, want_width = _pair(size)

    def run(image: Picture, draws: Draws) -> Picture:
        box = crop_box(image.shape[0], image.shape[1], scale, ratio, draws, number)
        return resize(_crop(image, *box), want_height, want_width)

    return run


def _hflip(number: int, p: float) -> Run:
    def run(image: Picture, draws: Draws) -> Picture:
        return cv2.flip(image, 1).reshape(image.shape) if draws.uniform(number, 0) < p else image

    return run


def as_float(image: Picture) -> Picture:
    """float32: whole numbers are divided by the largest that their type has, bools are 0 and 1, floats stay as they are."""
    if image.dtype == np.uint8:
        return BYTES[image] if image.ndim != 3 or image.shape[2] > 4 else cv2.LUT(np.ascontiguousarray(image), BYTES).reshape(image.shape)
    if image.dtype.kind in "iu":
        return (image / np.float64(np.iinfo(image.dtype).max)).astype(np.float32)
    return image.astype(np.float32, copy=False)


def _to_float(number: int) -> Run:
    return lambda image, draws: as_float(image)


def _normalize(number: int, mean: Any, std: Any) -> Run:
    def run(image: Picture, draws: Draws) -> Picture:
        channels = image.shape[2]
        center, spread = (_per_channel(name, value, channels) for name, value in (("mean", mean), ("std", std)))
        if image.dtype == np.uint8 and channels in (1, 3, 4):
            if channels not in tables:
                levels = np.arange(256, dtype=np.float64)[:, np.newaxis] / 255
                tables[channels] = np.ascontiguousarray(((levels - center) / spread).astype(np.float32).reshape(1, 256, channels))
            return cv2.LUT(np.ascontiguousarray(image), tables[channels]).reshape(image.shape)
        return ((as_float(image) - center.astype(np.float32)) / spread.astype(np.float32)).astype(np.float32, copy=False)

    tables: dict[int, np.ndarray] = {}
    return run


def _per_channel(name: str, value: Any, channels: int) -> np.ndarray:
    values = np.atleast_1d(np.asarray(value, np.float64))
    if len(values) not in (1, channels):
        raise OpError(f"normalize has {len(values)} values of {name} for an image of {channels} channels")
    return np.broadcast_to(values, (channels,))


def _to_chw(number: int) -> Run:
    def run(image: Picture, draws: Draws) -> Picture:
        out = np.empty((image.shape[2], *image.shape[:2]), image.dtype)
        for channel in range(image.shape[2]):
            out[channel] = image[:, :, channel]
        return out

    return run


MAKERS: dict[str, Callable[..., Run]] = {
    "resize": _resize,
    "center_crop": _center_crop,
    "random_crop": _random_crop,
    "random_resized_crop": _random_resized_crop,
    "hflip": _hflip,
    "to_float": _to_float,
    "normalize": _normalize,
    "to_chw": _to_chw,
}
FLAT = ("to_float", "normalize")  # work on whatever order the axes have


def make_op(op: str, args: dict[str, Any], number: int) -> tuple[Run, str | None]:
    """(the op ready to run, its `field` or None). number: its place among the stream's transforms. Raises ValueError for wrong arguments.

    "decode" is not here: it is not a picture that it gets.
    """
    values = resolved(op, args)
    field = values.pop("field")
    return MAKERS[op](number, **values), field


def checked(image: np.ndarray, op: str, name: str) -> Picture:
    """`image` if an op can work on it. Raises OpError naming op and field."""
    if image.ndim == 3 and image.shape[2] <= 64 and image.size and (image.dtype in (np.uint8, np.float32) or op in (*FLAT, "to_chw")):
        return image
    raise OpError(
        f"{op} cannot work on field {name!r}: it takes pictures of height x width x channels, uint8 or float32, "
        f"not {image.dtype} of shape {image.shape}"
    )
