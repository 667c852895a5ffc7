"""The sources of a mixture, seen as one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loaderd.config.stream import StreamConfig
from loaderd.data.sample import Sample
from loaderd.data.sources.mixture import MixtureSource
from loaderd.data.sources.source import Source
from loaderd_testing.sample_builders import write_own


def test_samples_are_read_and_named_as_their_sources_have_them(tmp_path: Path) -> None:
    plans = tuple(
        StreamConfig(name, lmdb=write_own(tmp_path / name, [Sample({"x": np.full(2, n)}) for n in numbers]))
        for name, numbers in (("a", range(3)), ("b", range(10, 12)))
    )  # fmt: skip
    with Source(plans[0]) as first, Source(plans[1]) as second:
        mixed = MixtureSource(StreamConfig("mix", sources=plans), [first, second])
        assert [int(mixed.read(index)["x"][0]) for index in range(5)] == [0, 1, 2, 10, 11]
        assert [mixed.label(index) for index in (2, 3)] == ["a:2", "b:0"]
        for index in (-1, 5):
            with pytest.raises(IndexError, match=f"sample {index} of 5"):
                mixed.read(index)
