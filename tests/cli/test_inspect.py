"""`loaderd inspect` of databases that other projects wrote."""

from __future__ import annotations

import argparse
import json
import re
import types
from pathlib import Path
from typing import Any

import pytest

from loaderd.cli import inspect
from loaderd.config.load import parse
from loaderd.data.sources.source import Source
from loaderd_testing.foreign_databases import JPEG, numbered, pickled
from loaderd_testing.sample_builders import write


def facts_of(path: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert inspect.run(argparse.Namespace(db=[path], json=True)) == 0
    return json.loads(capsys.readouterr().out)


def text_of(path: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert inspect.run(argparse.Namespace(db=[path], json=False)) == 0
    return capsys.readouterr().out


def scene_text(path: Path, stated: bytes) -> str:
    items = {b"image-%09d" % i: JPEG for i in (1, 2, 4)}
    items |= {b"label-%09d" % i: b"word" for i in (1, 2, 4)}
    return write(path, items | {b"num-samples": stated})


def test_inspect_tells_layout_reason_true_count_gaps_and_fields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = scene_text(tmp_path / "db", b"4")
    facts = facts_of(path, capsys)
    assert (facts["layout"], facts["samples"], facts["entries"]) == ("scene_text", 3, 7)
    assert facts["pickle"] == "none"
    assert facts["notes"] == [
        "it says that it has 4 samples, and has 3",
        "1 of its numbers from 1 to 4 are missing: 3",
    ]
    assert set(facts["first"]["fields"]) == {"image", "label"}
    text = text_of(path, capsys)
    for part in (
        "since it has num-samples, and image-000000001 and label-000000001",
        "1 of its numbers from 1 to 4 are missing: 3",
        "image jpeg image, 16 x 20 x 3",
        "image-######### (3 of 7)",
    ):
        assert part in text


@pytest.mark.parametrize("kind", ["scene_text", "tape", "ocp", "files"])
def test_the_printed_config_reads_the_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = {
        "scene_text": lambda: scene_text(tmp_path / "db", b"3"),
        "tape": lambda: numbered(tmp_path / "db", [pickled({"x": 1})], num_examples=b"1"),
        "ocp": lambda: numbered(tmp_path / "db", [pickled(types.SimpleNamespace(x=1))], length=pickled(1)),
        "files": lambda: write(tmp_path / "db", {b"a.jpg": JPEG}),
    }[kind]()  # fmt: skip
    facts = facts_of(path, capsys)
    assert facts["layout"] == kind
    assert facts["config"] in text_of(path, capsys)
    (plan,) = parse(facts["config"], str(tmp_path / "c.toml"), {"XDG_RUNTIME_DIR": "/r"}, 0).streams
    assert plan.allow_pickle == (kind == "ocp")
    with Source(plan) as source:
        assert source.layout == kind
        source.read(0)


def test_inspect_tells_which_class_a_pickle_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = pickled(types.SimpleNamespace(x=1))
    path = numbered(tmp_path / "db", [value], length=pickled(1))
    text = text_of(path, capsys)
    assert "needs types.SimpleNamespace: only with allow_pickle = true" in text
    assert "allow_pickle = true  # runs whatever the file asks for" in text


def test_inspect_tells_how_to_pick_fields_where_values_have_lists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = {"atoms": ["C", "O"], "coordinates": [[0.0, 1.0, 2.0]], "smi": "CO"}
    facts = facts_of(numbered(tmp_path / "db", [pickled(value)] * 2), capsys)
    assert (facts["layout"], facts["codec"]) == ("unimol", "pickle")
    assert facts["pickle"] == "plain values, read without running anything"
    assert "atoms is a list" in facts["notes"][0]
    assert len(facts["notes"]) == 1


def test_inspect_of_a_bad_first_sample_tells_what_is_wrong_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = [b"\x80\x04cut.", pickled({"x": 1})]
    facts = facts_of(numbered(tmp_path / "db", values, num_examples=b"2"), capsys)
    assert "its first sample is bad" in facts["notes"][0]
    assert facts["samples"] == 2


def test_of_several_databases_each_has_a_line_and_a_pattern_finds_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, count in (("b", 2), ("a", 11)):
        numbered(tmp_path / f"{name}.lmdb", [JPEG] * count)
    assert inspect.run(argparse.Namespace(db=[f"{tmp_path}/*.lmdb"], json=False)) == 0
    first, second, together = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"  11 samples  files +\S+ \S+  {tmp_path}/a.lmdb", first)
    assert re.fullmatch(rf"   2 samples  files +\S+ \S+  {tmp_path}/b.lmdb", second)
    assert re.fullmatch(r"  13 samples +\S+ \S+  together", together)
    inspect.run(argparse.Namespace(db=[f"{tmp_path}/{n}.lmdb" for n in "ba"], json=True))
    assert [facts["samples"] for facts in json.loads(capsys.readouterr().out)] == [2, 11]
