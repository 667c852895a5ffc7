"""How large the stored pictures of a stream are, by their headers."""

from __future__ import annotations

import io
from itertools import islice

import numpy as np
from PIL import Image

from loaderd.config.stream import StreamConfig
from loaderd.data.errors import ANYTHING
from loaderd.data.sources.source import Source

LOOKED_AT = 32  # samples


def stored_sizes(plan: StreamConfig) -> tuple[tuple[int, int], ...]:
    """(height, width) of the first stored picture of some samples, spread over the database.

    None for a stream that runs code of users: that belongs into a worker.
    """
    if plan.lmdb is None or plan.has_user_code():
        return ()
    found: list[tuple[int, int]] = []
    try:
        with Source(plan) as source:
            places = np.unique(np.linspace(0, source.total - 1, LOOKED_AT).astype(int))
            for index in places.tolist():
                try:
                    sample = source.read(index)
                    for name in islice((each for each in sample if each in sample.encoded), 1):
                        with Image.open(io.BytesIO(sample[name])) as image:
                            found.append((image.height, image.width))
                except ANYTHING:  # a bad sample, which has been named
                    continue
    except ANYTHING:
        return ()
    return tuple(found)
