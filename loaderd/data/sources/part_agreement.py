"""Whether the databases of one stream go together: their fields, dtypes, shapes and classes."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import numpy as np

from loaderd.config.stream import StreamConfig
from loaderd.data.errors import ANYTHING, SourceError
from loaderd.data.sample import Sample
from loaderd.data.sources.database import OpenDatabase

TRIED = 4  # samples of a part that may be bad before nothing is known of it


class Agreement:
    """Compares each part with those before it.

    The fields are compared as they are stored, so only where no code of the user's may change them.
    """

    def __init__(self, plan: StreamConfig) -> None:
        self._plan = plan
        called = any(step.call for step in plan.transforms)
        self._compares = not called and plan.collate == "stack" and plan.survey is None
        self._first: OpenDatabase | None = None
        self._classes: OpenDatabase | None = None  # the first that has class names
        self._fields: dict[str, str] | None = None

    def add(self, part: OpenDatabase) -> None:
        """The next part.

        Raises:
            SourceError: It does not go with the first one; the text names both, and the field.
        """
        if self._classes is None:
            self._classes = part if part.reader.classes else None
        elif part.reader.classes:
            _same_classes(part, self._classes)
        if self._first is not None and part.reader.form != self._first.reader.form:
            raise SourceError(
                f"{part.path}: its samples are a {part.reader.form}, those of {self._first.path} "
                f"are a {self._first.reader.form}"
            )
        fields = self._fields_of(part) if self._compares else None
        if fields is None:
            self._first = self._first or part
        elif self._fields is None:
            self._first, self._fields = part, fields
        else:
            assert self._first is not None
            text = _difference(self._fields, fields, self._first.path)
            if text:
                raise SourceError(
                    f"{part.path}: {text}. Databases of one stream have the same fields: leave it "
                    "out, or change them in a call. `loaderd pack --fields` writes a database with "
                    "these fields alone; for a database of another project, fields = [...] in its "
                    "[[parts]] names them"
                )

    def _fields_of(self, part: OpenDatabase) -> dict[str, str] | None:
        """The fields of its first sample that can be read; None if there is none such."""
        for index in range(min(TRIED, part.reader.total)):
            try:
                sample = part.reader.read(index, self._plan.modes())
            except ANYTHING:
                continue
            return {name: self._kind(sample, name) for name in sample}
        return None

    def _kind(self, sample: Sample, name: str) -> str:
        """What a field is, as far as the samples of a stream must have the same."""
        value: Any = sample[name]
        if name in sample.encoded:
            return "an image file" if self._plan.decode else "bytes"
        if isinstance(value, np.ndarray):
            free = name in self._plan.free_fields or name in sample.images
            if free or (self._plan.transforms and value.ndim):
                return f"{value.dtype} with {value.ndim} axes"
            return f"{value.dtype} of shape {value.shape}"
        return "text" if isinstance(value, str) else "bytes"


def _same_classes(part: OpenDatabase, first: OpenDatabase) -> None:
    """Raises SourceError naming the first label whose class differs."""
    for label, (mine, its) in enumerate(zip_longest(part.reader.classes, first.reader.classes)):
        if mine != its:
            here, there = ("no class" if name is None else repr(name[:60]) for name in (mine, its))
            raise SourceError(
                f"{part.path}: label {label} is {here}, in {first.path} it is {there}: pack one of "
                "them again with --classes-from the other"
            )


def _difference(wanted: dict[str, str], found: dict[str, str], first: str) -> str:
    missing = [name for name in wanted if name not in found]
    more = [name for name in found if name not in wanted]
    if missing:
        return f"has no field {missing[0]!r}, which {first} has"
    if more:
        return f"has a field {more[0]!r}, which {first} does not have"
    for name, kind in wanted.items():
        if found[name] != kind:
            return f"field {name!r} is {found[name]}, in {first} it is {kind}"
    return ""
