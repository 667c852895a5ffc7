"""What of a folder with code stays here when the folder travels to other hosts.

Ray follows links, reads whatever it finds there, and waits for ever at a pipe.
"""

from __future__ import annotations

import os
import re
import stat
from fnmatch import fnmatchcase

LARGE = 16 << 20  # bytes of a file that stays: it is data, and not code
MOST_FILES = 20_000  # and folders, of a folder that travels
MOST_BYTES = 400 << 20  # of a folder behind a link that travels; Ray takes 500 MiB in all
# what stays, in the words of .gitignore
NO_CODE = ["*.mdb", "*.lmdb", "*.log", "*.sock", "*.bad.jsonl", ".git", "__pycache__"]
NO_CODE += [".venv", "venv", "node_modules", ".*_cache"]


class CannotTravel(Exception):
    """A folder is no folder of code; str() says why, in one line."""


class _TooMuch(Exception):
    """There is more below a folder than travels."""


def left_behind(folder: str) -> list[str]:
    """Patterns of .gitignore for all below a folder that does not travel.

    These are `NO_CODE`, large files, what is no file or cannot be read, names that are no UTF-8,
    links to a folder that they lie in, and links to folders of data: more than MOST_FILES files
    or MOST_BYTES.

    Args:
        folder: Its absolute path.

    Raises:
        CannotTravel: There are too many files.
    """
    walk = _Walk(folder, MOST_FILES, None)
    try:
        walk.look("", frozenset((_identity(os.stat(folder)),)))
    except _TooMuch:
        raise CannotTravel(
            f"{folder} has more than {MOST_FILES:,} files, and travels to other nodes with the "
            "user's code: put the config into a folder of its own, with the code beside it"
        ) from None
    return [*NO_CODE, *walk.patterns]


class _Walk:
    """Looks at a folder, and at those behind links in it, up to so many files and bytes."""

    def __init__(self, folder: str, files: int, size: int | None) -> None:
        self.patterns: list[str] = []
        self.files, self.bytes = 0, 0
        self._folder = folder
        self._most_files, self._most_bytes = files, size

    def look(self, below: str, inside: frozenset[tuple[int, int]]) -> None:
        """Look at one folder and all in it.

        Args:
            below: Its path from the first one on; "" for that.
            inside: Which folders it lies in, and itself.
        """
        try:
            found = os.scandir(os.path.join(self._folder, below))
        except FileNotFoundError:
            if below:  # removed since it was found, as training code does with checkpoints
                return
            raise
        with found as entries:
            for entry in entries:
                if not any(fnmatchcase(entry.name, each) for each in NO_CODE):
                    self._consider(entry, os.path.join(below, entry.name), inside)

    def _consider(
        self, entry: os.DirEntry[str], path: str, inside: frozenset[tuple[int, int]]
    ) -> None:
        try:
            found = entry.stat()
        except FileNotFoundError:  # a link to nothing
            return
        except OSError:
            self._leave(path)
            return
        self._count(0)
        if stat.S_ISDIR(found.st_mode):
            its = _identity(found)
            if its in inside or not os.access(entry, os.R_OK | os.X_OK) or not _is_text(path):
                self._leave(path)
            elif entry.is_symlink():
                self._follow(path, inside | {its})
            else:
                self.look(path, inside | {its})
        elif (
            not stat.S_ISREG(found.st_mode)
            or found.st_size > LARGE
            or not os.access(entry, os.R_OK)
            or not _is_text(path)
        ):
            self._leave(path)
        else:
            self._count(found.st_size, files=0)

    def _follow(self, path: str, inside: frozenset[tuple[int, int]]) -> None:
        """Look behind a link to a folder, which stays if there is too much."""
        walk = _Walk(self._folder, self._most_files - self.files, MOST_BYTES)
        try:
            walk.look(path, inside)
        except _TooMuch:
            self._leave(path)
            return
        self.patterns += walk.patterns
        self._count(walk.bytes, walk.files)

    def _count(self, size: int, files: int = 1) -> None:
        self.files += files
        self.bytes += size
        if self.files > self._most_files or self.bytes > (self._most_bytes or self.bytes):
            raise _TooMuch

    def _leave(self, path: str) -> None:
        self.patterns.append("/" + re.sub(r"[\\*?\[\]]", r"\\\g<0>", path).replace(" ", "[ ]"))


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
