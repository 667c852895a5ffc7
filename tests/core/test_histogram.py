from __future__ import annotations

import pytest

from loaderd.core.histogram import BOUNDS_S, Histogram


def test_a_duration_counts_in_the_class_that_it_ends() -> None:
    made = Histogram()
    for seconds in (0.0, 1e-4, 1.1e-4, 30.0, 31.0):
        made.add(seconds)
    made.add(0.02, 10)
    found = made.durations()
    assert dict(zip((*BOUNDS_S, "more"), found.counts, strict=True)) == {
        **dict.fromkeys(BOUNDS_S, 0), 1e-4: 2, 3e-4: 1, 0.03: 10, 30.0: 1, "more": 1,
    }  # fmt: skip
    assert found.sum_s == pytest.approx(61.2 + 2.1e-4)
