"""Several databases of one stream, as a config says them."""

from __future__ import annotations

import pytest

from loaderd.config.load import parse
from loaderd.config.parts import PartConfig
from loaderd.config.stream import StreamConfig
from loaderd_wire.errors import ConfigError


def read(text: str) -> StreamConfig:
    (stream,) = parse(f"[streams.a]\n{text}", "/c/run.toml", {"DATA": "/d"}, 7).streams
    return stream


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return str(caught.value).removeprefix("/c/run.toml: ")


def test_an_array_of_paths_and_patterns_is_several_parts() -> None:
    stream = read('lmdb = ["a.lmdb", "${DATA}/b/*.lmdb"]')
    assert stream.lmdb is None
    assert stream.parts == (PartConfig("/c/a.lmdb"), PartConfig("/d/b/*.lmdb"))
    assert stream.data_name == "/c/a.lmdb and 1 more"


def test_a_pattern_alone_is_several_and_a_path_alone_is_one() -> None:
    assert read('lmdb = "b/*.lmdb"').parts == (PartConfig("/c/b/*.lmdb"),)
    one = read('lmdb = "b.lmdb"')
    assert (one.lmdb, one.parts) == ("/c/b.lmdb", ())


def test_parts_have_words_of_their_own() -> None:
    stream = read(
        """parts = [
            {lmdb = "a.lmdb"},
            {lmdb = ["b", "c"], layout = "raw", dtype = "uint8", index_file = "keys.txt"},
            {lmdb = "d", layout = "m:Mine", layout_args = {k = 1}},
        ]"""
    )
    words = {"layout": "raw", "dtype": "uint8", "index_file": "/c/keys.txt"}
    assert stream.parts == (
        PartConfig("/c/a.lmdb"),
        PartConfig("/c/b", words),
        PartConfig("/c/c", words),
        PartConfig("/c/d", {"layout": "m:Mine", "layout_args": {"k": 1}}),
    )
    assert stream.has_user_code()
    assert StreamConfig.from_json(stream.to_json()) == stream


def test_tables_of_parts_may_stand_below_a_header_each() -> None:
    assert len(read('[[streams.a.parts]]\nlmdb = "a"\n[[streams.a.parts]]\nlmdb = "b"').parts) == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("lmdb = []", "streams.a.lmdb: [] names no database"),
        ("lmdb = 3", "streams.a.lmdb: 3 is not a path, nor an array of paths"),
        ('lmdb = ["a", 3]', "streams.a.lmdb[1]: 3 is not a path"),
        ('lmdb = ["a", "${NONE}/b"]', 'streams.a.lmdb[1]: "${NONE}/b": environment variable NONE is not set'),
        ("parts = []", "streams.a.parts: [] names no database"),
        ('parts = [{layout = "raw"}]', "streams.a.parts[0].lmdb: is missing: the database, or several"),
        ('parts = [{lmdb = "a", layuot = "raw"}]', "streams.a.parts[0].layuot: \"raw\": unknown key; did you mean 'layout'?"),
        ('lmdb = "a"\nparts = [{lmdb = "b"}]', "streams.a: has both lmdb and parts: leave one out"),
        ('dataset = "m:D"\nparts = [{lmdb = "b"}]', "streams.a: has both parts and dataset: leave one out"),
        ('[streams.a.parts]\nlmdb = "b"', "streams.a.parts: {'lmdb': 'b'} is not an array; write its header in double brackets"),
    ],
)  # fmt: skip
def test_what_parts_cannot_be_is_told_with_its_place(text: str, told: str) -> None:
    assert told in refusal(text)
