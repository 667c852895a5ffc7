"""A folder of images, listed as torchvision's ImageFolder lists it.

One subfolder is a class; classes and files are sorted by name. Names go to a `Spool`, not into
memory: only the names of one folder at a time are held.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from loaderd.data.class_names import meant
from loaderd.data.errors import SourceError
from loaderd.data.packing.spool import Spool
from loaderd_wire.hints import counted

IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
NO_LABEL = -1
SHOWN = 5  # of a list of classes or kinds of files that are named
KINDS = 64  # endings of ignored files that are told apart
MAX_ENDING = 16  # characters
KERNELS = (b"proc", b"sysfs", b"debugfs", b"tracefs")


def _shown(path: str) -> str:
    """A name for people: bytes that are not UTF-8 as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _of_the_kernel() -> frozenset[int]:
    """Devices of mounted file systems whose files are the kernel's own.

    Reading such a file may wait for ever. Empty where /proc is missing.
    """
    found: set[int] = set()
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", "rb") as lines:
        for line in lines:
            before, _, behind = line.partition(b" - ")
            if behind.split(b" ")[0] in KERNELS:
                found.add(os.makedev(*map(int, before.split(b" ")[2].split(b":"))))
    return frozenset(found)


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((name for is_it, name in kinds if is_it(mode)), "something else")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """A link that leads nowhere, or to itself, is none; it must not hide what lies beside it."""
    try:
        return entry.is_dir()
    except OSError:
        return False


class Ignored:
    """Files that are not packed: for each ending of a name their number and an example."""

    def __init__(self) -> None:
        self.total = 0
        self._kinds: dict[str, tuple[int, str]] = {}

    def add(self, path: str) -> None:
        """Count one file, by the ending of its path; the first of each ending is the example."""
        self.total += 1
        ending = _shown(os.path.splitext(path)[1].lower())[:MAX_ENDING] or "without an ending"
        kind = ending if ending in self._kinds or len(self._kinds) < KINDS else "others"
        count, example = self._kinds.get(kind, (0, _shown(path)))
        self._kinds[kind] = (count + 1, example)

    def __str__(self) -> str:
        """What was passed over, as "2 .txt (such as a/notes.txt), 1 .json (b/x.json)"."""
        kinds = sorted(self._kinds.items(), key=lambda kind: (-kind[1][0], kind[0]))
        told = [
            f"{count:,} {ending} ({'such as ' if count > 1 else ''}{example})"
            for ending, (count, example) in kinds[:SHOWN]
        ]
        others = sum(count for _, (count, _) in kinds[SHOWN:])
        return ", ".join([*told, f"{others:,} with other endings"] if others else told)


@dataclass(frozen=True, slots=True)
class Found:
    """One file with the name of an image.

    Attributes:
        path: Relative to the folder, as the filesystem's bytes.
        label: Number of its class; NO_LABEL in a flat folder.
    """

    path: bytes
    label: int


class Listing:
    """What a folder holds. Use it as a context manager: it owns temporary files.

    Attributes:
        folder: The folder.
        classes: Names of the labels, () for a flat folder.
        total: Number of images.
        ignored: Files that are no images by name.
        hidden: Names of folders beside the classes that begin with a dot.
        beside: Images beside the class folders.
        empty: Classes without images.
        absent: Classes without a folder.
        unreadable: (folder or link, why) of what could not be listed.
    """

    def __init__(
        self, folder: str, spool_folder: str, classes: tuple[str, ...] | None = None
    ) -> None:
        """Go through a folder.

        Args:
            folder: The folder.
            spool_folder: Where the temporary files go.
            classes: Names of the labels in their order; each folder must be one of them. None: the
                folders' own names, sorted.

        Raises:
            SourceError: It is no folder, holds no images, or has a class that is not known.
            WriteFault: The temporary files cannot be written.
        """
        self.folder = folder
        self.total = 0
        self.ignored = Ignored()
        self.hidden: list[str] = []
        self.beside = Ignored()
        self.empty: list[str] = []
        self.absent: list[str] = []
        self.unreadable: list[tuple[str, str]] = []
        self._given = classes
        self._kernels = _of_the_kernel()
        self._deep = 0  # images that lie deeper than a class folder
        self._digest = hashlib.blake2b(digest_size=16)
        if not os.path.isdir(folder):
            there = os.path.exists(folder)
            raise SourceError(
                f"{folder}: {'is not a folder' if there else 'there is no such folder'}"
            )
        self._spool = Spool(spool_folder)
        try:
            self._list()
            self._spool.seal()
            if not self.total:
                raise SourceError(
                    f"{folder}: holds no images: no file in it or its subfolders ends with "
                    f"{' '.join(IMAGES)}"
                )
        except BaseException:
            self._spool.close()
            raise

    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *exc: object) -> None:
        self._spool.close()

    @property
    def fingerprint(self) -> str:
        """A hash of names, sizes and times."""
        return self._digest.hexdigest()

    @property
    def notes(self) -> list[str]:
        """What whoever packs this folder should know, a line each."""
        lines: list[str] = []
        for ignored, what in (
            (self.ignored, "not named like images"),
            (self.beside, "outside the class folders"),
        ):
            if ignored.total:
                lines.append(
                    f"{ignored.total:,} {'files were' if ignored.total > 1 else 'file was'} "
                    f"ignored, {what}: {ignored}"
                )
        if self.hidden and self.classes:
            lines.append(
                f"hidden and left out: {', '.join(sorted(self.hidden)[:SHOWN])}; torchvision's "
                "ImageFolder takes such a folder for a class, so its labels would differ"
            )
        if not self.classes:
            lines.append(
                f"no classes, so no labels: the images are directly in {_shown(self.folder)}. For "
                "labels give the parent folder, "
                "which has one folder per class"
            )
        elif self._deep == self.total:
            first = ", ".join(map(repr, self.classes[:SHOWN])) + (
                ", ..." if len(self.classes) > SHOWN else ""
            )
            lines.append(
                "warning: all images are one level deeper than the folders that name the classes "
                f"({first}). If the folders inside are the classes, "
                "pack each by itself: loaderd pack imagefolder "
                f"{_shown(os.path.join(self.folder, self._names[0]))} ..."
            )
        if self.absent:
            named = ", ".join(map(repr, self.absent[:SHOWN])) + (
                ", ..." if len(self.absent) > SHOWN else ""
            )
            have = "has" if len(self.absent) == 1 else "have"
            lines.append(
                f"{len(self.absent):,} of the {counted(len(self.classes), 'class')} given "
                f"{have} no folder here: {named}"
            )
        if self.empty:
            named = ", ".join(
                f"{name!r} (label {self.classes.index(name)})" for name in self.empty[:SHOWN]
            )
            more = f" and {len(self.empty) - SHOWN:,} more" if len(self.empty) > SHOWN else ""
            have, its = (
                ("class has", "its label is")
                if len(self.empty) == 1
                else ("classes have", "their labels are")
            )
            lines.append(
                f"warning: {len(self.empty):,} {have} no images: {named}{more}; {its} given to no "
                "sample. torchvision's ImageFolder refuses "
                "such a folder unless allow_empty=True. Remove folders that are not classes, and "
                "pack again"
            )
        return lines

    def _list(self) -> None:
        names, folders = self._scan(self.folder)
        self._names = sorted(folders)
        labels = self._labels()
        for name in self.classes:
            self._digest.update(name.encode() + b"\0")
        if not folders:
            self._write("", names, NO_LABEL)
            return
        for name, _, _ in names:
            self.beside.add(name)
        root = os.stat(self.folder)
        for name in self._names:
            before, label = self.total, labels[_shown(name)]
            self._walk(name, label, ((root.st_dev, root.st_ino),))
            if self.total == before:
                self.empty.append(self.classes[label])

    def _labels(self) -> dict[str, int]:
        """The label of each class.

        Raises:
            SourceError: A folder is none of the classes given.
        """
        names = [_shown(name) for name in self._names]
        self.classes = tuple(names) if self._given is None else self._given
        labels = {name: label for label, name in enumerate(self.classes)}
        if self._given is None:
            return labels
        if not names:
            raise SourceError(f"{self.folder}: has no class folders, so it cannot use class names")
        unknown = [name for name in names if name not in labels]
        if unknown:
            more = f" (nor {counted(len(unknown) - 1, 'other')})" if len(unknown) > 1 else ""
            raise SourceError(
                f"{self.folder}: folder {unknown[0]!r} is not one of the "
                f"{counted(len(self.classes), 'class')} given{more}; "
                f"{meant(unknown[0], self.classes)}: rename it, or add it to them"
            )
        self.absent = [name for name in self.classes if name not in set(names)]
        return labels

    def _walk(self, below: str, label: int, above: tuple[tuple[int, int], ...]) -> None:
        """All of a class in the order of sorted paths: its own files, then those of each subfolder.

        A link back to where we came from ends it.
        """
        for place in sorted(self._places(below, above)):
            names, _ = self._scan(os.path.join(self.folder, place))
            self._write(place, names, label)
            self._deep += len(names) if place != below else 0

    def _places(self, below: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
        try:
            found = os.stat(os.path.join(self.folder, below))
        except OSError as error:
            self.unreadable.append((_shown(below), error.strerror or str(error)))
            return
        here = (found.st_dev, found.st_ino)
        if here in above:
            return
        yield below
        try:
            with os.scandir(os.path.join(self.folder, below)) as entries:
                folders = [
                    entry.name
                    for entry in entries
                    if _is_folder(entry) and not entry.name.startswith(".")
                ]
        except OSError as error:
            self.unreadable.append((_shown(below), error.strerror or str(error)))
            return
        for name in folders:
            yield from self._places(os.path.join(below, name), (*above, here))

    def _scan(self, path: str) -> tuple[list[tuple[str, int, int]], list[str]]:
        """What lies in one folder. Hidden names are not seen.

        Returns:
            (name, size, mtime) of the images, and names of the subfolders.
        """
        names: list[tuple[str, int, int]] = []
        folders: list[str] = []
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        if path == self.folder and _is_folder(entry):
                            self.hidden.append(_shown(entry.name))
                        continue
                    if _is_folder(entry):
                        folders.append(entry.name)
                    elif not entry.name.lower().endswith(IMAGES):
                        self.ignored.add(os.path.relpath(entry.path, self.folder))
                    else:
                        self._image(entry, names)
        except OSError as error:
            self.unreadable.append(
                (_shown(os.path.relpath(path, self.folder)), error.strerror or str(error))
            )
        return names, folders

    def _image(self, entry: os.DirEntry[str], names: list[tuple[str, int, int]]) -> None:
        try:
            found = entry.stat()
            kernel = found.st_dev in self._kernels
            if stat.S_ISREG(found.st_mode) and not kernel:
                names.append((entry.name, found.st_size, found.st_mtime_ns))
                return
            link = "a link to " if entry.is_symlink() else ""
            kind = _kind(found.st_mode)
            reason = link + (
                "a file of the kernel (proc, sysfs)" if kernel else f"{kind}, not a file"
            )
        except FileNotFoundError:
            reason = "a broken link" if entry.is_symlink() else "it no longer exists"
        except OSError as error:
            reason = error.strerror or str(error)
        self.unreadable.append((_shown(os.path.relpath(entry.path, self.folder)), reason))

    def _write(self, place: str, names: list[tuple[str, int, int]], label: int) -> None:
        for name, size, mtime in sorted(names):
            path = os.fsencode(os.path.join(place, name))
            # labels follow from the classes
            self._digest.update(b"%b\0%d %d;" % (path, size, mtime))
            self._spool.append(b"%d %b" % (label, path))
            self.total += 1

    def file(self, number: int) -> Found:
        """One of the files in their order."""
        label, _, path = self._spool[number].partition(b" ")
        return Found(path, int(label))

    def files(self, start: int = 0) -> Iterator[Found]:
        """The files in their order, from number `start` on."""
        return map(self.file, range(start, self.total))
