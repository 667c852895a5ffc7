"""What libraries print while files are looked at: each kind of line once, with its file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

KINDS = 32  # different lines that are told; all others count as one
OTHER = "other lines"
NUMBERS = re.compile(r"0[xX][0-9a-fA-F]+|[0-9]+(?:\.[0-9]+)?")


@dataclass(slots=True)
class PrintedNote:
    """A kind of line.

    Attributes:
        line: One such line.
        count: How many there were.
        name: Of the file that it was first seen of; "" if that cannot be told.
    """

    line: str
    count: int = 0
    name: str = ""


class LibraryOutput:
    """The kinds of lines, and which file each is about.

    Several files are looked at side by side, so that nobody knows which one a new kind of line is
    about, until they are looked at once more, one after the other: `find`.
    """

    def __init__(self, lines: Callable[[], Iterable[str]]) -> None:
        """Begin without a line.

        Args:
            lines: Returns what was printed since it was called last.
        """
        self._lines = lines
        self._kinds: dict[str, PrintedNote] = {}
        self._unnamed: list[str] = []

    def listen(self) -> bool:
        """Count what was printed.

        Returns:
            Whether there is a kind of line that no file has been found for.
        """
        for line in self._lines():
            kind = self._kind(line)
            if kind not in self._kinds:
                self._kinds[kind] = PrintedNote(line if kind != OTHER else OTHER)
                self._unnamed.append(kind)
            self._kinds[kind].count += 1
        return bool(self._unnamed)

    def find(self, again: Iterable[tuple[str, Callable[[], object]]]) -> None:
        """Find out which files the new kinds of lines are about, while nothing else is looked at.

        Args:
            again: For each file that it may be: its name, and what looks at it once more and raises
                nothing.
        """
        for name, look in again:
            if not self._unnamed:
                break
            look()
            said = {self._kind(line): line for line in self._lines()}
            for kind in [kind for kind in self._unnamed if kind in said]:
                self._unnamed.remove(kind)
                self._kinds[kind].name, self._kinds[kind].line = name, said[kind]
        self._unnamed.clear()

    @property
    def notes(self) -> list[str]:
        """A line for each kind."""
        return [
            (f"{told.name}: " if told.name else "")
            + told.line
            + (f" ({told.count:,} such lines in total)" if told.count > 1 else "")
            for told in self._kinds.values()
        ]

    def _kind(self, line: str) -> str:
        kind = NUMBERS.sub("#", line)
        return kind if kind in self._kinds or len(self._kinds) < KINDS else OTHER
