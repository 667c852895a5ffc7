"""A table of the config and its keys, read like any kind of value (see types.py)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from loaderd.config.types import Say, ValueType, join, near, show


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a table: what it takes, what it means, its default."""

    kind: ValueType
    text: str = ""
    default: Any = None
    required: bool = False


def key(kind: ValueType, text: str, default: Any = MISSING, kept: Any = MISSING) -> Any:
    """A field of a dataclass that is a table of the config: the one place where the key is written.

    Args:
        kind: What a file may write.
        text: What it means, for the reference page and for editors.
        default: What holds where the file does not name the key. Without one the config makes it.
        kept: The default as the dataclass keeps it, where that differs from how a file writes it.
    """
    metadata = {"key": Key(kind, text, None if default is MISSING else default)}
    value = default if kept is MISSING else kept
    if isinstance(value, dict):
        return field(metadata=metadata, default_factory=lambda: copy.copy(value))
    return field(metadata=metadata, default=value)


def keys_of(table: type) -> dict[str, Key]:
    """The keys of a dataclass, by name: those of its fields that `key` made."""
    return {each.name: each.metadata["key"] for each in fields(table) if "key" in each.metadata}


@dataclass(frozen=True, slots=True)
class Table:
    """A table with known keys, read as a dict with every default in place.

    Attributes:
        keys: By name.
        rule: Says what is wrong between keys.
        conditions: The schema of `rule`.
        elsewhere: Called with a word that the table does not know. Returns where it belongs, or
            what to write instead; "" if nobody knows.
    """

    keys: Mapping[str, Key]
    rule: Callable[[Mapping[str, Any], Say], None] = lambda given, say: None
    conditions: Mapping[str, Any] = field(default_factory=dict[str, Any])
    elsewhere: Callable[[str], str] = lambda word: ""

    def read(self, value: Any, say: Say) -> Any:
        """All keys, each as given or its default; every fault is said, not only the first."""
        read = {name: copy.copy(key.default) for name, key in self.keys.items()}
        if not isinstance(value, dict):
            say("", f"{show(value)} is not a table")
            return read
        for name, item in value.items():
            key = self.keys.get(name)
            if key is None:
                hint = self.elsewhere(name)
                hint = (
                    f"; {hint}"
                    if hint
                    else near(name, self.keys) or "; there are " + ", ".join(self.keys)
                )
                say(join("", name), f"{show(item)}: unknown key{hint}")
            else:
                read[name] = key.kind.read(
                    item, lambda where, text, name=name: say(below(name, where), text)
                )
        for name, key in self.keys.items():
            if key.required and name not in value:
                say(
                    name,
                    f"is missing: {key.text[:1].lower()}{key.text[1:].rstrip('.')}"
                    if key.text
                    else "is missing",
                )
        self.rule(value, say)
        return read

    def schema(self) -> dict[str, Any]:
        """The keys with their texts and defaults, no others, and `conditions`."""
        properties: dict[str, Any] = {}
        for name, key in self.keys.items():
            properties[name] = key.kind.schema() | ({"description": key.text} if key.text else {})
            if key.default is not None:
                properties[name]["default"] = (
                    list(key.default) if isinstance(key.default, tuple) else key.default
                )
        required = [name for name, key in self.keys.items() if key.required]
        shape: dict[str, Any] = {
            "type": "object",
            "properties": properties,
            "additionalProperties": False,
        }
        return shape | ({"required": required} if required else {}) | dict(self.conditions)


def below(name: str, where: str) -> str:
    """Path `where` seen from the table that holds key `name`."""
    return join("", name) + ("" if not where else where if where[0] == "[" else f".{where}")
