"""The JSON schema says what the parser does: both come from one table, and here they are held
against each other.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaderd.config import schema
from loaderd.config.load import parse, tomllib
from loaderd.config.table import Key, Table
from loaderd.config.transforms import OPS
from loaderd_wire.errors import ConfigError

DOCUMENT = schema.document()
CHECK = jsonschema.Draft202012Validator(DOCUMENT)


def parses(text: str) -> bool:
    try:
        parse(text, "/x.toml", {"HOME": "/home/ada", "DATA": "/data"}, 0)
    except ConfigError:
        return False
    return True


def fits(text: str) -> bool:
    return CHECK.is_valid(tomllib.loads(text))


def test_the_schema_is_a_schema_and_plain_json() -> None:
    CHECK.check_schema(DOCUMENT)
    assert json.loads(json.dumps(DOCUMENT)) == DOCUMENT


def with_stream(line: str) -> str:
    return f'[streams.train]\nlmdb = "x"\n{line}\n'


GOOD = [
    "",
    'split = "0%:95%"',
    'split = "12.5%:"',
    'split = "100:200"',
    'split_by = "stored"',
    'split_by = "key"\ngroup = "^([^_]+)_"',
    'split_by = "key"\ngroup = "(a)"\nsplit = " 1.5% : "',
    'keys = "keys.txt"\nrepeat = 3',
    'weights = "w.npy"\nshuffle = true',
    'weights = "balanced"',
    'classes = "names.txt"\ncollate = "a:b"',
    "batch_size = 8",
    "shuffle = true",
    "shuffle = {block = 4096}",
    "seed = 1",
    "drop_last = true",
    'tail = "short"',
    'tail = "short"\nempty = "deliver"',
    'tail = "drop"\ndrop_last = true',
    'tail = "repeat"\ndrop_last = false',
    "pad = {ids = 0}",
    'pad = {ids = {value = 0.5, multiple = 8, mask = "m"}}',
    'ragged = ["boxes"]\nragged_as = "flat"',
    'on_error = "skip"',
    'on_error = "skip"\nempty = "deliver"',
    "max_errors = 10",
    "max_errors = 0.1",
    'nonfinite = "error"',
    'collate = "a.b:c"',
    'layout = "loaderd"',
    'layout = "a.b:C"\nlayout_args = {x = [1, {y = "z"}]}',
    'layout = "raw"\nkey_format = "{i:08d}"\ncount = 5\ndtype = "float32"\nshape = [2, -1]',
    'key_format = {a = "a_{i}", b = "u32be"}\ndtype = {a = "uint8", b = "text"}\nshape = {a = [1]}',
    'fields = ["image"]\nindex_file = "keys.txt"\nallow_pickle = true',
    'decode = false\nmode = "gray"',
    'transforms = [{op = "decode"}, {op = "resize", size = [3, 4]}, {op = "normalize", mean = '
    '[0.5], std = 1}, {call = "a:b", args = {}}]',
    'transforms = [{op = "random_resized_crop", size = 8, scale = [0.5, 1], field = "image"}, {op '
    '= "hflip", p = 1}, {op = "to_chw"}]',
    '[streams.val]\ndataset = "a:B"\ndataset_args = {root = "${DATA}"}',
    '[daemon]\nsocket = "~/x"\nmemory = "1.5GiB"\nmetrics = "[::1]:9"\nallow_uids = [5, '
    '"unmapped"]\ndrain_s = 0\nexit_when_idle_s = 0.5\nquarantine = "q"',
    "[workers]\nnum_workers = 4\nsample_timeout_s = 1\nworker_memory = 1000\nstart_method = "
    '"spawn"\ninit = "a:b"',
    '[workers]\nnum_workers = "auto"',
]

BAD = [
    "shufle = true",
    'batch_size = "8"',
    "batch_size = 0",
    "batch_size = 2000000",
    "seed = -1",
    "drop_last = 1",
    'tail = "even"',
    "pad = 1",
    'pad = {ids = "0"}',
    "pad = {ids = {multiple = 8}}",
    "pad = {ids = {value = 0, multiple = 0}}",
    "pad = {ids = {value = 0, more = 1}}",
    'pad = {ids = 0}\ncollate = "a:b"',
    'ragged = "boxes"',
    'ragged_as = "flat"',
    'tail = "short"\ndrop_last = true',
    'tail = "drop"\ndrop_last = false',
    'on_error = "retry"',
    'empty = "deliver"',
    'on_error = "replace"\nempty = "skip"',
    'on_error = "skip"\nempty = "keep"',
    "max_errors = 0",
    "max_errors = 1.5",
    'split = "half"',
    'split = "0:1:2"',
    "shuffle = {block = 0}",
    "shuffle = {}",
    "shuffle = {block = 4, blok = 4}",
    'collate = "pad"',
    'layout = "a b"',
    "layout_args = {a = 1}",
    "dataset_args = {a = 1}",
    'dataset = "a:B"',
    "allow_pickle = 1",
    'key_format = "{j}"',
    "key_format = {}",
    'key_format = "image"',
    "count = -1",
    'dtype = "object"',
    'dtype = {x = "float3"}',
    "shape = [1.5]",
    'fields = "image"',
    'index_file = ""',
    'fields = ["a"]\nlayout = "a.b:C"',
    "weights = 1",
    'weights = "balanced"\nshuffle = {block = 2}',
    "keys = 1",
    "repeat = 0",
    "classes = 1",
    'split_by = "key"',
    'group = "(a)"',
    'split_by = "key"\ngroup = "a"',
    'split_by = "random"\ngroup = "(a)"',
    'split_by = "key"\ngroup = "(a)"\nsplit = "0:5"',
    "transforms = 1",
    "transforms = [1]",
    "transforms = [{}]",
    'transforms = [{op = "warp"}]',
    'transforms = [{op = "resize"}]',
    'transforms = [{op = "resize", size = 0}]',
    'transforms = [{op = "hflip", p = 2}]',
    'transforms = [{op = "hflip", q = 1}]',
    'transforms = [{op = "hflip", call = "a:b"}]',
    'transforms = [{call = "a"}]',
    'transforms = [{call = "a:b", args = 1}]',
    "[streams.val]",
    '[streams.val]\nlmdb = ""',
    '[streams."a b"]\nlmdb = "x"',
    '[daemon]\nmemory = "lots"',
    "[daemon]\nmemory = 0",
    '[daemon]\nmetrics = "9470"',
    '[daemon]\nallow_uids = ["root"]',
    "[daemon]\nallow_uids = 5",
    "[daemon]\ndrain_s = -1",
    '[daemon]\nengine = "ray"',
    "[daemon]\nport = 1",
    "[workers]\nnum_workers = 0",
    '[workers]\nnum_workers = "many"',
    "[workers]\nsample_timeout_s = 0",
    '[workers]\nstart_method = "fork"',
    '[workers]\ninit = "f"',
    "[[workers]]",
    "[engine]",
]


@pytest.mark.parametrize("line", GOOD)
def test_what_the_parser_takes_fits_the_schema(line: str) -> None:
    assert parses(with_stream(line))
    assert fits(with_stream(line))


@pytest.mark.parametrize("line", BAD)
def test_what_the_parser_refuses_does_not_fit_the_schema(line: str) -> None:
    assert not parses(with_stream(line))
    assert not fits(with_stream(line))


@pytest.mark.parametrize("text", ["", "[streams]", "streams = 1"])
def test_a_config_without_streams_does_not_fit_the_schema(text: str) -> None:
    assert not parses(text)
    assert not fits(text)


VALUES = st.sampled_from(
    [
        "true",
        "1",
        "0",
        "-1",
        "0.5",
        "2.5",
        '"x"',
        '"a:b"',
        '"0%:5%"',
        '"64MiB"',
        '"raise"',
        '"stack"',
        "[]",
        "{}",
        "{block = 2}",
        '[{op = "hflip"}]',
        '["unmapped"]',
        '"key"',
        '"skip"',
        '"short"',
        "{block = 1}",
        '[{lmdb = "b"}]',
    ]
)
SOURCE = '[streams.block]\nlmdb = "b"\n'  # what a mixture {block = 2} is of


def lines(table: Table) -> st.SearchStrategy[str]:
    names = st.sampled_from([*table.keys, "unknown"])
    return st.dictionaries(names, VALUES, max_size=3).map(
        lambda given: "".join(f"{name} = {value}\n" for name, value in given.items())
    )


@settings(max_examples=400, deadline=None)
@given(lines(schema.DAEMON), lines(schema.WORKERS), lines(schema.STREAM))
def test_parser_and_schema_agree_on_whatever_is_written_with_the_known_words(
    daemon: str, workers: str, stream: str
) -> None:
    text = f"[daemon]\n{daemon}[workers]\n{workers}{SOURCE}[streams.s]\n{stream}"
    assert parses(text) == fits(text), text


@pytest.mark.parametrize(
    ("stream", "good"),
    [
        ("parts = []", False),
        ("of = {block = 2}", True),
        ('of = {block = 2}\nsplit = "0%:5%"', False),
        ('of = {block = 2}\ntransforms = [{op = "hflip"}]', False),
        ('of = {block = 2}\ntransforms = [{call = "a:b"}]', False),
        ('of = {block = 2}\nstop = "all"\nepoch_steps = 5', False),
        ('of = {block = 2}\nstop = "all"\nepoch_steps = 0', True),
        ('lmdb = "x"\nmax_tokens = 0', True),
        ('lmdb = "x"\nmax_tokens = 8', False),
        ('lmdb = "x"\nbucket_by = "n"\nmax_tokens = 8', True),
        ('lmdb = "x"\nbucket_by = "n"\nshuffle = {block = 8}', False),
        ('lmdb = "x"\nbucket_by = "n"\nweights = "w.npy"', False),
        ('lmdb = "x"\nbucket_by = "n"\nrepeat = 2', False),
        ('lmdb = "x"\nbucket_by = "n"\nepoch_steps = 2', False),
        ('lmdb = "x"\nbucket_by = "n"\ntail = "short"', False),
        ('lmdb = "x"\nbucket_by = "n"\nmax_errors = 0.5', False),
        ('lmdb = "x"\nlayout = "raw"\nlayout_args = {a = 1}', False),
        ('lmdb = "x"\nlayout = "a:b"\nlayout_args = {a = 1}', True),
        ('parts = [{lmdb = "b"}]\nclasses = "c.txt"\ncollate = "a:b"', True),
        ('dataset = "a:b"\nclasses = "c.txt"\ncollate = "a:b"', False),
    ],
)
def test_parser_and_schema_agree_on_what_goes_together(stream: str, good: bool) -> None:
    text = f"{SOURCE}[streams.s]\n{stream}\n"
    assert (parses(text), fits(text)) == (good, good)


def tables(table: Table, shape: dict[str, Any]) -> list[tuple[str, Key, dict[str, Any]]]:
    return [(name, key, shape["properties"][name]) for name, key in table.keys.items()]


@pytest.mark.parametrize("name", ["DAEMON", "WORKERS", "STREAM"])
def test_every_key_has_its_default_and_a_text_for_the_editor(name: str) -> None:
    table = getattr(schema, name)
    for word, key, shape in tables(table, table.schema()):
        assert shape["description"], word
        if key.default is not None:
            assert shape["default"] == (
                list(key.default) if isinstance(key.default, tuple) else key.default
            ), word


def test_every_built_in_is_offered_to_the_editor() -> None:
    items = DOCUMENT["properties"]["streams"]["additionalProperties"]["properties"]["transforms"][
        "items"
    ]["oneOf"]
    assert {
        item["properties"]["op"]["const"] for item in items if "op" in item["properties"]
    } == set(OPS)
