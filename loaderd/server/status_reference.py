"""The reference of `loaderd status --json` as Markdown, made from the dataclasses.

python -m loaderd.server.status_reference > deploy/STATUS.md
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from loaderd.server.status_report import STATUS_VERSION, DaemonStatus, json_key

BEGIN = f"""# What `loaderd status --json` prints

Version {STATUS_VERSION}. This page is made from the dataclasses that write the JSON:

    python -m loaderd.server.status_reference > deploy/STATUS.md

`status_version` tells a script which page to read. A daemon of the same version may have more keys
than this page. A value that is not known is null, or its key is absent. What ends in `_s` is in
seconds.
"""
WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false", Any: "anything"}


def document() -> str:
    """The whole page, in Markdown."""
    lines = [BEGIN]
    for title, cls in _sections():
        heading = f"`{title}`" if title else "The whole"
        lines += [f"## {heading}", "", _first_line(cls), ""]
        lines += ["| key | is | meaning |", "|---|---|---|"]
        lines += [f"| `{key}` | {_type(hint)} | {meaning} |" for key, hint, meaning in _keys(cls)]
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


def _sections() -> Iterator[tuple[str, type[Any]]]:
    """(title, class) of every table, each class once, in the order in which they are met."""
    found: dict[type[Any], str] = {DaemonStatus: ""}
    for cls, title in (waiting := list(found.items())):
        yield title, cls
        for key, hint, _ in _keys(cls):
            inner, mark = _inside(hint)
            if is_dataclass(inner) and inner not in found:
                found[inner] = f"{title}.{key}{mark}".removeprefix(".")  # pyright: ignore[reportArgumentType] - a class
                waiting.append((inner, found[inner]))  # pyright: ignore[reportArgumentType]


def _keys(cls: type[Any]) -> Iterator[tuple[str, Any, str]]:
    """(key, type, meaning) of what stands in one object of the JSON."""
    hints, meanings, seen = typing.get_type_hints(cls), _meanings(cls), set[str]()
    for each in fields(cls):
        if "group" in each.metadata:
            inside = [row for row in _keys(_inside(hints[each.name])[0]) if row[0] not in seen]
        else:
            inside = [(json_key(each), hints[each.name], meanings.get(each.name, ""))]
        seen |= {row[0] for row in inside}
        yield from inside


def _inside(hint: Any) -> tuple[Any, str]:
    """(the type of one value, "[]" for a list of them, ".NAME" for a table)."""
    arguments = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return _inside(next(kind for kind in arguments if kind is not types.NoneType))
    if typing.get_origin(hint) is tuple:
        return arguments[0], "[]"
    if typing.get_origin(hint) is dict:
        return arguments[1], ".NAME"
    return hint, ""


def _type(hint: Any) -> str:
    inner, mark = _inside(hint)
    word = "object" if is_dataclass(inner) else WORDS.get(inner, "object")
    word = {"[]": f"list: {word}", ".NAME": f"by name: {word}", "": word}[mark]
    return f"{word}, or null" if isinstance(hint, types.UnionType) else word


def _first_line(cls: type[Any]) -> str:
    return (inspect.getdoc(cls) or "").split("\n")[0]


def _meanings(cls: type[Any]) -> dict[str, str]:
    """What the docstring says of each attribute, in words of JSON."""
    _, _, listed = (inspect.getdoc(cls) or "").partition("Attributes:\n")
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", listed, re.MULTILINE)
    cells = {"None": "null", "|": "\\|"}
    return {
        name: re.sub(r"\bNone\b|\|", lambda found: cells[found[0]], re.sub(r"\s+", " ", text))
        for name, text in entries
    }


if __name__ == "__main__":
    print(document(), end="")
