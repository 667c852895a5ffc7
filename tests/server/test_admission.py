"""What a client may have, and by which facts a stream is known again."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from loaderd.config.parts import PartConfig
from loaderd.config.staging import StageConfig
from loaderd.config.stream import StreamConfig, TransformConfig
from loaderd.data.selection.selection import SampleSelection
from loaderd.engine.messages import StreamInfo
from loaderd.server.admission import (
    MOST_CODE,
    OpenedStream,
    admit,
    check_known,
    content_facts,
    order_facts,
    sized,
)
from loaderd.system.modules import Module
from loaderd_wire.errors import ConfigError, RefusedError, StreamChangedError
from loaderd_wire.messages import OLDEST, PROTOCOL, Hello
from loaderd_wire.slots import FieldSpec

SPECS = (FieldSpec("x", "|u1", (10,)), FieldSpec("y", "<i8", ()))
PLAN = StreamConfig("train", lmdb="/data/train.lmdb", layout="mine:Layout")
FACTS = StreamInfo(
    stream="train", total=100, samples=80, identity="the data", state="", layout="mine:Layout", keys="index", classes=(), specs=SPECS,
    sample_specs=SPECS, form="dict", collated=False, tail_row_bytes=0, body_bytes=0, jpeg_extension="not used", warnings=(),
)  # fmt: skip

# Of each setting of a stream: another value, and the facts that differ with it.
SETTINGS: dict[str, tuple[Any, set[str]]] = {
    "name": ("other", set()),
    "lmdb": ("/moved/train.lmdb", set()),
    "dataset": ("mine:Data", {"layout"}),
    "of": ({"a": 1}, set()),  # without sources
    "stop": ("all", set()),
    "dataset_args": ({"root": "/data"}, set()),  # without a dataset
    "layout": ("mine:Other", set()),  # the one that was found is a fact
    "layout_args": ({"scale": 2}, {"layout"}),
    "key_format": ("{i}", {"layout"}),
    "count": (5, set()),  # the number of samples is a fact
    "dtype": ("float32", {"layout"}),
    "shape": ((2, 3), {"layout"}),
    "fields": (("image",), {"layout"}),
    "index_file": ("/data/keys.txt", set()),  # its keys and labels are in the data's identity
    "allow_pickle": (True, set()),
    "decode": (False, {"decode"}),
    "mode": ("gray", {"decode"}),
    "exif": (True, {"decode"}),
    "max_pixels": (1000, set()),  # a sample is bad, or as it is
    "views": (2, {"views"}),
    "split": ("0%:50%", {"split"}),
    "split_by": ("stored", {"split_by"}),
    "group": ("^(.)", {"group"}),
    "keys": ("/data/train.txt", set()),  # what it holds is a fact
    "weights": ("balanced", {"weights"}),
    "repeat": (3, {"repeat"}),
    "classes": ("/data/val.lmdb", {"classes"}),
    "batch_size": (7, set()),
    "shuffle": (1, {"shuffle"}),
    "seed": (3, set()),  # that of the session counts
    "drop_last": (True, set()),
    "tail": ("short", set()),
    # how many they are is a fact of `admit`, with the session's ranks and batches
    "epoch_steps": (5, {"epoch_steps"}),
    "on_error": ("skip", {"on_error"}),
    "empty": ("deliver", {"empty"}),
    "max_errors": (5.0, set()),
    "nonfinite": ("error", {"nonfinite"}),
    "collate": ("mine:collate", {"collate"}),
    "pad": ({"ids": {"value": 0, "multiple": 1, "mask": ""}}, {"pad"}),
    "ragged": (("boxes",), {"ragged"}),
    "ragged_as": ("flat", set()),  # without ragged
    "parts": ((PartConfig("/data/a", {"layout": "raw"}),), {"layout"}),
    "bucket_by": (None, set()),  # see below
    "max_tokens": (5, {"max_tokens"}),
    "share": (True, set()),  # nobody's bytes change
    "share_window": (5, set()),
    "transforms": ((TransformConfig("hflip", None, {"p": 0.5}),), {"transforms"}),
    "survey": ({}, set()),
    "sources": ((), set()),
    "stage": (StageConfig("/local", 0, 0.0, "us"), set()),
    "copies": ({"/data/a.lmdb": "/local/a.mdb"}, set()),
}

HELLO = Hello(PROTOCOL, "train", None, None, None, 0, 1, 4, None, 0, {}, {}, "")


def facts(
    stream: OpenedStream, seed: int = 0, names: tuple[str, ...] | None = None
) -> dict[str, str]:
    return order_facts(stream, seed) | content_facts(stream, names)


def differing(one: dict[str, str], other: dict[str, str]) -> set[str]:
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


def test_every_setting_of_a_stream_is_in_the_table() -> None:
    assert set(SETTINGS) == {field.name for field in fields(StreamConfig)}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_makes_other_batches_is_a_fact(name: str) -> None:
    value, expected = SETTINGS[name]
    changed = replace(PLAN, **{name: value})
    assert (
        differing(facts(OpenedStream(PLAN, FACTS)), facts(OpenedStream(changed, FACTS))) == expected
    )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("identity", "other data", {"data"}),
        ("samples", 90, {"samples"}),
        ("jpeg_extension", "crop 1", {"jpeg_extension"}),
        ("layout", "loaderd", {"layout"}),
        ("state", "touched", set()),
        ("values", "some", {"values"}),
        ("selection", SampleSelection(listed="/a", ends="/b"), set()),
        ("selection", SampleSelection(keys_hash="a", weights_hash="b"), {"keys", "weights"}),
        ("code", (Module("mine.py", 1, 2, "abc"),), {"code:mine.py"}),
        ("total", 101, set()),
    ],
)
def test_what_was_found_when_the_stream_was_opened_is_a_fact(
    name: str, value: Any, expected: set[str]
) -> None:
    assert (
        differing(
            facts(OpenedStream(PLAN, FACTS)),
            facts(OpenedStream(PLAN, replace(FACTS, **{name: value}))),
        )
        == expected
    )


def test_a_sessions_seed_and_fields_are_facts() -> None:
    stream = OpenedStream(PLAN, FACTS)
    assert differing(facts(stream), facts(stream, seed=1)) == {"seed"}
    assert differing(facts(stream), facts(stream, names=("x",))) == {"fields"}


def test_a_client_of_another_protocol_is_refused_with_both_numbers_and_what_to_do() -> None:
    check_known(HELLO, ["train"], "")
    check_known(replace(HELLO, protocol=OLDEST), ["train"], "")
    with pytest.raises(RefusedError):
        check_known(replace(HELLO, protocol=OLDEST - 1), ["train"], "")
    with pytest.raises(
        RefusedError,
        match=f"the client uses protocol {PROTOCOL + 1}, this daemon {PROTOCOL}: install the same version",
    ):
        check_known(replace(HELLO, protocol=PROTOCOL + 1), ["train"], "")


def test_a_trainer_in_the_middle_is_not_served_replayed_batches_nor_the_reverse() -> None:
    stream = OpenedStream(PLAN, FACTS)
    true, replayed = admit(HELLO, stream, 1), admit(HELLO, stream, 1, replay=True)
    for began, replay in ((true, True), (replayed, False)):
        back = replace(HELLO, order=began.order, content=began.content)
        admit(back, stream, 2, replay=not replay)
        with pytest.raises(StreamChangedError, match="replay was"):
            admit(back, stream, 2, replay=replay)


def test_the_seed_is_the_sessions_own_where_it_has_one() -> None:
    stream = OpenedStream(replace(PLAN, seed=3), FACTS)
    assert admit(HELLO, stream, 1).seed == 3
    assert admit(replace(HELLO, seed=5), stream, 1).seed == 5


def test_replayed_batches_are_shared_with_nobody() -> None:
    stream, asking = OpenedStream(PLAN, FACTS), replace(HELLO, shared="yes")
    assert admit(asking, stream, 1).share_window == 8
    assert admit(asking, stream, 1, replay=True).share_window == 0


def test_skip_on_several_ranks_is_refused_with_both_ways_out() -> None:
    with pytest.raises(
        ConfigError,
        match=r'on_error = "skip".*world_size = 2.*on_error = "replace".*empty = "deliver"',
    ):
        admit(
            replace(HELLO, rank=1, world_size=2),
            OpenedStream(replace(PLAN, on_error="skip"), FACTS),
            1,
        )


@pytest.mark.parametrize(
    ("plan", "world_size"),
    [
        ({"on_error": "skip"}, 1),
        ({"on_error": "skip", "empty": "deliver"}, 2),
        ({"on_error": "replace"}, 2),
        ({"on_error": "raise"}, 2),
    ],
)
def test_what_keeps_the_ranks_in_step_is_admitted(plan: dict[str, Any], world_size: int) -> None:
    admitted = admit(
        replace(HELLO, world_size=world_size), OpenedStream(replace(PLAN, **plan), FACTS), 1
    )
    assert admitted.shape.world_size == world_size


@pytest.mark.parametrize(
    ("tail", "drop_last", "asked", "expected"),
    [
        ("repeat", False, None, (False, False)),
        ("repeat", False, True, (True, False)),
        ("short", False, None, (False, True)),
        ("short", False, False, (False, True)),
        ("short", False, True, (True, False)),
        ("drop", True, None, (True, False)),
        ("drop", True, False, (False, False)),
    ],
)
def test_what_becomes_of_the_tail_is_the_streams_unless_a_trainer_asks_for_drop_last(
    tail: str, drop_last: bool, asked: bool | None, expected: tuple[bool, bool]
) -> None:
    stream = OpenedStream(replace(PLAN, tail=tail, drop_last=drop_last), FACTS)
    shape = admit(replace(HELLO, drop_last=asked), stream, 1).shape
    assert (shape.drop_last, shape.uneven_tail) == expected


def coded(*digests: str) -> OpenedStream:
    return OpenedStream(
        PLAN,
        replace(
            FACTS,
            code=tuple(Module(f"m{n:03}.py", 1, n, digest) for n, digest in enumerate(digests)),
        ),
    )


def test_neither_size_nor_time_of_code_is_a_fact() -> None:
    one, other = (
        OpenedStream(PLAN, replace(FACTS, code=(Module("mine.py", size, time, "abc"),)))
        for size, time in ((1, 2), (3, 4))
    )
    assert facts(one) == facts(other)


def test_files_of_code_beyond_those_with_a_fact_each_share_one() -> None:
    many = ["a"] * (MOST_CODE + 3)
    known = facts(coded(*many))
    assert len([name for name in known if name.startswith("code:")]) == MOST_CODE + 1
    assert differing(known, facts(coded(*many[:-1], "b"))) == {"code:3 more files"}


def hello(stream: OpenedStream) -> Hello:
    return replace(HELLO, order=order_facts(stream, PLAN.seed), content=content_facts(stream, None))


def test_who_comes_back_to_other_code_is_admitted_and_to_other_values_refused() -> None:
    began = hello(coded("a"))
    assert admit(began, coded("b"), 1).content["code:m000.py"] == "b"
    with pytest.raises(StreamChangedError, match="values was"):
        admit(
            hello(OpenedStream(PLAN, replace(FACTS, values="a"))),
            OpenedStream(PLAN, replace(FACTS, values="b")),
            1,
        )


def test_a_segment_for_part_of_a_batch_has_room_for_its_last_bytes() -> None:
    plan, found = (
        replace(PLAN, batch_size=8, collate="mine:collate"),
        replace(FACTS, collated=True, body_bytes=1001),
    )
    assert [
        sized(OpenedStream(plan, found), (), rows, 3, 1).body_bytes for rows in (1, 3, 8, 16)
    ] == [126, 376, 1001, 2002]
