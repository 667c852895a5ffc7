"""Several databases as one dataset: what a config says of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loaderd.config import database_keys
from loaderd.config.table import Key, Table
from loaderd.config.types import Args, Flag, Many, Path, Say, Whole, show

WILD = "*?"  # what makes a path alone a pattern of several
NO_DATABASE = "[] names no database"


@dataclass(frozen=True, slots=True)
class PartConfig:
    """One database of several, or those that a pattern finds.

    Attributes:
        lmdb: An absolute path, or a pattern of paths.
        said: What differs from the stream's own words: layout, key_format and others, by key.
    """

    lmdb: str
    said: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Databases:
    """A path, or an array of paths and patterns; read as text or as a tuple."""

    def read(self, value: Any, say: Say) -> Any:
        """Text for one path, a tuple for an array; patterns stay as they are."""
        if isinstance(value, list):
            if not value:
                say("", NO_DATABASE)
            return Many(Path()).read(value, say)
        if not isinstance(value, str) or not value:
            say("", f"{show(value)} is not a path, nor an array of paths")
        return value

    def schema(self) -> dict[str, Any]:
        """A path, or an array of at least one."""
        path = Path().schema()
        return {"anyOf": [path, {"type": "array", "items": path, "minItems": 1}]}


PART = Table(
    {
        "lmdb": Key(Databases(), "The database, or several.", required=True),
        "layout": Key(database_keys.LAYOUT, "How its samples lie in it."),
        "layout_args": Key(Args(), "Keyword arguments of the layout's class."),
        "key_format": Key(database_keys.KEY_FORMAT, "Its keys."),
        "count": Key(Whole(0, 1 << 48), "Number of its samples to use, the first ones."),
        "dtype": Key(database_keys.DTYPES, "Of its values."),
        "shape": Key(database_keys.SHAPES, "Of its values."),
        "fields": Key(Many(database_keys.FIELD), "Its fields."),
        "index_file": Key(Path(), "A file that lists its keys."),
        "allow_pickle": Key(Flag(), "Runs its pickles."),
    },
    database_keys.check,
)


@dataclass(frozen=True, slots=True)
class PartTables:
    """An array of tables, one for each database; read as a tuple."""

    def read(self, value: Any, say: Say) -> Any:
        """Each table as PART reads it."""
        if value == []:
            say("", NO_DATABASE)
        return Many(PART).read(value, say)

    def schema(self) -> dict[str, Any]:
        """An array of at least one."""
        return {**Many(PART).schema(), "minItems": 1}


def as_parts(lmdb: str | tuple[str, ...] | None) -> tuple[PartConfig, ...]:
    """What `lmdb` says as parts; () where it is one path.

    Args:
        lmdb: Absolute paths and patterns.
    """
    if isinstance(lmdb, str):
        return (PartConfig(lmdb),) if any(letter in lmdb for letter in WILD) else ()
    return tuple(map(PartConfig, lmdb or ()))
