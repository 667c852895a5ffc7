"""The lines and the facts of `loaderd inspect`, of databases made up here."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from loaderd.cli import inspect
from loaderd.cli.exit_codes import FINE, NO_START, CommandError
from loaderd.cli.inspect import LOOKED, SHOWN_CLASSES
from loaderd_testing.sample_builders import write

OWN: dict[str, Any] = {
    "path": "/d.lmdb",
    "bytes": 3 << 20,
    "entries": 1235,
    "keys": ["######## (999 of 1000)", "5 raw bytes (1 of 1000)"],
    "value_bytes": {"smallest": 10, "median": 2048, "largest": 5000, "of": 1000},
    "network": False,
    "layout": "loaderd",
    "samples": 1234,
    "identity": "x",
    "classes": ["cat", "dog"],
    "first": {"key": "a.jpg", "fields": {"image": "image jpeg image", "label": "label int64"}},
}


def test_an_own_database_is_told_line_by_line() -> None:
    assert inspect._lines(OWN) == [
        "/d.lmdb",
        "  layout   loaderd",
        "  size     3 MiB, 1,235 entries",
        "  samples  1,234",
        "  classes  2: cat, dog",
        "  keys     ######## (999 of 1000)",
        "           5 raw bytes (1 of 1000)",
        "  values   10 B to 5 KiB, median 2 KiB (of the first 1,000)",
        "  first    'a.jpg'",
        "           image jpeg image",
        "           label int64",
    ]


def test_of_many_classes_the_first_are_named() -> None:
    names = [f"c{n}" for n in range(SHOWN_CLASSES + 1)]
    shown = ", ".join(names[:-1])
    assert f"  classes  11: {shown}, ..." in inspect._lines(OWN | {"classes": names})
    assert f"  classes  10: {shown}" in inspect._lines(OWN | {"classes": names[:-1]})
    assert not any("classes" in line for line in inspect._lines(OWN | {"classes": []}))


def test_an_unknown_database_is_told_with_what_its_first_values_look_like() -> None:
    facts = {name: OWN[name] for name in ("path", "bytes", "entries", "keys", "network")}
    facts |= {"value_bytes": None, "layout": "unknown", "advice": "write a layout"}
    lines = inspect._lines({**facts, "network": True, "first": {"a": "a JPEG image", "b": ""}})
    assert lines[5:] == [
        "  first    'a': a JPEG image",
        "  first    'b': unknown bytes",
        "",
        "write a layout",
        "  the database is on a network filesystem",
    ]


def test_keys_are_told_by_their_kind_frequent_ones_first() -> None:
    keys = [b"a1", b"a2", b"b-12", b"\xff\xfe", b"\0\0\0", b"a\n1", b"b-34", b"a9"]
    assert sorted(inspect._patterns(keys)) == [
        "2 raw bytes (1 of 8)",
        "3 raw bytes (2 of 8)",
        "a# (3 of 8)",
        "b-## (2 of 8)",
    ]
    assert inspect._patterns(keys)[0] == "a# (3 of 8)"
    assert len(inspect._patterns([bytes([n]) * (n + 1) for n in range(1, 9)])) == 5
    assert inspect._patterns([]) == []


def facts(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert inspect.run(Namespace(db=[str(path)], json=True)) == FINE
    return json.loads(capsys.readouterr().out)


def test_sizes_are_of_the_entries_that_were_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        tmp_path / "d", {b"%05d" % n: bytes(n % 7 + 1) for n in range(LOOKED)} | {b"x": bytes(99)}
    )
    found = facts(tmp_path / "d", capsys)
    assert found["entries"] == LOOKED + 1
    assert found["value_bytes"] == {"smallest": 1, "median": 4, "largest": 7, "of": LOOKED}
    assert (found["layout"], found["network"]) == ("unknown", False)
    assert list(found["first"]) == ["00000", "00001", "00002"]
    assert found["advice"]


def test_an_empty_database_has_no_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "d", {})
    found = facts(tmp_path / "d", capsys)
    assert (found["value_bytes"], found["keys"], found["first"]) == (None, [], {})


def test_what_is_not_there_cannot_be_inspected(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="nowhere") as caught:
        inspect.run(Namespace(db=[str(tmp_path / "nowhere")], json=False))
    assert caught.value.code == NO_START
