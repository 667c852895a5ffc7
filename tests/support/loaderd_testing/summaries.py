"""Summaries of made-up samples, as a scan gets them."""

from __future__ import annotations

from typing import Any

import numpy as np

from loaderd.data.pipeline.sample_summary import Surveyor, mark
from loaderd.data.sample import Sample


def rows_of(samples: np.ndarray) -> dict[str, Any]:
    """Summaries of samples with one field of pixels by channel, as a batch holds them."""
    spec = {
        "name": "x",
        "dtype": samples.dtype.str,
        "shape": samples.shape[1:],
        "kind": "array",
        "image": False,
    }
    channels = samples.shape[2]
    surveyor = Surveyor(
        {"specs": [{**spec, "shape": (channels, samples.shape[1], 1)}], "collated": False}, "here"
    )
    made = []
    for sample in samples:
        turned = Sample({"x": np.ascontiguousarray(sample.T[:, :, None])})
        turned.planar.add("x")
        made.append(surveyor.summary(turned, mark(turned)))
    empty: dict[str, Any] = {"hash": np.zeros(0, np.uint64)}
    names = made[0] if made else empty
    return {
        name: [row[name] for row in made]
        if isinstance(value, str)
        else np.stack([row[name] for row in made])
        if made
        else value
        for name, value in names.items()
    }
