"""Kinds of config values: each reads a TOML value and describes itself as JSON schema.

So the two cannot differ.

`read(value, say)` gives the value as the config keeps it. A fault goes to `say(where, text)`, where
`where` is a path below the value ("" is the value itself); then what is returned means nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import date, time
from typing import Any, Protocol

from loaderd_wire.hints import nearest
from loaderd_wire.limits import MAX_INT

Say = Callable[[str, str], None]

MAX_DAYS = 36_500
UNITS = {"": 1, "B": 1}
UNITS |= {f"{letter}{end}": 1000 ** (n + 1) for n, letter in enumerate("KMGT") for end in ("", "B")}
UNITS |= {f"{letter}iB": 1024 ** (n + 1) for n, letter in enumerate("KMGT")}
SIZE = re.compile(
    rf"([0-9]{{1,15}}(?:\.[0-9]{{1,6}})?) "
    rf"*({'|'.join(sorted(filter(None, UNITS), key=len, reverse=True))})?"
)
NAME = r"[A-Za-z_][A-Za-z0-9_]*"
ENTRY = rf"{NAME}(?:\.{NAME})*:{NAME}(?:\.{NAME})*"  # of something in the user's code
MAX_DEPTH = 16  # of tables in tables, in arguments for user code


class ValueType(Protocol):
    """What a key takes: one kind of value."""

    def read(self, value: Any, say: Say) -> Any:
        """The value as the config keeps it; means nothing once a fault has gone to `say`."""
        ...

    def schema(self) -> dict[str, Any]:
        """The values that it takes, as JSON schema, which may let some pass that `read` refuses."""
        ...


def show(value: Any) -> str:
    """A value as TOML has it, cut to a line."""
    text = (
        str(value).lower()
        if isinstance(value, bool)
        else f'"{value}"'
        if isinstance(value, str)
        else repr(value)
    )
    text = text.encode("unicode_escape").decode() if isinstance(value, str) else text
    return text if len(text) <= 60 else text[:57] + "..."


def near(word: str, known: Collection[str]) -> str:
    """ "; did you mean 'shuffle'?" or ""."""
    found = nearest(word, known)
    return f"; did you mean {found!r}?" if found else ""


@dataclass(frozen=True)
class Flag:
    """True or false."""

    def read(self, value: Any, say: Say) -> Any:
        if type(value) is not bool:
            say("", f"{show(value)} is not true or false")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Whole:
    """A whole number from `low` to `high`."""

    low: int = 0
    high: int = MAX_INT

    def read(self, value: Any, say: Say) -> Any:
        if type(value) is not int or not self.low <= value <= self.high:
            say("", f"{show(value)} is not a whole number from {self.low} to {self.high}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True)
class Seconds:
    """A duration in seconds; `zero` says whether 0 is one."""

    zero: bool = True
    most: float = 1e9

    def read(self, value: Any, say: Say) -> Any:
        if (
            type(value) not in (int, float)
            or not 0 <= value <= self.most
            or (value == 0 and not self.zero)
        ):
            say(
                "", f"{show(value)} is not a number of seconds {'from' if self.zero else 'above'} 0"
            )
            return 0.0
        return float(value)

    def schema(self) -> dict[str, Any]:
        return {
            "type": "number",
            "minimum" if self.zero else "exclusiveMinimum": 0,
            "maximum": self.most,
        }


@dataclass(frozen=True)
class Days:
    """A number of days; 0 is one."""

    def read(self, value: Any, say: Say) -> Any:
        if type(value) not in (int, float) or not 0 <= value <= MAX_DAYS:
            say("", f"{show(value)} is not a number of days from 0")
            return 0.0
        return float(value)

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "minimum": 0, "maximum": MAX_DAYS}


@dataclass(frozen=True)
class Size:
    """Bytes: a whole number, or text such as "64MiB" (1024s) or "64MB" (1000s)."""

    def read(self, value: Any, say: Say) -> Any:
        if type(value) is int and 0 < value <= MAX_INT:
            return value
        match = SIZE.fullmatch(value) if isinstance(value, str) else None
        if match:
            size = int(float(match[1]) * UNITS[match[2] or ""])
            if size > 0:
                return size
        say(
            "",
            f"{show(value)} is not a size: a whole number of bytes above 0, or text such as "
            '"64MiB" or "64MB"',
        )
        return 0

    def schema(self) -> dict[str, Any]:
        return {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MAX_INT},
                {"type": "string", "pattern": f"^{SIZE.pattern}$"},
            ]
        }


@dataclass(frozen=True)
class Choice:
    """One of some words."""

    words: tuple[str, ...]

    def read(self, value: Any, say: Say) -> Any:
        if not isinstance(value, str) or value not in self.words:
            hint = near(value, self.words) if isinstance(value, str) else ""
            say("", f"{show(value)} is not one of {', '.join(map(repr, self.words))}{hint}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.words)}


@dataclass(frozen=True)
class Text:
    """Text that matches a pattern.

    Attributes:
        pattern: A regular expression for all of it.
        what: Names it in a fault.
        test: Finds what no pattern can; returns "" if the text is fine.
    """

    pattern: str
    what: str
    test: Callable[[str], str] = lambda text: ""

    def read(self, value: Any, say: Say) -> Any:
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value):
            meant = re.sub(r"\.(\w+)$", r":\1", value) if isinstance(value, str) else ""
            near = f'; did you mean "{meant}"?' if re.fullmatch(self.pattern, meant) else ""
            say("", f"{show(value)} is not {self.what}{near}")
        elif problem := self.test(value):
            say("", f"{show(value)}: {problem}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^(?:{self.pattern})$"}


def port(address: str) -> str:
    """What is wrong with the port at the end of an address; "" if nothing is, or it has none."""
    number = address.rpartition(":")[2]
    fine = not number.isdecimal() or 0 < int(number) < 65536
    return "" if fine else "a port is from 1 to 65535"


def script(name: str) -> str:
    """What is wrong with the name of something in the script that runs; "" for every other name."""
    if name.partition(":")[0] != "__main__":
        return ""
    return (
        "workers do not run your script, so they have no such __main__: put the code into a "
        "module beside the config, and name that module"
    )


def entry(what: str) -> Text:
    """ "pkg.module:name" of something in the user's code."""
    return Text(
        ENTRY,
        f'the name of {what}: "pkg.module:name"',
        script,
    )


@dataclass(frozen=True)
class Path:
    """A path as written; `load.py` expands it, since only it knows the file and the environment."""

    def read(self, value: Any, say: Say) -> Any:
        if not isinstance(value, str) or not value:
            say("", f"{show(value)} is not a path")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1}


@dataclass(frozen=True)
class Either:
    """The first kind that takes the value; `what` names them all."""

    kinds: tuple[ValueType, ...]
    what: str

    def read(self, value: Any, say: Say) -> Any:
        for kind in self.kinds:
            faults: list[str] = []
            read = kind.read(value, lambda where, text, faults=faults: faults.append(text))
            if not faults:
                return read
        say("", f"{show(value)} is not {self.what}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [kind.schema() for kind in self.kinds]}


@dataclass(frozen=True)
class Fraction:
    """A number above 0 and below 1."""

    def read(self, value: Any, say: Say) -> Any:
        if type(value) is not float or not 0 < value < 1:
            say("", f"{show(value)} is not a number between 0 and 1")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}


@dataclass(frozen=True)
class Many:
    """An array of one kind, as a tuple."""

    kind: ValueType

    def read(self, value: Any, say: Say) -> Any:
        if not isinstance(value, list):
            say(
                "",
                f"{show(value)} is not an array"
                + ("; write its header in double brackets" if isinstance(value, dict) else ""),
            )
            return ()
        return tuple(
            self.kind.read(
                item,
                lambda where, text, n=n: say(
                    f"[{n}]{'.' if where and where[0] != '[' else ''}{where}", text
                ),
            )
            for n, item in enumerate(value)
        )

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.kind.schema()}


@dataclass(frozen=True)
class Args:
    """A table of arguments for the user's code.

    It holds text, numbers, true and false, and arrays and tables of them.
    """

    def read(self, value: Any, say: Say) -> Any:
        if not isinstance(value, dict):
            say("", f"{show(value)} is not a table")
            return {}
        self._check(value, "", say, 0)
        return value

    def _check(self, value: Any, where: str, say: Say, depth: int) -> None:
        if depth > MAX_DEPTH:
            say(where, f"tables and arrays are nested more than {MAX_DEPTH} deep")
        elif isinstance(value, dict):
            for name, item in value.items():
                self._check(item, join(where, name), say, depth + 1)
        elif isinstance(value, list):
            for n, item in enumerate(value):
                self._check(item, f"{where}[{n}]", say, depth + 1)
        elif isinstance(value, (date, time)):
            say(where, f"{value} is a date or time, which arguments cannot be: write it as text")
        elif type(value) is int and not -MAX_INT <= value <= MAX_INT:
            say(where, f"{show(value)} is not within 62 bits")
        elif type(value) is float and not math.isfinite(value):
            say(where, f"{show(value)} is not a finite number")

    def schema(self) -> dict[str, Any]:
        return {"type": "object"}


def join(where: str, name: str) -> str:
    """The path of a key below `where`, written as TOML would."""
    word = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else show(name)
    return f"{where}.{word}" if where else word
