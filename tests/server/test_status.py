from __future__ import annotations

import json
import re

from loaderd.server import status


def test_a_picture_that_fits_is_whole() -> None:
    picture = {"state": "ready", "sessions": [{"session": 1}], "errors": []}
    assert json.loads(status.to_json(picture)) == picture


def test_a_picture_that_is_too_large_is_cut_where_it_is_longest_and_says_so() -> None:
    picture = {"state": "ready", "failed": False, "sessions": [{"session": k, "x": "y" * 400} for k in range(10_000)], "errors": ["e"]}
    text = status.to_json(picture)
    assert len(text.encode()) <= status.MAX_BODY
    shown = json.loads(text)
    assert shown["cut"] == ["sessions"]
    assert shown["errors"] == ["e"]
    assert len(shown["sessions"]) > 1000


def test_a_picture_without_a_list_to_cut_still_tells_the_state() -> None:
    text = status.to_json({"state": "ready", "failed": True, "streams": {"a": "x" * 2_000_000}})
    assert json.loads(text) == {"state": "ready", "failed": True, "cut": ["all"]}


def test_numbers_in_prometheus_format() -> None:
    text = status.prometheus({
        "up": ("gauge", "is it", 1.0),
        "made": ("counter", "how many", {status.label("stream", 'a"b\\c\n'): 3, status.label("stream", "d"): 1234567}),
        "none": ("gauge", "nothing", {}),
    })  # fmt: skip
    assert text.splitlines()[:3] == ["# HELP loaderd_up is it", "# TYPE loaderd_up gauge", "loaderd_up 1"]
    assert r'loaderd_made{stream="a\"b\\c\n"} 3' in text
    assert text.endswith("\n")
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) .*|loaderd_[a-z_]+(\{[a-z]+="(\\.|[^"\\])*"\})? [0-9.e+-]+', line), line


def test_large_numbers_keep_their_digits() -> None:
    assert "12207781888" in status.prometheus({"bytes": ("gauge", "x", 12207781888)})


def test_a_hundred_streams_are_a_short_line() -> None:
    names = [f"s{n:03d}" for n in range(100)]
    assert (
        status.stream_faults(dict.fromkeys(names, "no"))
        == "streams 's000', 's001', 's002', 's003', 's004', 's005', 's006', 's007' and 92 more: no"
    )
    assert status.stream_counts((name, 5) for name in names).endswith("s007 (5) and 92 more")
