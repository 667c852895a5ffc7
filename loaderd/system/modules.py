"""The user's modules as they were imported.

Which files below the config's folder they came from, and what those files said then.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass

MOST = 1000  # modules that are kept in mind
MOST_BYTES = 16 << 20  # of a file; a larger one is not the source of a module
OURS = ("loaderd", "loaderd_client", "loaderd_wire")
INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True, slots=True)
class Module:
    """A module of the user.

    Attributes:
        path: Of its file, below the folder.
        size: Of that file, in bytes.
        mtime_ns: Of that file.
        digest: Of its bytes.
        ctime_ns: Of that file.
    """

    path: str
    size: int
    mtime_ns: int
    digest: str
    ctime_ns: int = 0


def read(folder: str, path: str) -> Module | None:
    """What is in this file now; None if it can't be read."""
    try:
        with open(os.path.join(folder, path), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
                return None
            digest = hashlib.blake2b(file.read(), digest_size=8).hexdigest()
    except OSError:
        return None
    return Module(path, found.st_size, found.st_mtime_ns, digest, found.st_ctime_ns)


class Imported:
    """What this process, and the one that it was forked from, have imported from below a folder."""

    def __init__(self, folder: str) -> None:
        """Begin with nothing.

        Args:
            folder: Where the user's modules lie; "" for none at all.
        """
        self.folder = folder
        self._known: dict[str, Module] = {}
        self._seen: set[str] = set()  # names of modules that have been looked at
        self._told = 0

    def look(self) -> None:
        """Take note of modules that have come.

        To be called soon after imports: what a file says then is what was imported.
        """
        if not self.folder or len(sys.modules) == len(self._seen):
            return
        # in the order of their imports, so that the bound falls on the same ones each time
        for name in list(sys.modules):
            if name in self._seen:
                continue
            self._seen.add(name)
            path = _path_below(self.folder, name)
            if path and path not in self._known and len(self._known) < MOST:
                module = read(self.folder, path)
                if module is not None:
                    self._known[path] = module

    def all(self) -> tuple[Module, ...]:
        """By path, as of the last look."""
        return tuple(self._known[path] for path in sorted(self._known))

    def news(self) -> tuple[Module, ...]:
        """Those that no earlier call has returned, of those that there are now."""
        self.look()
        if self._told == len(self._known):
            return ()
        new, self._told = tuple(self._known.values())[self._told :], len(self._known)
        return new


def _path_below(folder: str, name: str) -> str:
    """The file of this module as seen from the folder.

    "" if it isn't there, is installed, or is ours.
    """
    if name.partition(".")[0] in OURS:
        return ""
    try:  # a lazy module would import itself, were it asked for an attribute as usual
        file = object.__getattribute__(sys.modules[name], "__dict__").get("__file__")
        if not isinstance(file, str):
            return ""
        path = os.path.relpath(os.path.abspath(file), folder)
        if path.startswith(os.pardir):  # by another name of the folder
            path = os.path.relpath(os.path.realpath(file), os.path.realpath(folder))
    except Exception:  # noqa: BLE001 - anything may be in there
        return ""
    parts = path.split(os.sep)
    return "" if parts[0] == os.pardir or any(part in INSTALLED for part in parts) else path


class Modules:
    """What all workers have imported from below `folder`, as they tell."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._known: dict[str, Module] = {}

    def add(self, modules: Iterable[Module]) -> list[str]:
        """Returns the paths of those that another process has imported with other contents."""
        differing: list[str] = []
        for module in modules:
            known = self._known.get(module.path)
            if known is None and len(self._known) < MOST:
                self._known[module.path] = module
            elif known is not None and known.digest != module.digest:
                differing.append(module.path)
        return differing

    def edited(self) -> list[str]:
        """Paths of the files that no longer say what was imported, or are gone."""
        return [module.path for module in self._known.values() if self._is_edited(module)]

    def _is_edited(self, module: Module) -> bool:
        try:
            found = os.stat(os.path.join(self._folder, module.path))
        except OSError:
            return True
        if (found.st_size, found.st_mtime_ns, found.st_ctime_ns) == (
            module.size,
            module.mtime_ns,
            module.ctime_ns,
        ):
            return False
        now = read(self._folder, module.path)
        return now is None or now.digest != module.digest
