"""What a kind of source gives `pack`: a number of samples, each of them by its number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from loaderd.data.sample import Sample


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What the user says of a source besides where it is.

    Attributes:
        fields: Those that are packed, all if there are none.
        classes: Names of the labels in their order; None for the source's own.
        args: Words of this kind of source alone.
        more: Further places of the source, besides the first.
        looking: Is told how many of its files have been looked at, before there are samples.
    """

    fields: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    more: tuple[str, ...] = ()
    looking: Callable[[int, int], None] = lambda done, total: None


class PackItem(NamedTuple):
    """One sample of a source, not yet read.

    Attributes:
        name: What it is called, for people and, where the source has `named`, in the database.
        read: Makes it, in any thread. Raises any Exception for a bad sample. Its images are stored
            ones, in `encoded`.
    """

    name: bytes
    read: Callable[[], Sample]


class PackSource(Protocol):
    """An open source. A kind of `pack` is a context manager that gives one.

    Attributes:
        kind: What the database says it was packed from.
        named: Samples have names of their own.
        total: Number of samples.
    """

    kind: str
    named: bool
    total: int

    @property
    def fingerprint(self) -> str:
        """A hash of what it holds; a broken-off pack of another source is not gone on with."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the labels, () if there are none."""
        ...

    @property
    def unreadable(self) -> Sequence[tuple[str, str]]:
        """(what, why) of parts that are left out as a whole."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Lines for whoever packs it."""
        ...

    @property
    def form(self) -> str:
        """ "dict" or "tuple"."""
        ...

    def item(self, index: int) -> PackItem:
        """Sample `index`, in [0, total). Called by one thread, and raises nothing for a bad one."""
        ...


OpenSource = Callable[[str], AbstractContextManager[PackSource]]  # of a folder for temporary files


def shown(name: bytes) -> str:
    """A name for people: bytes that are not UTF-8 as escapes."""
    return name.decode("utf-8", "backslashreplace")
