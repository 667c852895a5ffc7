"""The label of a sample.

Which field it is, and what it becomes where another stream numbers the classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from loaderd.data.class_names import meant
from loaderd.data.errors import SourceError
from loaderd.data.sample import BadValue, Sample
from loaderd_wire.hints import counted


def label_field(sample: Mapping[str, Any]) -> str:
    """The field that holds the class: "label", or the only one that is a whole number.

    Raises:
        BadValue: There is no such field.
    """
    if "label" in sample:
        return "label"
    whole = [name for name, value in sample.items() if is_whole(value)]
    if len(whole) == 1:
        return whole[0]
    found = " and ".join(map(repr, whole)) if whole else ", ".join(map(repr, sample))
    raise BadValue(
        f"its class is not known: no field is named label, and of its fields "
        f"{'several are whole numbers' if whole else 'none is a whole number'}: {found}"
    )


def is_whole(value: Any) -> bool:
    """Whether a value of a sample is one whole number."""
    return getattr(value, "shape", None) == () and value.dtype.kind in "iu"


class LabelMap:
    """From the labels of a dataset to those of a given list of classes, by the classes' names."""

    def __init__(self, own: tuple[str, ...], given: tuple[str, ...], where: str, path: str) -> None:
        """Compare the names.

        Args:
            own: The dataset's classes, by label.
            given: The classes that labels are to mean.
            where: What the dataset is called.
            path: Where the given classes come from.

        Raises:
            SourceError: The dataset has no class names, or one that is not given.
        """
        if not own:
            raise SourceError(
                f"{where}: has no class names, so its labels cannot be mapped to those of {path}; "
                "leave classes out, or pack it from class folders"
            )
        numbers = {name: label for label, name in enumerate(given)}
        for label, name in enumerate(own):
            if name not in numbers:
                raise SourceError(
                    f"{where}: class {name!r} (label {label}) is not one of the "
                    f"{counted(len(given), 'class')} of {path}; {meant(name, given)}"
                )
        self._table = np.array([numbers[name] for name in own], np.int64)
        self._name = ""

    def map(self, sample: Sample) -> Sample:
        """Give a sample its new label, in the dtype that it has if that can hold it, else int64.

        Raises:
            BadValue: It has no label, or one that is no class.
        """
        self._name = self._name or label_field(sample)
        value: Any = sample.get(self._name)
        if not is_whole(value):
            raise BadValue(f"field {self._name!r} is not the number of a class")
        label = int(value)
        if not 0 <= label < len(self._table):
            there = f"there are {len(self._table):,} classes"
            if len(self._table) == 1:
                there = "there is one class, 0"
            raise BadValue(f"field {self._name!r} is {label}, and {there}")
        fits = int(self._table.max()) <= np.iinfo(value.dtype).max
        sample[self._name] = np.array(self._table[label], value.dtype if fits else np.int64)
        sample.fresh.add(self._name)
        return sample
