"""What the columns of a table of text are: paths of images, labels, numbers."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from typing import Any

from loaderd.data.class_names import meant
from loaderd.data.errors import SampleFault, SourceError
from loaderd.data.lmdb.record_format import MAX_CLASSES
from loaderd.data.packing.fields import sample_of
from loaderd.data.packing.files import IMAGE_ENDINGS, read_file
from loaderd.data.sample import BadValue, Sample

PATHS = re.compile(rf".+\.({'|'.join(IMAGE_ENDINGS)})", re.IGNORECASE | re.DOTALL)
LABELS = ("label", "class", "category")  # columns whose texts are names of classes
LOOKED = 100  # rows that tell whether a column has paths
SHOWN = 5


class TableColumns:
    """What is known of the columns, first from looking at all rows.

    Attributes:
        classes: Names of the labels.
    """

    def __init__(self, folder: str, given: tuple[str, ...] | None) -> None:
        """Begin.

        Args:
            folder: Where relative paths begin.
            given: Names of the labels in their order; None: the texts of the column, sorted.
        """
        self._folder = folder
        self._rows = 0
        self._paths: dict[str, bool] = {}  # column -> all of its texts so far are paths
        self._texts: dict[str, set[str]] = {}  # of columns of labels
        self._given = given
        self.classes = given or ()
        self._labels: dict[str, int] = {}
        self._label_column = ""

    def look(self, values: Mapping[str, Any]) -> None:
        """See a row."""
        self._rows += 1
        for name, value in values.items():
            if not isinstance(value, str):
                continue
            if self._rows <= LOOKED:
                path = PATHS.fullmatch(value) is not None
                self._paths[name] = self._paths.get(name, True) and path
            texts = self._texts.setdefault(name, set()) if name in LABELS else None
            if texts is not None and len(texts) <= MAX_CLASSES:
                texts.add(value)

    def decide(self, numbers: Collection[str] = ()) -> list[str]:
        """Settle what they are, after all rows were seen.

        Args:
            numbers: Columns whose texts are numbers, all of them.

        Returns:
            Lines for whoever packs it.
        """
        self._images = [name for name, path in self._paths.items() if path]
        notes = [] if self._images else ["no column has paths of images"]
        for name in (*self._images, *numbers):
            self._texts.pop(name, None)
        labels = [name for name in LABELS if name in self._texts]
        if labels and len(self._texts[labels[0]]) <= MAX_CLASSES:
            self._label_column = labels[0]
            self.classes = self._given or tuple(sorted(self._texts[labels[0]]))
            self._labels = {name: number for number, name in enumerate(self.classes)}
            first = ", ".join(map(repr, self.classes[:SHOWN]))
            more = ", ..." if len(self.classes) > SHOWN else ""
            notes.append(f"column {labels[0]!r} has the numbers of these classes: {first}{more}")
        self._texts.clear()
        return notes

    def name_of(self, values: Mapping[str, Any], line: int) -> bytes:
        """What a sample is called: its first path, or the line that it begins in."""
        for name in self._images:
            if isinstance(values.get(name), str):
                return os.fsencode(values[name])
        return b"line %d" % line

    def sample(self, values: Mapping[str, Any]) -> Sample:
        """The sample of a row. Raises any Exception."""
        made = dict(values)
        paths = [name for name in self._images if isinstance(made.get(name), str)]
        for name in paths:
            made[name] = self._image(made[name], "" if name == paths[0] else f"{made[name]}: ")
        label = made.get(self._label_column)
        if isinstance(label, str):
            made[self._label_column] = self._number(label)
        if len(self._images) == 1 and "image" not in made:
            only = self._images[0]
            made = {"image" if name == only else name: value for name, value in made.items()}
        images = ["image"] if len(self._images) == 1 and "image" in made else self._images
        return sample_of(made, images)

    def _image(self, path: str, named: str) -> bytes:
        try:
            return read_file(os.path.join(os.fsencode(self._folder), os.fsencode(path)))
        except SampleFault as fault:
            raise SampleFault(fault.stage, fault.error, named + fault.message) from None

    def _number(self, name: str) -> int:
        if name in self._labels:
            return self._labels[name]
        raise BadValue(
            f"its class {name!r} is not one of the {len(self.classes):,} given; "
            f"{meant(name, self.classes)}"
        )


def root_of(path: str, args: Mapping[str, Any]) -> str:
    """Where relative paths in a table begin. Raises SourceError."""
    unknown = [word for word in args if word != "root"]
    if unknown:
        raise SourceError(f'--args: unknown word {unknown[0]!r}; there is {{"root": "FOLDER"}}')
    root = args.get("root", os.path.dirname(path))
    if not isinstance(root, str) or not os.path.isdir(root):
        raise SourceError(f"--args: root = {root!r} is not a folder")
    return os.path.abspath(root)


def one_file(path: str, what: str) -> str:
    """A table's file. Raises SourceError for what is none."""
    path = os.path.abspath(path)
    if not os.path.isfile(path):
        there = "is not a file" if os.path.exists(path) else "there is no such file"
        raise SourceError(f"{path}: {there}; give {what}")
    return path
