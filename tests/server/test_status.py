from __future__ import annotations

from loaderd.server import status


def test_a_hundred_streams_are_a_short_line() -> None:
    names = [f"s{n:03d}" for n in range(100)]
    assert (
        status.stream_faults(dict.fromkeys(names, "no"))
        == "streams 's000', 's001', 's002', 's003', 's004', 's005', 's006', 's007' and 92 more: no"
    )
    assert status.stream_counts((name, 5) for name in names).endswith("s007 (5) and 92 more")
