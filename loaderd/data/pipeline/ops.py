"""The code of each built-in op (named in `config/transforms.py`): each adds to the plan of an image
that is not made yet (see images/lazy_image.py).

What an op draws comes from `Draws` with the op's place among the stream's transforms, so that a
result depends on (seed, epoch, index) alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from loaderd.config.transforms import resolved
from loaderd.core.rng import CounterRng
from loaderd.data.images.lazy_image import LazyImage

TRIES = 10
BYTES = (np.arange(256) / 255).astype(np.float32)


class OpError(ValueError):
    """A picture that an op cannot work on."""


Run = Callable[[LazyImage, CounterRng], None]


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _resize(number: int, size: Any) -> Run:
    def run(view: LazyImage, draws: CounterRng) -> None:
        height, width = view.height, view.width
        if not isinstance(size, int):
            view.resize(size[0], size[1])
        # torchvision's rule: the longer side is rounded down.
        elif height <= width:
            view.resize(size, max(1, int(size * width / height)))
        else:
            view.resize(max(1, int(size * height / width)), size)

    return run


def _center_crop(number: int, size: Any) -> Run:
    height, width = _pair(size)

    def run(view: LazyImage, draws: CounterRng) -> None:
        if view.height < height or view.width < width:
            down, across = max(0, height - view.height), max(0, width - view.width)
            view.pad(down // 2, (down + 1) // 2, across // 2, (across + 1) // 2)
        view.crop(round((view.height - height) / 2), round((view.width - width) / 2), height, width)

    return run


def _random_crop(number: int, size: Any, padding: int) -> Run:
    height, width = _pair(size)

    def run(view: LazyImage, draws: CounterRng) -> None:
        if view.height + 2 * padding < height or view.width + 2 * padding < width:
            raise OpError(
                f"random_crop of {height} x {width} from an image of {view.height + 2 * padding} "
                f"x {view.width + 2 * padding} "
                "(padding included): raise padding, or resize first"
            )
        if padding:
            view.pad(padding, padding, padding, padding)
        top = draws.integer(number, 0, view.height - height + 1)
        left = draws.integer(number, 1, view.width - width + 1)
        view.crop(top, left, height, width)

    return run


def crop_box(
    height: int, width: int, scale: Any, ratio: Any, draws: CounterRng, number: int
) -> tuple[int, int, int, int]:
    """(top, left, height, width) of random_resized_crop: ten tries at a random area and aspect,
    else the largest middle part that fits.

    Draws 4t ... 4t + 3 belong to try t.
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for attempt in range(0, 4 * TRIES, 4):
        area = height * width * (scale[0] + (scale[1] - scale[0]) * draws.uniform(number, attempt))
        aspect = math.exp(low + (high - low) * draws.uniform(number, attempt + 1))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return (
                draws.integer(number, attempt + 2, height - h + 1),
                draws.integer(number, attempt + 3, width - w + 1),
                h,
                w,
            )
    if width / height < ratio[0]:
        w, h = width, min(height, max(1, round(width / ratio[0])))
    elif width / height > ratio[1]:
        w, h = min(width, max(1, round(height * ratio[1]))), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


def _random_resized_crop(number: int, size: Any, scale: Any, ratio: Any) -> Run:
    height, width = _pair(size)

    def run(view: LazyImage, draws: CounterRng) -> None:
        view.crop(*crop_box(view.height, view.width, scale, ratio, draws, number))
        view.resize(height, width)

    return run


def _hflip(number: int, p: float) -> Run:
    def run(view: LazyImage, draws: CounterRng) -> None:
        if draws.uniform(number, 0) < p:
            view.flip()

    return run


def as_float(image: np.ndarray) -> np.ndarray:
    """float32: whole numbers are divided by the largest that their type has, bools are 0 and 1,
    floats stay as they are.
    """
    if image.dtype.kind in "iu":
        return (image / np.float64(np.iinfo(image.dtype).max)).astype(np.float32)
    return image.astype(np.float32, copy=False)


def _to_float(number: int) -> Run:
    def run(view: LazyImage, draws: CounterRng) -> None:
        if view.dtype == np.uint8:
            view.levels = np.tile(BYTES, (view.channels, 1))
        elif view.dtype != np.float32:
            view.become(as_float(view.settled()))

    return run


def _normalize(number: int, mean: Any, std: Any) -> Run:
    def run(view: LazyImage, draws: CounterRng) -> None:
        channels = view.channels
        center, spread = (
            _per_channel(name, value, channels) for name, value in (("mean", mean), ("std", std))
        )
        if view.dtype == np.uint8:
            if channels not in tables:
                exact = (np.arange(256) / 255 - center[:, np.newaxis]) / spread[:, np.newaxis]
                tables[channels] = exact.astype(np.float32)
            view.levels = tables[channels]
            return
        center, spread = center.astype(np.float32), spread.astype(np.float32)
        if view.levels is not None:
            view.levels = (view.levels - center[:, np.newaxis]) / spread[:, np.newaxis]
        else:
            view.become(
                ((as_float(view.settled()) - center) / spread).astype(np.float32, copy=False)
            )

    tables: dict[int, np.ndarray] = {}
    return run


def _per_channel(name: str, value: Any, channels: int) -> np.ndarray:
    values = np.atleast_1d(np.asarray(value, np.float64))
    if len(values) not in (1, channels):
        raise OpError(
            f"normalize has {len(values)} values of {name} for an image of {channels} channels"
        )
    return np.broadcast_to(values, (channels,))


def _to_chw(number: int) -> Run:
    def run(view: LazyImage, draws: CounterRng) -> None:
        view.planar = True

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
RESIZING = ("resize", "random_resized_crop")
FLAT = ("to_float", "normalize")  # work on whatever order the axes have


def make_op(op: str, args: dict[str, Any], number: int) -> tuple[Run, tuple[str, ...]]:
    """(the op ready to run, the fields that it is to run on; () if none is named).

    number: its place among the stream's transforms. Raises ValueError for wrong arguments.

    "decode" is not here: it is not a picture that it gets.
    """
    values = resolved(op, args)
    field, fields = values.pop("field"), values.pop("fields", None)
    return MAKERS[op](number, **values), tuple(fields or ([] if field is None else [field]))


def check(view: LazyImage, op: str, name: str) -> None:
    """Raises OpError naming op and field if the op can't work on such a picture."""
    if view.dtype not in (np.uint8, np.float32) and op not in (*FLAT, "to_chw") and not view.labels:
        raise _unfit(op, name, view.dtype, (view.height, view.width, view.channels))


def one_size(views: Mapping[str, LazyImage], op: str) -> None:
    """Raises OpError naming two fields if they aren't of one size: then one geometry can't be that
    of both.
    """
    (first, view), *others = views.items()
    for name, other in others:
        if (other.height, other.width) != (view.height, view.width):
            raise OpError(
                f"{op}: field {first!r} is {view.height} x {view.width} pixels and {name!r} "
                f"{other.height} x {other.width}: "
                "the fields of one op must have one size; resize them to the same [height, width] "
                "first"
            )


def picture(image: np.ndarray, op: str, name: str) -> np.ndarray:
    """`image` if it is one, by its shape. Raises OpError naming op and field."""
    if image.ndim == 3 and image.shape[2] <= 64 and image.size:
        return image
    raise _unfit(op, name, image.dtype, image.shape)


def _unfit(op: str, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> OpError:
    return OpError(
        f"{op} cannot work on field {name!r}: it takes pictures of height x width x channels, "
        f"uint8 or float32, not {dtype} of shape {shape}"
    )
