"""The parameters of built-in transforms.

What each kind takes, in words, as a test and as a JSON schema.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

MAX_SIDE = 65_535  # pixels; what JPEG can say
REQUIRED = object()  # default of a parameter that has none
# kinds of one number, or of a list of so many
LISTS = {
    "size": range(2, 3),
    "range": range(2, 3),
    "span": range(2, 3),
    "padding": range(2, 5, 2),
    "channels": range(1, 65),
}


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter; `kind` tells what it takes.

    "text"     a non-empty string
    "texts"    a list of 1 to 16 different non-empty strings
    "choice"   one of `choices`
    "flag"     true or false
    "whole"    an int in [low, high]
    "odd"      an odd int in [low, high]
    "number"   an int or float in [low, high]
    "size"     an int, or [height, width], each in [low, high]
    "range"    [a, b] with low <= a <= b <= high
    "span"     such a range, or a number from max(low, 0) to high
    "padding"  an int, or a list of 2 or 4, each in [low, high]
    "channels" a number, or a list of 1 to 64 numbers (one a channel), each in [low, high]; or one
               of `choices`
    """

    kind: str
    text: str
    default: Any = REQUIRED
    low: float = 0.0
    high: float = MAX_SIDE
    choices: tuple[str, ...] = ()

    @property
    def required(self) -> bool:
        """It has no default: a table without it is at fault."""
        return self.default is REQUIRED


def _plain(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


def expects(param: Param) -> str:
    """What the parameter takes, in words: "a number from 0 to 1"."""
    bounds = f"from {_plain(param.low)} to {_plain(param.high)}"
    words = {
        "text": "a non-empty string",
        "texts": "a list of different field names",
        "choice": "one of " + ", ".join(repr(choice) for choice in param.choices),
        "flag": "true or false",
        "whole": f"a whole number {bounds}",
        "odd": f"an odd number {bounds}",
        "number": f"a number {bounds}",
        "size": f"a whole number or [height, width], {bounds}",
        "range": f"[from, to] with from <= to, both {bounds}",
        "span": f"a number from {_plain(max(param.low, 0))} to {_plain(param.high)}, or [from, to] "
        f"with from <= to, both {bounds}",
        "padding": "a whole number, [left and right, top and bottom] or [left, top, right, "
        f"bottom], {bounds}",
        "channels": f"a number or a list of numbers, {bounds}",
    }
    also = "".join(f", or {choice!r}" for choice in param.choices if param.kind == "channels")
    return words[param.kind] + also


def _whole(param: Param, value: Any) -> bool:
    return type(value) is int and param.low <= value <= param.high


def _number(param: Param, value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and param.low <= value <= param.high


def _texts(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and 1 <= len(value) <= 16
        and all(isinstance(item, str) and item != "" for item in value)
        and len(set(value)) == len(value)
    )


def _list(param: Param, value: Any) -> bool:
    one = _whole if param.kind in ("size", "padding") else _number
    return (
        isinstance(value, (list, tuple))
        and len(value) in LISTS[param.kind]
        and all(one(param, item) for item in value)
        and (param.kind not in ("range", "span") or value[0] <= value[1])
    )


def fits(param: Param, value: Any) -> bool:
    """True if the value is one that the parameter takes."""
    kind = param.kind
    if kind == "text":
        return isinstance(value, str) and value != ""
    if kind == "texts":
        return _texts(value)
    if kind == "flag":
        return isinstance(value, bool)
    if isinstance(value, str):
        return value in param.choices
    if kind in LISTS and _list(param, value):
        return True
    if kind in ("whole", "odd", "size", "padding"):
        return _whole(param, value) and (kind != "odd" or value % 2 == 1)
    if kind == "span":
        return _number(param, value) and value >= 0
    return kind in ("number", "channels") and _number(param, value)


def schema_of(param: Param) -> dict[str, Any]:
    """The JSON schema of the parameter's values."""
    kind = param.kind
    if kind == "text":
        return {"type": "string", "minLength": 1}
    if kind == "texts":
        return {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "minItems": 1,
            "maxItems": 16,
            "uniqueItems": True,
        }
    if kind == "flag":
        return {"type": "boolean"}
    if kind == "choice":
        return {"enum": list(param.choices)}
    number = "integer" if kind in ("whole", "odd", "size", "padding") else "number"
    one: dict[str, Any] = {"type": number, "minimum": param.low, "maximum": param.high}
    if kind == "odd":
        one["not"] = {"multipleOf": 2}
    if kind not in LISTS:
        return one
    lengths = LISTS[kind]
    many = [
        {"type": "array", "items": one, "minItems": least, "maxItems": most}
        for least, most in (
            [(n, n) for n in lengths] if kind == "padding" else [(lengths[0], lengths[-1])]
        )
    ]
    if kind == "range":
        return many[0]
    alone = {**one, "minimum": max(param.low, 0.0)} if kind == "span" else one
    words = [{"enum": list(param.choices)}] if param.choices else []
    return {"anyOf": [alone, *many, *words]}
