"""What a scan adds up equals numpy on all of it at once, in whatever parts it comes, and survives
being written down.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from loaderd.cli.check.scan_stats import ScanStats, Sizes
from loaderd.data.pipeline.sample_summary import COUNT, HIGH, LOW, MEAN, ODD, SQUARES
from loaderd_testing.summaries import rows_of


@pytest.mark.parametrize("batch", [1, 3, 50])
def test_numbers_added_in_parts_are_numpys_of_the_whole(batch: int) -> None:
    samples = np.random.default_rng(0).normal(1000, 1, (50, 4, 2)).astype(np.float32)
    tally = ScanStats(1)
    for first in range(0, 50, batch):
        tally.add(rows_of(samples[first : first + batch]))
    assert tally.samples == 50
    for channel in range(2):
        values = samples[..., channel].astype(np.float64)
        numbers = tally.numbers[channel]
        assert numbers[[COUNT, LOW, HIGH, ODD]].tolist() == [200, values.min(), values.max(), 0]
        assert numbers[MEAN] == pytest.approx(values.mean(), rel=1e-12)
        assert np.sqrt(numbers[SQUARES] / numbers[COUNT]) == pytest.approx(values.std(), rel=1e-9)


def test_a_tally_that_was_written_down_goes_on_as_if_it_had_not_been() -> None:
    samples = np.random.default_rng(1).random((40, 4, 2), np.float32)
    through, whole = ScanStats(1), ScanStats(1)
    for first in range(0, 40, 10):
        part: dict[str, Any] = rows_of(samples[first : first + 10])
        whole.add(part)
        through.add(part)
        through = ScanStats.from_dict(json.loads(json.dumps(through.to_dict())))
    assert through.to_dict() == whole.to_dict()


def test_values_that_are_not_finite_count_samples_and_values() -> None:
    samples = np.ones((6, 4, 1), np.float32)
    samples[2, :3] = np.nan
    samples[4, 1] = np.inf
    tally = ScanStats(1)
    tally.add(rows_of(samples))
    assert tally.odd_samples == [2]
    assert tally.numbers[0, [COUNT, ODD]].tolist() == [20, 4]


def test_no_sample_at_all_changes_nothing() -> None:
    tally = ScanStats(1)
    tally.add(rows_of(np.zeros((0, 4, 1), np.float32)))
    assert tally.to_dict() == ScanStats(1).to_dict()


def test_the_median_of_sizes_is_right_to_one_part_in_64_and_the_greatest_exact() -> None:
    sizes = np.random.default_rng(2).lognormal(11, 1.5, 10_001).astype(np.int64)
    found = Sizes()
    for part in np.array_split(sizes, 7):
        found.add(part)
    assert found.most == sizes.max()
    assert found.median == pytest.approx(np.median(sizes), rel=1 / 64)
    assert len(found.counts) < 64 * 20
    small = Sizes()
    small.add(np.array([0, 5, 100, 3]))
    assert small.median == 3


def test_shapes_are_counted_by_field_frequent_ones_first() -> None:
    tally = ScanStats(2)
    tally.shapes = {"4,4;3": 2, "4,4;": 1, "5,4;3": 5}
    assert tally.shapes_of(0) == {"5x4": 5, "4x4": 3}
    assert tally.shapes_of(1) == {"3": 7, "scalar": 1}
