"""How a worker opens the streams that it is asked for."""

from __future__ import annotations

import random

import numpy as np

from loaderd.data.sources.source import Source
from loaderd.worker.streams import OpenStreams
from loaderd_testing.sample_builders import dataset_plan


def test_what_a_dataset_shuffles_while_it_is_built_is_the_same_in_every_worker() -> None:
    built: list[list[int]] = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        stream = OpenStreams([dataset_plan("Shuffled")], 0, 1).get("t")
        assert isinstance(stream.source, Source)
        built.append([stream.source.read(index)["0"].item() for index in range(200)])
        stream.source.close()
    assert built[0] == built[1]
