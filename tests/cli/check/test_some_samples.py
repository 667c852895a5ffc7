"""What `loaderd check` says of some samples, made up here."""

from __future__ import annotations

import io
import json
from argparse import Namespace
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loaderd.cli.check import determinism, some_samples
from loaderd.cli.check.determinism import Difference, Findings, differences
from loaderd.cli.check.local_run import BatchView
from loaderd.cli.check.some_samples import NAMED, bad_line, described, faults
from loaderd.cli.exit_codes import FAULTS, FINE, NO_START
from loaderd.config.schema import DaemonConfig
from loaderd.config.stream import StreamConfig
from loaderd.engine.messages import StreamInfo
from loaderd_wire.errors import BadSample
from loaderd_wire.slots import FieldSpec

SPECS = (FieldSpec("x", "|u1", (4, 4)), FieldSpec("t", "", (), "text"))
PLAN = StreamConfig("train", lmdb="/d.lmdb", batch_size=8)
FACTS = StreamInfo(
    stream="train", total=40, samples=40, identity="", state="", layout="loaderd", keys="index", classes=(), specs=SPECS,
    sample_specs=SPECS, form="dict", collated=False, tail_row_bytes=64, body_bytes=0, jpeg_extension="", warnings=(),
)  # fmt: skip
BAD = BadSample(3, "three", 0, "decode", "ValueError", "damaged")


def found(**changes: Any) -> Findings:
    return Findings(PLAN, **{"facts": FACTS, "of": 40, "samples": 16, **changes})


def test_a_stream_is_described_by_its_samples_fields_and_memory() -> None:
    assert described(found()) == [
        "  samples   40, layout loaderd",
        "  fields    x uint8[4,4], 16 B a row",
        "            t text",
        "  batch     8 rows, 16 B a row, 4 KiB a slot",
        "  batch     memory at full credit: 24 KiB a trainer (prefetch 4, so 6 slots)",
    ]


def test_trainers_that_share_need_the_memory_of_their_group() -> None:
    shares = replace(PLAN, share=True, share_window=3)
    assert described(replace(found(), plan=shares))[-1] == (
        "  batch     memory at full credit: 36 KiB a group of trainers that share (prefetch 4, so "
        "9 slots)"
    )


def test_a_part_of_the_data_classes_warnings_refusals_and_speed_have_lines_of_their_own() -> None:
    facts = replace(FACTS, classes=("a", "b"), warnings=("mind this",), collated=True)
    lines = described(
        found(
            facts=facts,
            of=30,
            refused=["too small"],
            rows=50,
            seconds={"read": 1.0, "decode": 3.0, "collate": 0.0},
        )
    )
    assert lines[0] == "  samples   30 of 40 (0%:100%), layout loaderd, 2 classes"
    assert lines[3].startswith("  batch     8 rows, collated, ")
    assert lines[5:] == [
        "  BAD       too small",
        "  note      mind this",
        "  speed     12 samples/s per worker: read 25%  decode 75%",
    ]


@pytest.mark.parametrize(
    ("samples", "plan", "memory", "words"),
    [
        (8, {"drop_last": True}, None, []),
        (7, {"drop_last": True}, None, ["an epoch has no whole step: 7 samples, batch_size = 8"]),
        (7, {}, 24 << 10, []),
        (7, {}, 24_000, ["a trainer needs 24 KiB, [daemon] memory is 23 KiB: raise memory"]),
    ],
)
def test_what_no_trainer_could_be_served_with_is_said(
    samples: int, plan: dict[str, Any], memory: int | None, words: list[str]
) -> None:
    settings: Any = Namespace(daemon=DaemonConfig(socket="s", quarantine="q", memory=memory))
    lines = some_samples._refused(settings, replace(PLAN, **plan), FACTS, samples)
    assert [line[: len(word)] for line, word in zip(lines, words, strict=True)] == words


def test_without_a_fault_one_line_says_so() -> None:
    assert faults(found()) == [
        "  fine      16 of 40 samples made twice, in two processes",
    ]


def test_bad_samples_are_named_up_to_a_number_and_counted_beyond() -> None:
    bad = {
        index: replace(BAD, index=index, key=f"k{index}", error=f"E{index}", message=f"{index}")
        for index in range(NAMED, -1, -1)
    }
    lines = faults(found(bad=bad))
    assert [line.split("'")[1] for line in lines[:NAMED]] == [f"k{n}" for n in range(NAMED)]
    assert lines[NAMED:] == [
        "  BAD       and 1 more (--bad FILE has all)",
        f"  faults    {NAMED + 1} bad, 0 different; 16 of 40 samples made twice, in two processes",
    ]
    del bad[NAMED]
    assert "more" not in "".join(faults(found(bad=bad)))


@pytest.mark.parametrize(
    ("traceback", "lines"),
    [
        ("", []),
        ("Traceback (most recent call last):\n\n1\n2\n3\n4\n5\n", ["2", "3", "4", "5"]),
        ("stack of it\n1\n2\n3\n4\n5\n6", ["stack of it", "1", "2", "3", "4", "5"]),
    ],
)
def test_of_a_traceback_the_part_that_tells_most_is_shown(traceback: str, lines: list[str]) -> None:
    sample = replace(BAD, traceback=traceback)
    first, *rest = bad_line(sample)
    assert first == "  BAD       sample 'three' (index 3) failed in decode: ValueError: damaged"
    assert [line.strip() for line in rest] == lines
    assert bad_line(sample, telling=False) == [first]


def test_a_traceback_is_shown_once_for_each_place() -> None:
    def failed(index: int, line: int) -> BadSample:
        text = f"Traceback (most recent call last):\n  File x, line {line}\n    f()\nE: {index}"
        return replace(BAD, index=index, key=str(index), error=f"E{index}", traceback=text)

    lines = faults(found(bad={n: failed(n, line) for n, line in enumerate((7, 7, 9, 7))}))
    assert [line.strip() for line in lines if line.startswith("   ")] == [
        *("Traceback (most recent call last):", "File x, line 7", "f()", "E: 0"),
        *("Traceback (most recent call last):", "File x, line 9", "f()", "E: 2"),
    ]


def test_what_differs_is_told_with_the_way_out() -> None:
    lines = faults(
        found(differ=[Difference(3, "three", ("x", "t")), Difference(4, "four", (), "it hung")])
    )
    assert lines == [
        "  DIFFERS   sample 'three' (index 3): two runs give different 'x', 't'",
        "  DIFFERS   sample 'four' (index 4) was made once and failed once: it hung",
        "            use the rng that a transform gets, or random, numpy.random or torch: loaderd "
        "seeds them for each sample",
        "  faults    0 bad, 2 different; 16 of 40 samples made twice, in two processes",
    ]
    many = [Difference(index, str(index), ("x",)) for index in range(NAMED + 2)]
    lines = faults(found(differ=many))
    assert len(lines) == NAMED + 3
    assert lines[NAMED] == "  DIFFERS   and 2 more"
    assert not any(" more" in line for line in faults(found(differ=many[:NAMED])))


@pytest.mark.parametrize(
    ("changes", "code", "err"),
    [
        ({}, FINE, ""),
        ({"bad": {3: BAD, 1: replace(BAD, index=1)}}, FAULTS, ""),
        ({"refused": ["too small"]}, FAULTS, ""),
        ({"end": "it hung"}, FAULTS, "loaderd: stream 'train': check stopped: it hung\n"),
        ({"facts": None, "end": "not there"}, NO_START, "loaderd: not there\n"),
    ],
)
def test_the_code_says_whether_it_is_fine_and_the_file_has_the_bad_ones(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    code: int,
    err: str,
) -> None:
    refused = changes.pop("refused", [])
    monkeypatch.setattr(determinism, "check", lambda *_, **__: found(**changes))
    monkeypatch.setattr(some_samples, "_refused", lambda *_: refused)
    monkeypatch.setattr(some_samples, "_advice", lambda *args: [])
    file, classes = io.StringIO(), {}
    settings: Any = None
    assert some_samples.check(settings, PLAN, 16, file, classes) == code
    said = capsys.readouterr()
    assert said.out.startswith("train  /d.lmdb\n")
    assert said.err == err
    kept = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [(one["stream"], one["index"]) for one in kept] == [
        ("train", index) for index in sorted(changes.get("bad", ()))
    ]
    assert classes == ({} if code == NO_START else {"train": ()})


# Two makings


def batch(indices: list[int], keys: list[str] | None = None, **fields: Any) -> BatchView:
    rows: Any = Namespace(
        indices=np.array(indices), keys=keys, fields=fields or {"x": np.array(indices)}
    )
    return rows


def test_two_makings_that_are_the_same_differ_in_nothing() -> None:
    one = batch([4, 2], x=np.array([np.nan, 1.0]), t=["a", "b"])
    other = batch([4, 2], x=np.array([np.nan, 1.0]), t=["a", "b"])
    assert differences(one, other, {}, collated=False) == []
    assert differences(one, other, {}, collated=True) == []


@pytest.mark.parametrize(
    "x",
    [
        np.array([4, 9], np.int64),
        np.array([4, 2], np.int32),
        np.array([[4], [2]], np.int64),
        [4, 2],
    ],
)
def test_another_value_dtype_shape_or_type_differs(x: Any) -> None:
    one, other = batch([4, 2], x=np.array([4, 2], np.int64)), batch([4, 2], x=x)
    found = differences(one, other, {}, collated=False)
    assert [difference.index for difference in found] in ([2], [2, 4])
    assert all(difference.fields == ("x",) for difference in found)


def test_a_row_that_only_one_has_is_told_with_what_failed_in_the_other() -> None:
    one, other = batch([4, 2], ["d", "b"]), batch([2, 7], ["b", "g"])
    assert differences(one, other, {7: replace(BAD, index=7)}, collated=False) == [
        Difference(4, "d", (), "it was made only once"),
        Difference(7, "g", (), replace(BAD, index=7).line()),
    ]
    assert differences(batch([4]), batch([2, 4]), {}, collated=False) == [
        Difference(2, "2", (), "it was made only once")
    ]


def test_a_collated_batch_is_told_as_a_whole() -> None:
    one, other = batch([4, 2], x=np.ones(3), n=1), batch([4, 2], x=np.ones(3), n=2)
    assert differences(one, other, {}, collated=True) == [Difference(4, "batch of 2 rows", ("n",))]
    short = batch([4], x=np.ones(3), n=1)
    assert differences(one, short, {}, collated=True) == [
        Difference(2, "2", (), "it was made only once")
    ]
