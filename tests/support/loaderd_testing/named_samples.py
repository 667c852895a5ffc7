"""A dataset of names and labels, as a selection sees it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loaderd.data.sample import Sample


class Named:
    """What `select` asks of a source."""

    identity, state = "named", ""

    def __init__(self, names: list[str], labels: Sequence[object] = ()) -> None:
        self.names, self.labels = names, labels or [0] * len(names)
        self.total, self.keys, self.user_code = len(names), "stored", False
        self.targets: list[int] | None = None

    def key(self, index: int) -> str:
        return self.names[index]

    def read(self, index: int) -> Sample:
        label = self.labels[index]
        if isinstance(label, Exception):
            raise label
        value = np.asarray(label) if isinstance(label, int) else label
        return Sample({"image": np.zeros((2, 2), np.uint8), "label": value})
