"""A folder of images, listed as torchvision's ImageFolder lists it: one subfolder a class, classes and files sorted by name.

Names go to an unnamed temporary file, not into memory: only the names of one folder at a time are held.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from loaderd.data.faults import SourceError

IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
NO_LABEL = -1
SHOWN = 5  # classes without images that are named


def _shown(path: str) -> str:
    """A name for people: bytes that are not UTF-8 as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """A link that leads nowhere, or to itself, is none; it must not hide what lies beside it."""
    try:
        return entry.is_dir()
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Found:
    """One file with the name of an image. path: relative to the folder, as the filesystem's bytes. label: NO_LABEL in a flat folder."""

    path: bytes
    label: int


class Listing:
    """What a folder holds. Use it as a context manager: it owns a temporary file.

    classes: names of the subfolders, () for a flat folder. total: files. ignored: files that are no images by name, or lie beside the
    class folders. empty: classes without images. unreadable: (folder or link, why). fingerprint: of names, sizes and times.
    """

    def __init__(self, folder: str, spool_folder: str) -> None:
        """Goes through `folder`. Raises SourceError if it is none, or holds no images."""
        self.folder = folder
        self.total = 0
        self.ignored = 0
        self.empty: list[str] = []
        self.unreadable: list[tuple[str, str]] = []
        self._digest = hashlib.blake2b(digest_size=16)
        if not os.path.isdir(folder):
            raise SourceError(f"{folder}: {'is not a folder' if os.path.exists(folder) else 'there is no such folder'}")
        self._spool: IO[bytes] = tempfile.TemporaryFile(dir=spool_folder)  # noqa: SIM115 - closed by __exit__
        try:
            self._list()
            if not self.total:
                raise SourceError(f"{folder}: holds no images: no file in it or its subfolders ends with {' '.join(IMAGES)}")
        except BaseException:
            self._spool.close()
            raise

    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *exc: object) -> None:
        self._spool.close()

    @property
    def fingerprint(self) -> str:
        return self._digest.hexdigest()

    @property
    def notes(self) -> list[str]:
        """What whoever packs this folder should know, a line each."""
        lines: list[str] = []
        if self.ignored:
            many = f"{self.ignored:,} files were ignored: no images" if self.ignored > 1 else "1 file was ignored: no image"
            lines.append(f"{many} by name, or beside the class folders")
        if self.empty:
            named = ", ".join(f"{name!r} (label {self.classes.index(name)})" for name in self.empty[:SHOWN])
            more = f" and {len(self.empty) - SHOWN:,} more" if len(self.empty) > SHOWN else ""
            have, its = ("class has", "its label is") if len(self.empty) == 1 else ("classes have", "their labels are")
            lines.append(
                f"warning: {len(self.empty):,} {have} no images: {named}{more}; {its} given to no sample. torchvision's ImageFolder refuses "
                "such a folder unless allow_empty=True. Remove what is no class, and pack again"
            )
        return lines

    def _list(self) -> None:
        names, folders = self._scan(self.folder)
        self._names = sorted(folders)
        self.classes = tuple(_shown(name) for name in self._names)
        for name in self.classes:
            self._digest.update(name.encode() + b"\0")
        if not folders:
            self._write("", names, NO_LABEL)
            return
        self.ignored += len(names)
        root = os.stat(self.folder)
        for label, name in enumerate(self._names):
            before = self.total
            self._walk(name, label, ((root.st_dev, root.st_ino),))
            if self.total == before:
                self.empty.append(self.classes[label])

    def _walk(self, below: str, label: int, above: tuple[tuple[int, int], ...]) -> None:
        """All of a class: its own files, then those of each subfolder; the order of sorted paths. A link back to where we came from ends it."""
        for place in sorted(self._places(below, above)):
            names, _ = self._scan(os.path.join(self.folder, place))
            self._write(place, names, label)

    def _places(self, below: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
        try:
            stat = os.stat(os.path.join(self.folder, below))
        except OSError as error:
            self.unreadable.append((_shown(below), error.strerror or str(error)))
            return
        here = (stat.st_dev, stat.st_ino)
        if here in above:
            return
        yield below
        try:
            with os.scandir(os.path.join(self.folder, below)) as entries:
                folders = [entry.name for entry in entries if _is_folder(entry) and not entry.name.startswith(".")]
        except OSError as error:
            self.unreadable.append((_shown(below), error.strerror or str(error)))
            return
        for name in folders:
            yield from self._places(os.path.join(below, name), (*above, here))

    def _scan(self, path: str) -> tuple[list[tuple[str, int, int]], list[str]]:
        """((name, size, mtime) of the images, names of the subfolders) in `path`; hidden ones are not seen."""
        names: list[tuple[str, int, int]] = []
        folders: list[str] = []
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if _is_folder(entry):
                        folders.append(entry.name)
                    elif not entry.name.lower().endswith(IMAGES):
                        self.ignored += 1
                    else:
                        self._image(entry, names)
        except OSError as error:
            self.unreadable.append((_shown(os.path.relpath(path, self.folder)), error.strerror or str(error)))
        return names, folders

    def _image(self, entry: os.DirEntry[str], names: list[tuple[str, int, int]]) -> None:
        try:
            if entry.is_file():
                stat = entry.stat()
                names.append((entry.name, stat.st_size, stat.st_mtime_ns))
                return
            reason = "a broken link" if entry.is_symlink() else "not a file"
        except OSError as error:
            reason = error.strerror or str(error)
        self.unreadable.append((_shown(os.path.relpath(entry.path, self.folder)), reason))

    def _write(self, place: str, names: list[tuple[str, int, int]], label: int) -> None:
        for name, size, mtime in sorted(names):
            path = os.fsencode(os.path.join(place, name))
            self._digest.update(b"%b\0%d %d %d;" % (path, size, mtime, label))
            self._spool.write(b"%d %d\n" % (label, len(path)) + path)
            self.total += 1

    def files(self, start: int = 0) -> Iterator[Found]:
        """The files in their order, from number `start` on. One iteration at a time."""
        self._spool.seek(0)
        for at in range(self.total):
            label, size = map(int, self._spool.readline().split())
            path = self._spool.read(size)
            if at >= start:
                yield Found(path, label)
