"""The code of each built-in op by its name, and which pictures each works on.

`config/transforms.py` has their parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from loaderd.config.transforms import MARKS, resolved
from loaderd.data.images.image_error import OpError
from loaderd.data.images.lazy_image import LazyImage
from loaderd.data.ops.colour import ColorJitter, Grayscale
from loaderd.data.ops.geometry import (
    CenterCrop,
    HFlip,
    LongSide,
    Pad,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    Rotate90,
    VFlip,
)
from loaderd.data.ops.levels import Normalize, ToChw, ToFloat
from loaderd.data.ops.marks import MarkNames
from loaderd.data.ops.plane import Run
from loaderd.data.ops.rand_augment import RandAugment
from loaderd.data.ops.regions import GaussianBlur, RandomErasing

GEOMETRY: dict[str, Callable[..., Run]] = {
    "resize": Resize,
    "long_side": LongSide,
    "center_crop": CenterCrop,
    "random_crop": RandomCrop,
    "random_resized_crop": RandomResizedCrop,
    "hflip": HFlip,
    "vflip": VFlip,
    "rotate90": Rotate90,
    "pad": Pad,
}
COLOUR: dict[str, Callable[..., Run]] = {
    "color_jitter": ColorJitter,
    "grayscale": Grayscale,
    "rand_augment": RandAugment,
}
REGIONS: dict[str, Callable[..., Run]] = {
    "gaussian_blur": GaussianBlur,
    "random_erasing": RandomErasing,
}
LEVELS: dict[str, Callable[..., Run]] = {
    "to_float": ToFloat,
    "normalize": Normalize,
    "to_chw": ToChw,
}
MAKERS: dict[str, Callable[..., Run]] = {**GEOMETRY, **COLOUR, **REGIONS, **LEVELS}
RESIZING = ("resize", "long_side", "random_resized_crop")
FLAT = ("to_float", "normalize")  # work on whatever order the axes have


@dataclass(frozen=True, slots=True)
class ReadyOp:
    """An op with its arguments, and the fields that it is to run on; () if none is named."""

    run: Run
    fields: tuple[str, ...]
    marks: MarkNames


def make_op(op: str, args: dict[str, Any], number: int) -> ReadyOp:
    """A built-in op, ready to run.

    "decode" is not here: it is not a picture that it gets.

    Args:
        op: Its name.
        args: Its parameters.
        number: Its place among the stream's transforms.

    Raises:
        ValueError: The arguments are wrong.
    """
    values = resolved(op, args)
    field, fields = values.pop("field"), values.pop("fields", None)
    marks = MarkNames(**{word: values.pop(word, None) for word in MARKS})
    run = MAKERS[op](number, **values)
    return ReadyOp(run, tuple(fields or ([] if field is None else [field])), marks)


def check(view: LazyImage, op: str, name: str) -> None:
    """Raises OpError naming op and field if the op can't work on such a picture."""
    if op in LEVELS:
        return
    shape = (view.height, view.width, view.channels)
    if view.labels and op not in GEOMETRY:
        raise OpError(
            f"{op} cannot work on field {name!r}: its numbers are labels; leave it out of fields"
        )
    if op in COLOUR and (view.dtype != np.uint8 or view.channels not in (1, 3, 4)):
        raise OpError(
            f"{op} cannot work on field {name!r}: it takes uint8 pictures of 1, 3 or 4 channels, "
            f"not {view.dtype} of shape {shape}; put it before to_float and normalize"
        )
    if view.dtype not in (np.uint8, np.uint16, np.float32) and not view.labels:
        raise _unfit(op, name, view.dtype, shape)


def one_size(views: Mapping[str, LazyImage], op: str) -> None:
    """Raises OpError naming two fields if they aren't of one size.

    Then one geometry can't be that of both.
    """
    if op not in GEOMETRY:
        return
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
    """`image` if it is one, by its shape. Raises OpError naming op and field.

    What looks like channels x height x width is none: a crop of it would be cut out of the wrong
    sides.
    """
    if _channels_first(image.shape):
        raise OpError(
            f"{op} cannot work on field {name!r}: its shape {image.shape} looks like channels x "
            "height x width, and ops take height x width x channels; return the picture as it is "
            "before ToTensor (a Pillow image, or such an array), and use the op to_chw if you "
            "want channels first"
        )
    if image.ndim == 3 and image.shape[2] <= 64 and image.size:
        return image
    raise _unfit(op, name, image.dtype, image.shape)


def _channels_first(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and shape[0] in (1, 3, 4) and min(shape[1:]) > 4


def _unfit(op: str, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> OpError:
    return OpError(
        f"{op} cannot work on field {name!r}: it takes pictures of height x width x channels, "
        f"uint8, uint16 or float32, not {dtype} of shape {shape}"
    )
