"""The built-in transforms by name: parameters, types, ranges and defaults, once, as plain data.

The config is checked against this table and its JSON schema is made from it; `loaderd/data/ops/`
has the code behind each name. Nothing here imports an image library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loaderd.config.op_params import Param, expects, fits, schema_of


@dataclass(frozen=True, slots=True)
class Op:
    """A built-in transform: what it does, in words, and its parameters by name."""

    text: str
    params: Mapping[str, Param]


FIELD = Param(
    "text", "the field it works on; may be left out if the sample has one image", default=None
)
FIELDS = Param(
    "texts",
    "the fields, all of one size, that get the same change; fields with labels are resized by "
    "nearest",
    default=None,
)
MODES = ("rgb", "gray", "rgba", "index", "unchanged")
# of the ops that take `fields`, those that draw a geometry
RANDOM = ("random_crop", "random_resized_crop", "hflip", "vflip", "rotate90")


def _size(text: str) -> Param:
    return Param("size", text, low=1)


def _probability(default: float) -> Param:
    return Param("number", "probability", default=default, high=1.0)


def _strength(what: str) -> Param:
    return Param(
        "span",
        f"factor of the {what}, drawn from [from, to]; a number x: from max(0, 1 - x) to 1 + x",
        default=0.0,
        high=100.0,
    )


def _area(scale: tuple[float, float], ratio: tuple[float, float], what: str) -> dict[str, Param]:
    return {
        "scale": Param(
            "range",
            f"share of the image's area that is {what}",
            default=scale,
            low=1e-6,
            high=1.0,
        ),
        "ratio": Param(
            "range", f"width / height of what is {what}", default=ratio, low=1e-3, high=1e3
        ),
    }


RESIZING = {
    "interpolation": Param(
        "choice",
        "how pixels are computed: bilinear and bicubic are antialiased, as in Pillow; nearest "
        "takes stored ones",
        default="bilinear",
        choices=("bilinear", "bicubic", "nearest"),
    ),
    "exact": Param(
        "flag",
        "true decodes a JPEG whole before it is resized: within 1 of 255 of Pillow's result, and "
        "slower",
        default=False,
    ),
}
MARKS = {
    "boxes": Param(
        "text",
        "field of boxes that follow the picture: n x 4, x1, y1, x2, y2 in pixels; they are "
        "clipped, and those outside dropped",
        default=None,
    ),
    "keypoints": Param(
        "text",
        "field of points that follow: n x 2 or n x 3 (x, y, visibility), of which those outside "
        "are dropped; or n x k x 2 or 3, which go with the boxes: points outside have x, y and "
        "visibility 0, or are moved to the edge if there is none",
        default=None,
    ),
    "polygons": Param(
        "text",
        "field of outlines that follow: n x k x 2; points outside are moved to the edge",
        default=None,
    ),
    "follow": Param(
        "texts",
        "fields with a row for each box, which is dropped with it; default: labels, if there is "
        "such a field",
        default=None,
    ),
}
SIDE = "side of the square, or [height, width]"
DECODE = {
    "decode": Op(
        "stored or Pillow images to pixels: height x width x channels",
        {
            "mode": Param(
                "choice",
                "rgb gives 3 channels, gray 1, rgba 4; index keeps the numbers of palette, gray, "
                "1-bit and 16-bit gray images; unchanged keeps channels and 16 bits; default: the "
                "stream's mode",
                default=None,
                choices=MODES,
            )
        },
    ),
}
GEOMETRY = {
    "resize": Op(
        "resize",
        {
            "size": _size(
                "a number: the shorter side, the other in proportion; [height, width]: exactly that"
            ),
            **RESIZING,
        },
    ),
    "long_side": Op(
        "resize in proportion to the largest that fits",
        {
            "size": _size("a number: the longer side; [height, width]: neither is larger"),
            **RESIZING,
        },
    ),
    "center_crop": Op(
        "cut out the middle; a smaller image is first padded with zeros", {"size": _size(SIDE)}
    ),
    "random_crop": Op(
        "cut out a random place",
        {
            "size": _size(SIDE),
            "padding": Param("whole", "zeros added on each side first, in pixels", default=0),
        },
    ),
    "random_resized_crop": Op(
        "cut out a random part of random size and shape, and resize it",
        {
            "size": _size(f"{SIDE}, that comes out"),
            **_area((0.08, 1.0), (0.75, 1.3333), "cut out"),
            **RESIZING,
        },
    ),
    "hflip": Op("mirror left and right", {"p": _probability(0.5)}),
    "vflip": Op("mirror top and bottom", {"p": _probability(0.5)}),
    "rotate90": Op(
        "turn counterclockwise by a multiple of 90 degrees",
        {
            "k": Param("whole", "quarter turns; default: drawn from 0 to 3", default=None, high=3),
            "p": _probability(1.0),
        },
    ),
    "pad": Op(
        "add pixels at the edges",
        {
            "padding": Param(
                "padding",
                "pixels: on each side, [left and right, top and bottom], or [left, top, right, "
                "bottom]",
            ),
            "fill": Param(
                "channels",
                "value of the new pixels, or one for each channel",
                default=0,
                low=-1e6,
                high=1e6,
            ),
            "label_fill": Param(
                "whole",
                "value of the new pixels in fields with labels",
                default=0,
                low=-1,
            ),
            "padding_mode": Param(
                "choice",
                "constant: fill; edge: the last pixel; reflect and symmetric: mirrored, without "
                "the last pixel and with it",
                default="constant",
                choices=("constant", "edge", "reflect", "symmetric"),
            ),
        },
    ),
}
COLOUR = {
    "color_jitter": Op(
        "change brightness, contrast, saturation and hue, in random order",
        {
            "brightness": _strength("brightness"),
            "contrast": _strength("contrast"),
            "saturation": _strength("saturation"),
            "hue": Param(
                "span",
                "turn of the hue, as a part of the whole circle, drawn from [from, to]; a number "
                "x: from -x to x",
                default=0.0,
                low=-0.5,
                high=0.5,
            ),
            "p": _probability(1.0),
        },
    ),
    "grayscale": Op("gray, with as many channels as before", {"p": _probability(1.0)}),
    "gaussian_blur": Op(
        "blur",
        {
            "kernel_size": Param("odd", "side of the filter, in pixels", low=1, high=255),
            "sigma": Param(
                "span",
                "standard deviation, in pixels: a number, or drawn from [from, to]",
                default=(0.1, 2.0),
                low=1e-3,
                high=1e3,
            ),
            "p": _probability(1.0),
        },
    ),
    "random_erasing": Op(
        "overwrite a random rectangle",
        {
            **_area((0.02, 0.33), (0.3, 3.3), "overwritten"),
            "value": Param(
                "channels",
                "written there: a number, one for each channel, or random: noise",
                default=0,
                low=-1e6,
                high=1e6,
                choices=("random",),
            ),
            "p": _probability(0.5),
        },
    ),
    "rand_augment": Op(
        "RandAugment: random changes of geometry and colour, one after the other",
        {
            "num_ops": Param("whole", "how many changes", default=2, low=1, high=16),
            "magnitude": Param("whole", "strength, below num_magnitude_bins", default=9, high=100),
            "num_magnitude_bins": Param(
                "whole", "number of strengths that there are", default=31, low=2, high=101
            ),
            "fill": Param(
                "channels",
                "value of pixels from outside, or one for each channel",
                default=0,
                high=255,
            ),
        },
    ),
}
NUMBERS = {
    "to_float": Op("float32 in [0, 1]", {}),
    "normalize": Op(
        "(x - mean) / std of an image in [0, 1], channel by channel; implies to_float",
        {
            "mean": Param("channels", "subtracted from each channel", low=-1e6, high=1e6),
            "std": Param("channels", "each channel is divided by it; above 0", low=1e-9, high=1e6),
        },
    ),
    "to_chw": Op("height x width x channels to channels x height x width, contiguous", {}),
}


MIXING = {
    "alpha": Param(
        "number", "both parameters of the Beta distribution of a row's share", 1.0, 1e-3, 1e3
    ),
    "num_classes": Param("whole", "length of the labels that come out", low=2, high=1_000_000),
    "labels": Param(
        "text", "field of class numbers; becomes float32, rows x num_classes", default="label"
    ),
    "p": _probability(1.0),
}
BATCH = {
    "mixup": Op("of a batch: each row is mixed with the one before it", MIXING),
    "cutmix": Op("of a batch: each row gets a rectangle of the one before it", MIXING),
}


def _with(ops: Mapping[str, Op], params: Mapping[str, Param]) -> dict[str, Op]:
    return {name: Op(op.text, {**op.params, **params}) for name, op in ops.items()}


OPS: Mapping[str, Op] = {
    **_with(DECODE, {"field": FIELD}),
    **_with(GEOMETRY, {"field": FIELD, "fields": FIELDS, **MARKS}),
    **_with(COLOUR, {"field": FIELD, "fields": FIELDS}),
    **_with(NUMBERS, {"field": FIELD}),
    **_with(BATCH, {"field": FIELD}),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """A parameter that cannot be used.

    Attributes:
        name: Of the parameter.
        what: "unknown", "missing" or "wrong".
        expected: In words, or the known names.
    """

    name: str
    what: str
    expected: str


def problems(op: str, args: Mapping[str, Any]) -> tuple[Problem, ...]:
    """What is wrong with these arguments of a known op, all at once; () if nothing is.

    Raises KeyError for an unknown op.
    """
    params = OPS[op].params
    found = [Problem(name, "unknown", ", ".join(params)) for name in args if name not in params]
    for name, param in params.items():
        if name not in args:
            if param.required:
                found.append(Problem(name, "missing", expects(param)))
        elif not fits(param, args[name]):
            found.append(Problem(name, "wrong", expects(param)))
    if args.get("field") is not None and args.get("fields") is not None:
        found.append(Problem("fields", "wrong", "left out where field is set"))
    return tuple(found)


def resolved(op: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with defaults filled in.

    Raises ValueError for an unknown op or arguments that have problems.
    """
    if op not in OPS:
        raise ValueError(f"unknown op {op!r}; there are {', '.join(OPS)}")
    for problem in problems(op, args):
        raise ValueError(f"op {op!r}: {problem.name}: {problem.what}, expected {problem.expected}")
    return {name: args.get(name, param.default) for name, param in OPS[op].params.items()}


def schema(op: str) -> dict[str, Any]:
    """JSON schema of one transform table with this op.

    It is an object with "op" and the parameters, and nothing else.
    """
    properties: dict[str, Any] = {"op": {"const": op}}
    for name, param in OPS[op].params.items():
        properties[name] = {**schema_of(param), "description": param.text}
        if not param.required and param.default is not None:
            properties[name]["default"] = (
                list(param.default) if isinstance(param.default, tuple) else param.default
            )
    required = ["op", *[name for name, param in OPS[op].params.items() if param.required]]
    shape = {
        "type": "object",
        "description": OPS[op].text,
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return shape | (
        {"not": {"required": ["field", "fields"]}} if "fields" in OPS[op].params else {}
    )
