"""What the fields of the samples of a check have in common, in a few numbers a field."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MOST_LABELS = 10_000  # different values of a field that are counted

Number = int | float | bool


@dataclass(slots=True)
class FieldTally:
    """Counts the values of scalars, and finds fields that have one value everywhere.

    Attributes:
        rows: Samples that were looked at.
        labels: By field of single whole numbers, how many samples have which.
        constant: By field of numbers, the one value of all its elements in all samples so far.
    """

    rows: int = 0
    labels: dict[str, Counter[int]] = field(default_factory=dict[str, Counter[int]])
    constant: dict[str, Number] = field(default_factory=dict[str, Number])
    _varies: set[str] = field(default_factory=set[str])

    def add(self, fields: Mapping[str, Any], rows: int) -> None:
        """The fields of some samples: arrays over the rows, or lists."""
        if not rows:
            return
        for name, values in fields.items():
            if not isinstance(values, np.ndarray):
                continue
            if values.ndim == 1 and values.dtype.kind in "iu":
                counts = self.labels.setdefault(name, Counter())
                if len(counts) < MOST_LABELS:
                    counts.update(values.tolist())
            if name not in self._varies:
                self._look(name, values)
        self.rows += rows

    def _look(self, name: str, values: np.ndarray) -> None:
        if values.dtype.kind in "biuf" and values.size:
            first: Number = values.reshape(-1)[0].item()
            if self.constant.setdefault(name, first) == first and (values == first).all():
                return
        self._varies.add(name)
        self.constant.pop(name, None)
