"""Whether a node is refused, and what it is told."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from loaderd.data.selection.selection import SampleSelection
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
        selection=SampleSelection(listed="/there/abc.int64", keys_hash="b"),
        tail_row_bytes=72,
        code=(Module("aug.py", 1, 2, "digest"), Module("there.py", 1, 1, "other")),
        makers=json.dumps({name: text for name, text in MAKERS.items() if name != "torch"}),
    )
    here = replace(HERE, selection=SampleSelection(listed="/here/abc.int64", keys_hash="a"))
    assert difference(here, there) == ""


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"total": 11}, "the number of samples would be others: 11 there, 10 here"),
        ({"identity": "x"}, "the data would be others: 'x' there, 'loaderd:10:ab' here"),
        ({"classes": ()}, "the class names would be others: () there, ('cat',) here"),
        (
            {"selection": SampleSelection(listed="/cache/x.int64")},
            "keys, weights or bucket_by select other samples",
        ),
        (
            {"selection": SampleSelection(ends="/cache/x.int64")},
            "keys, weights or bucket_by select other samples",
        ),
        (
            {"selection": SampleSelection(ranked="/cache/x.int64")},
            "keys, weights or bucket_by select other samples",
        ),
        (
            {"selection": SampleSelection(class_counts=(3, 6))},
            "keys, weights or bucket_by select other samples",
        ),
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


def test_a_source_of_a_mixture_that_has_other_samples_is_named() -> None:
    other = replace(HERE, stream="b", makers="", selection=SampleSelection(listed="/c/x.int64"))
    here, there = (
        replace(HERE, sources=(replace(HERE, makers=""), each))
        for each in (replace(other, selection=SampleSelection(listed="/c/y.int64")), other)
    )
    assert difference(here, here) == ""
    assert difference(here, there).startswith(
        "source 'b': keys, weights or bucket_by select other samples"
    )
