"""Whether a node is refused, and what it is told."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from loaderd.engine.messages import StreamInfo
from loaderd.system.modules import Module
from loaderd.worker.remote.comparison import difference

MAKERS = {"loaderd": "1 (ab)", "numpy": "2.1.0", "torch": "2.13", "samples": "aa"}
HERE = StreamInfo(
    stream="train",
    total=10,
    samples=9,
    identity="loaderd:10:ab",
    state="of this host",
    layout="loaderd",
    keys="index",
    classes=("cat",),
    specs=(),
    sample_specs=(),
    form="dict",
    collated=False,
    tail_row_bytes=64,
    body_bytes=0,
    jpeg_extension="",
    warnings=(),
    code=(Module("aug.py", 1, 1, "digest"), Module("here.py", 1, 1, "digest")),
    makers=json.dumps(MAKERS),
)


def test_a_node_is_not_refused_for_what_may_differ() -> None:
    there = replace(
        HERE,
        state="of that host",
        tail_row_bytes=72,
        code=(Module("aug.py", 1, 2, "digest"), Module("there.py", 1, 1, "other")),
        makers=json.dumps({name: text for name, text in MAKERS.items() if name != "torch"}),
    )
    assert difference(HERE, there) == ""


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"total": 11}, "the number of samples would be others: 11 there, 10 here"),
        ({"identity": "x"}, "the data would be others: 'x' there, 'loaderd:10:ab' here"),
        ({"classes": ()}, "the class names would be others: () there, ('cat',) here"),
        ({"code": (Module("aug.py", 1, 1, "x"),)}, "aug.py is another file there than here"),
        (
            {"makers": json.dumps(MAKERS | {"numpy": "2.2.0"})},
            "numpy is 2.2.0 there, 2.1.0 here: install the same",
        ),
        ({"makers": json.dumps(MAKERS | {"samples": "bb"})}, "the first samples would be others"),
    ],
)
def test_what_differs_is_named(change: dict[str, Any], text: str) -> None:
    assert difference(HERE, replace(HERE, **change)).startswith(text)
