"""What a user's callable gets, and how what it returns becomes fields.

It gets a dict of arrays, one picture, a dict of torchvision's tv_tensors, or albumentations'
keywords.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from loaderd.config.decode_modes import DecodeModes
from loaderd.data.errors import SourceError
from loaderd.data.pipeline.context import sole_image
from loaderd.data.sample import BadValue, Sample

Called = Callable[..., Any]  # the user's callable, with what it gets for every sample
Style = Callable[[Sample, Called], Any]
BOXES = ("boxes", "bboxes")  # fields that are boxes, as their name says


def make(
    style: str, modes: DecodeModes, function: Any, field: str | None, boxes: str | None
) -> Style:
    """The style of this name.

    Args:
        style: One of config.transform_tables.STYLES.
        modes: Of the stream.
        function: What is called.
        field: The picture, where it gets one; None: the only one.
        boxes: The field of boxes that follow: n x 4, x1, y1, x2, y2 in pixels.

    Raises:
        SourceError: torchvision is wanted, and not there.
    """
    if style == "sample":
        return lambda sample, called: called(for_user_code(sample))
    if style in ("array", "pil"):
        return OnePicture(field, as_pillow=style == "pil")
    if style == "keywords":
        return KeywordCall(modes, function, field, boxes)
    return TvTensors(modes, boxes)


def for_user_code(sample: Sample) -> dict[str, Any]:
    """The sample as a plain dict, whose arrays are writable and shared with nothing."""
    return {name: own(sample, name) for name in sample}


def own(sample: Sample, name: str) -> Any:
    """A field's value, which a user's code may keep and change."""
    value = sample[name]
    if isinstance(value, np.ndarray):
        return value if name in sample.fresh else np.array(value, order="C")
    return bytes(value) if isinstance(value, memoryview) else value


def parts(function: Any) -> Iterator[Any]:
    """An object, and the modules within it where it is a torch Module."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(function, torch.nn.Module):
        yield from function.modules()
    else:
        yield function


class OnePicture:
    """One picture, and the other fields stay as they are.

    It is a uint8 array of height x width x channels, or a Pillow image. A picture of any kind may
    come back.
    """

    def __init__(self, field: str | None, *, as_pillow: bool) -> None:
        self._field, self._as_pillow = field, as_pillow

    def __call__(self, sample: Sample, called: Called) -> Mapping[str, Any]:
        """The sample with what came back. Raises BadValue where `field` is no picture."""
        find_pictures(sample, self._field)
        name = self._field or sole_image(sample, "call")
        if name not in sample.images:
            raise BadValue(f"call cannot work on field {name!r}: it is no picture")
        picture: Any = own(sample, name)
        if self._as_pillow:
            if picture.dtype != np.uint8:
                raise BadValue(
                    f"field {name!r} is {picture.dtype}, which no Pillow image holds: put the call "
                    'before to_float and normalize, or say takes = "array"'
                )
            from PIL import Image

            picture = Image.fromarray(picture[..., 0] if picture.shape[2] == 1 else picture)
        return {**sample, name: channels_last(called(picture))}


class TvTensors:
    """The sample as a dict of tensors.

    Pictures are tv_tensors.Image (channels first), masks tv_tensors.Mask, the boxes
    tv_tensors.BoundingBoxes, other arrays tensors.
    """

    def __init__(self, modes: DecodeModes, boxes: str | None) -> None:
        try:
            self._kinds: Any = importlib.import_module("torchvision.tv_tensors")
            self._torch: Any = importlib.import_module("torch")
        except ImportError as error:
            raise SourceError(
                f'a call with takes = "tv_tensors" needs torchvision: {error}; install it for '
                f"{sys.executable}"
            ) from None
        self._modes, self._boxes = modes, boxes

    def __call__(self, sample: Sample, called: Called) -> Any:
        """What came back, with channels last again; as it is where it is no mapping."""
        find_pictures(sample, None)
        size = size_of(sample)
        masks = masks_of(sample, self._modes, size)
        check_boxes(sample, self._boxes)
        given = {name: self._tensor(sample, name, masks, size) for name in sample}
        returned = called(given)
        if not isinstance(returned, Mapping):
            return returned
        last = sample.images | {name for name in masks if sample[name].ndim == 3}
        return {
            name: channels_last(value) if name in last else value
            for name, value in returned.items()
        }

    def _tensor(self, sample: Sample, name: str, masks: set[str], size: tuple[int, int]) -> Any:
        value = own(sample, name)
        if not isinstance(value, np.ndarray):
            return value
        tensor = self._torch.from_numpy(value)
        if name == self._boxes:
            return self._kinds.BoundingBoxes(tensor, format="XYXY", canvas_size=size)
        if name in masks:
            return self._kinds.Mask(tensor.permute(2, 0, 1) if value.ndim == 3 else tensor)
        if name in sample.images:
            return self._kinds.Image(tensor.permute(2, 0, 1))
        return self._kinds.Image(tensor) if name in sample.planar else tensor


class KeywordCall:
    """Each field as a keyword argument, arrays as they are, as albumentations wants it.

    The picture is `image`, a mask `mask` and the boxes are `bboxes` there, whatever the fields are
    called. Further pictures and masks are for `additional_targets` of the pipeline.
    """

    def __init__(
        self, modes: DecodeModes, function: Any, field: str | None, boxes: str | None
    ) -> None:
        self._modes, self._field, self._boxes = modes, field, boxes
        self._targets = set(getattr(function, "additional_targets", None) or ())

    def __call__(self, sample: Sample, called: Called) -> Any:
        """What came back under the fields' own names; as it is where it is no mapping."""
        find_pictures(sample, self._field)
        names = self._names(sample)
        given = {names.get(name, name): own(sample, name) for name in sample}
        returned = called(**given)
        if not isinstance(returned, Mapping):
            return returned
        back = {word: name for name, word in names.items()}
        made = {back.get(word, word): value for word, value in returned.items()}
        return {
            name: channels_last(value) if name in sample.images else value
            for name, value in made.items()
        }

    def _names(self, sample: Sample) -> dict[str, str]:
        """Field -> keyword, where these differ. Raises BadValue for one that would be left out."""
        check_boxes(sample, self._boxes)
        masks = masks_of(sample, self._modes, size_of(sample))
        image = self._field or ("image" if "image" in sample.images - masks else "")
        if not image:
            pictures = sample.images - masks
            image = next(iter(pictures)) if len(pictures) == 1 else sole_image(sample, "call")
        names = {image: "image"}
        if self._boxes is not None:
            names[self._boxes] = "bboxes"
        left = [name for name in masks if name not in {"mask", *self._targets, image}]
        if len(left) == 1 and "mask" not in sample:
            names[left.pop()] = "mask"
        left += [n for n in sample.images - masks if n != image and n not in self._targets]
        if left:
            kind = "mask" if left[0] in masks else "image"
            raise BadValue(
                f"field {left[0]!r} would not follow field {image!r}: name it in "
                f'additional_targets = {{"{left[0]}": "{kind}"}} '
                "of the pipeline"
            )
        return {name: word for name, word in names.items() if name != word}


def find_pictures(sample: Sample, field: str | None) -> None:
    """Add to the sample's images an array that can be one: `field`, or where none is known, all."""
    if field is None and (sample.images or sample.planar):
        return
    for name in sample if field is None else (field,):
        value = sample.get(name)
        if (
            isinstance(value, np.ndarray)
            and value.ndim == 3
            and value.shape[2] in (1, 3, 4)
            and value.dtype in (np.uint8, np.uint16, np.float32)
        ):
            sample.images.add(name)


def size_of(sample: Sample) -> tuple[int, int]:
    """(height, width) of the sample's first picture. Raises BadValue without one."""
    for name in sample:
        if name in sample.images:
            return sample[name].shape[:2]
        if name in sample.planar:
            return sample[name].shape[1:3]
    raise BadValue("call: the sample has no picture")


def masks_of(sample: Sample, modes: DecodeModes, size: tuple[int, int]) -> set[str]:
    """The fields that hold a whole number for each pixel of a picture of this (height, width)."""
    found = set[str]()
    for name, value in sample.items():
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biu":
            continue
        if value.shape not in (size, (*size, 1)):
            continue
        if name not in sample.images or modes.of(name) == "index" or name in modes.paired:
            found.add(name)
    pictures = sample.images | sample.planar
    return found if pictures - found else found - pictures  # a mask alone is the picture


def check_boxes(sample: Sample, boxes: str | None) -> None:
    """Raises BadValue for boxes that a change of geometry would leave where they are."""
    if boxes is not None:
        value = sample.get(boxes)
        if not isinstance(value, np.ndarray) or value.ndim != 2 or value.shape[1] != 4:
            shape = f"of shape {value.shape}" if isinstance(value, np.ndarray) else "absent"
            raise BadValue(
                f"boxes = {boxes!r}: the field is {shape}; it is to be n x 4: x1, y1, x2, y2 in "
                "pixels"
            )
        return
    for name in BOXES:
        value = sample.get(name)
        if isinstance(value, np.ndarray) and value.ndim == 2 and value.shape[1] == 4:
            raise BadValue(
                f'field {name!r} would not follow the picture: add boxes = "{name}" to the '
                "transform, if its rows are x1, y1, x2, y2 in pixels; else rename it"
            )


def channels_last(value: Any) -> Any:
    """A picture as height x width x channels, if it is a tensor with its channels first."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or value.ndim != 3:
        return value
    return value.detach().as_subclass(torch.Tensor).permute(1, 2, 0).contiguous().cpu().numpy()
