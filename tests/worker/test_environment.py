from __future__ import annotations

import pytest

from loaderd.config.stream import StreamConfig, TransformConfig
from loaderd.engine.launch import environment, only_copies

STORED = StreamConfig("stored", lmdb="/data")


def test_workers_that_only_copy_do_so_past_the_caches() -> None:
    assert only_copies([STORED], "")
    assert "non_temporal" in environment({}, copies=True)["GLIBC_TUNABLES"]
    assert "GLIBC_TUNABLES" not in environment({})


def test_what_the_user_has_tuned_is_left_alone() -> None:
    assert (
        environment({"GLIBC_TUNABLES": "glibc.malloc.check=1"}, copies=True)["GLIBC_TUNABLES"]
        == "glibc.malloc.check=1"
    )


@pytest.mark.parametrize(
    "other",
    [
        StreamConfig("d", dataset="a:B"),
        StreamConfig("l", lmdb="/data", layout="a:B"),
        StreamConfig("c", lmdb="/data", collate="a:b"),
        StreamConfig("t", lmdb="/data", transforms=(TransformConfig("hflip", None),)),
        StreamConfig("u", lmdb="/data", transforms=(TransformConfig(None, "a:b"),)),
    ],
)
def test_a_stream_that_does_more_than_copy_keeps_the_usual_copies_for_all(
    other: StreamConfig,
) -> None:
    assert not only_copies([STORED, other], "")
    assert not only_copies([STORED], "a:b")
