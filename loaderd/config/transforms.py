"""The built-in transforms by name: parameters, types, ranges and defaults, once, as plain data.

The config is checked against this table and its JSON schema is made from it; `ops.py` has the code
behind each name. Nothing here imports an image library.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_SIDE = 65_535  # pixels; what JPEG can say
REQUIRED = object()  # default of a parameter that has none


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter. kind tells what it takes:

    "text"     a non-empty string
    "texts"    a list of 1 to 16 different non-empty strings
    "choice"   one of `choices`
    "whole"    an int in [low, high]
    "number"   an int or float in [low, high]
    "size"     an int, or [height, width], each in [low, high]
    "range"    [a, b] with low <= a <= b <= high
    "channels" a number, or a list of 1 to 64 numbers (one a channel), each in [low, high]
    """

    kind: str
    text: str
    default: Any = REQUIRED
    low: float = 0.0
    high: float = MAX_SIDE
    choices: tuple[str, ...] = ()

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


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
MODES = ("rgb", "gray", "index")
# take `fields`
GEOMETRIC = ("resize", "center_crop", "random_crop", "random_resized_crop", "hflip")
RANDOM = ("random_crop", "random_resized_crop", "hflip")  # of those, the ones that draw


def _size(text: str) -> Param:
    return Param("size", text, low=1)


OPS: Mapping[str, Op] = {
    "decode": Op(
        "stored or Pillow images to pixels: height x width x channels",
        {
            "mode": Param(
                "choice",
                "rgb gives 3 channels, gray 1; index keeps the numbers of palette, gray, 1-bit "
                "and 16-bit gray images; default: the stream's mode",
                default=None,
                choices=MODES,
            )
        },
    ),
    "resize": Op(
        "resize, antialiased bilinear",
        {
            "size": _size(
                "a number: the shorter side, the other in proportion; [height, width]: exactly that"
            )
        },
    ),
    "center_crop": Op(
        "cut out the middle; a smaller image is first padded with zeros",
        {"size": _size("side of the square, or [height, width]")},
    ),
    "random_crop": Op(
        "cut out a random place",
        {
            "size": _size("side of the square, or [height, width]"),
            "padding": Param("whole", "zeros added on each side first, in pixels", default=0),
        },
    ),
    "random_resized_crop": Op(
        "cut out a random part of random size and shape, and resize it",
        {
            "size": _size("side of the square, or [height, width], that comes out"),
            "scale": Param(
                "range",
                "share of the image's area that is cut out",
                default=(0.08, 1.0),
                low=1e-6,
                high=1.0,
            ),
            "ratio": Param(
                "range",
                "width / height of what is cut out",
                default=(0.75, 1.3333),
                low=1e-3,
                high=1e3,
            ),
        },
    ),
    "hflip": Op(
        "mirror left and right",
        {"p": Param("number", "probability", default=0.5, high=1.0)},
    ),
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
OPS = {
    name: Op(
        op.text, {**op.params, "field": FIELD} | ({"fields": FIELDS} if name in GEOMETRIC else {})
    )
    for name, op in OPS.items()
}


def _bounds(param: Param) -> str:
    def plain(value: float) -> str:
        return (
            f"{value:g}"
            if abs(value) < 1e5 and value != int(value)
            else str(int(value))
            if value == int(value)
            else f"{value:g}"
        )

    return f"from {plain(param.low)} to {plain(param.high)}"


def _whole(param: Param, value: Any) -> bool:
    return type(value) is int and param.low <= value <= param.high


def _number(param: Param, value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and param.low <= value <= param.high


def _list_of(value: Any, test: Any, param: Param, lengths: range) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) in lengths
        and all(test(param, item) for item in value)
    )


def expects(param: Param) -> str:
    """What the parameter takes, in words: "a number from 0 to 1"."""
    if param.kind == "text":
        return "a non-empty string"
    if param.kind == "texts":
        return "a list of different field names"
    if param.kind == "choice":
        return "one of " + ", ".join(repr(choice) for choice in param.choices)
    if param.kind == "whole":
        return f"a whole number {_bounds(param)}"
    if param.kind == "number":
        return f"a number {_bounds(param)}"
    if param.kind == "size":
        return f"a whole number or [height, width], {_bounds(param)}"
    if param.kind == "range":
        return f"[from, to] with from <= to, both {_bounds(param)}"
    return f"a number or a list of numbers, {_bounds(param)}"


def fits(param: Param, value: Any) -> bool:
    """True if the value is one that the parameter takes."""
    if param.kind == "text":
        return isinstance(value, str) and value != ""
    if param.kind == "texts":
        return _list_of(
            value, lambda param, item: isinstance(item, str) and item != "", param, range(1, 17)
        ) and len(set(value)) == len(value)
    if param.kind == "choice":
        return isinstance(value, str) and value in param.choices
    if param.kind == "whole":
        return _whole(param, value)
    if param.kind == "number":
        return _number(param, value)
    if param.kind == "size":
        return _whole(param, value) or _list_of(value, _whole, param, range(2, 3))
    if param.kind == "range":
        return _list_of(value, _number, param, range(2, 3)) and value[0] <= value[1]
    return _number(param, value) or _list_of(value, _number, param, range(1, 65))


@dataclass(frozen=True, slots=True)
class Problem:
    """A parameter that cannot be used.

    what: "unknown", "missing" or "wrong"; expected: in words, or the known names.
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
    """JSON schema of one transform table with this op: an object with "op" and the parameters,
    nothing else.
    """
    properties: dict[str, Any] = {"op": {"const": op}}
    for name, param in OPS[op].params.items():
        properties[name] = {**_schema_of(param), "description": param.text}
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


def _schema_of(param: Param) -> dict[str, Any]:
    if param.kind == "text":
        return {"type": "string", "minLength": 1}
    if param.kind == "texts":
        return {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "minItems": 1,
            "maxItems": 16,
            "uniqueItems": True,
        }
    if param.kind == "choice":
        return {"enum": list(param.choices)}
    kind = "integer" if param.kind in ("whole", "size") else "number"
    one = {"type": kind, "minimum": param.low, "maximum": param.high}
    if param.kind in ("whole", "number"):
        return one
    if param.kind == "range":
        return {"type": "array", "items": one, "minItems": 2, "maxItems": 2}
    most, least = (2, 2) if param.kind == "size" else (64, 1)
    return {"anyOf": [one, {"type": "array", "items": one, "minItems": least, "maxItems": most}]}
