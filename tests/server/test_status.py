from __future__ import annotations

import re

from loaderd.server import status


def test_numbers_in_prometheus_format() -> None:
    text = status.prometheus({
        "up": ("gauge", "is it", 1.0),
        "made": ("counter", "how many", {status.label("stream", 'a"b\\c\n'): 3, status.label("stream", "d"): 1234567}),
        "none": ("gauge", "nothing", {}),
    })  # fmt: skip
    assert text.splitlines()[:3] == [
        "# HELP loaderd_up is it",
        "# TYPE loaderd_up gauge",
        "loaderd_up 1",
    ]
    assert r'loaderd_made{stream="a\"b\\c\n"} 3' in text
    assert text.endswith("\n")
    for line in text.splitlines():
        assert re.fullmatch(
            r'# (HELP|TYPE) .*|loaderd_[a-z_]+(\{[a-z]+="(\\.|[^"\\])*"\})? [0-9.e+-]+', line
        ), line


def test_large_numbers_keep_their_digits() -> None:
    assert "12207781888" in status.prometheus({"bytes": ("gauge", "x", 12207781888)})


def test_a_hundred_streams_are_a_short_line() -> None:
    names = [f"s{n:03d}" for n in range(100)]
    assert (
        status.stream_faults(dict.fromkeys(names, "no"))
        == "streams 's000', 's001', 's002', 's003', 's004', 's005', 's006', 's007' and 92 more: no"
    )
    assert status.stream_counts((name, 5) for name in names).endswith("s007 (5) and 92 more")
