"""Made-up data, so that the examples need no download: points around three centres."""

from __future__ import annotations

import numpy as np


class Points:
    """A map-style dataset, as `torch.utils.data.DataLoader` takes it.

    Args:
        samples: how many there are.
        seed: another seed gives other points around the same centres.
    """

    def __init__(self, samples: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, 3, samples)
        self.points = rng.normal(self.labels[:, None], 0.5, (samples, 4)).astype(np.float32)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"x": self.points[index], "label": int(self.labels[index])}
