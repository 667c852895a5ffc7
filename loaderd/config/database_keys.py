"""The keys of a stream that describe a database of another project.

What they take, and which go together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loaderd.config.types import (
    ENTRY,
    Either,
    Many,
    Say,
    Text,
    ValueType,
    Whole,
    join,
    script,
    show,
)

FIELD = Text(r"[^\x00-\x1f]{1,200}", "the name of a field")
PATTERN = Text(
    r"[^{}]*\{i(?::0?[1-9][0-9]?d)?\}[^{}]*|u(?:32|64)[bl]e",
    'a pattern of keys, such as "{i:08d}" or "image-{i:09d}", or "u32be"',
)
DTYPE = Text(
    r"[<>]?(?:bool|u?int(?:8|16|32|64)|float(?:16|32|64)|complex(?:64|128))|text|bytes",
    'a dtype, such as "float32", or "text" or "bytes"',
)
SHAPE = Many(Whole(-1, 1 << 40))


@dataclass(frozen=True, slots=True)
class ForEachField:
    """A table with a value of one kind for each field."""

    kind: ValueType

    def read(self, value: Any, say: Say) -> Any:
        """A dict by field; a fault names the field that it is in."""
        if not isinstance(value, dict) or not value:
            say("", f"{show(value)} is not a table of fields")
            return {}
        return {
            name: self.kind.read(item, lambda where, text, name=name: say(join("", name), text))
            for name, item in value.items()
        }

    def schema(self) -> dict[str, Any]:
        """At least one field, each with a value of `kind`."""
        return {"type": "object", "minProperties": 1, "additionalProperties": self.kind.schema()}


LAYOUT = Text(
    rf"[a-z0-9_-]+|{ENTRY}",
    '"auto", the name of a layout, or a class: "pkg.module:Class"',
    script,
)
KEY_FORMAT = Either(
    (PATTERN, ForEachField(PATTERN)),
    "a pattern of keys with {i} in it, nor a table with one for each field",
)
DTYPES = Either(
    (DTYPE, ForEachField(DTYPE)), 'a dtype such as "float32", nor a table with one for each field'
)
SHAPES = Either((SHAPE, ForEachField(SHAPE)), "a shape, nor a table with one for each field")
# The keys that describe a database of another project.
NAMES = ("key_format", "count", "dtype", "shape", "fields", "index_file", "allow_pickle")
NO_CLASS = {"properties": {"layout": {"not": {"pattern": ":"}}}}
# The rules of `check`, as JSON schema.
ON_DATABASES = {"anyOf": [{"required": ["lmdb"]}, {"required": ["parts"]}]}
SCHEMAS = {name: {**ON_DATABASES, **NO_CLASS} for name in NAMES}


def check(given: Mapping[str, Any], say: Say) -> None:
    """Say what is wrong between these words and the others of a stream."""
    for name in NAMES:
        if name in given and not {"lmdb", "parts"} & given.keys():
            say(name, f"{show(given[name])}: goes with lmdb, which is not set")
        elif name in given and ":" in str(given.get("layout")):
            say(
                name,
                f"{show(given[name])}: goes with a layout that loaderd knows; for a class use "
                f"layout_args = {{{name} = ...}}",
            )
