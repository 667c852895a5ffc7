"""Tables of text with a column of paths: CSV and JSON lines."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderd.data.errors import SourceError
from loaderd.data.packing import json_lines
from loaderd.data.packing.inputs import PackOptions, pack_source
from loaderd.data.packing.kinds import opened
from loaderd.data.packing.source import SourceOptions
from loaderd_testing.packing import Packed
from loaderd_testing.sample_builders import coded, picture


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a.png, b.png and c.png."""
    for at, name in enumerate("abc"):
        (tmp_path / f"{name}.png").write_bytes(coded(picture(8, 8, seed=at)))
    return tmp_path


def table(place: Path, text: str | bytes, name: str = "t.csv", **options: Any) -> Packed:
    path = place / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    kind = "jsonl" if name.endswith(".jsonl") else "csv"
    return Packed(kind, path, place / f"{name}.lmdb", **options)


def rows(packed: Packed) -> dict[str, Any]:
    """The samples without their images."""
    return {
        key: {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in sample.items()
            if not isinstance(value, bytes)
        }
        for key, sample in packed.samples.items()
    }


def test_cells_are_numbers_where_all_of_their_column_are(place: Path) -> None:
    packed = table(
        place,
        'file,n,x,id,note\na.png,1,2,007,"two\nlines, and a "" quote"\nb.png,-2,.5,010,\n'
        "c.png,3,1e3,011,x\n",
    )
    assert rows(packed)["a.png"] == {
        "n": 1,
        "x": 2.0,
        "id": "007",
        "note": 'two\nlines, and a " quote',
    }
    assert packed.bad == {"b.png": packed.bad["b.png"]}
    assert "it has no field 'note', which the first sample has" in packed.bad["b.png"]
    assert packed.samples["c.png"]["image"] == (place / "c.png").read_bytes()


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "-2", "+3"], [1, -2, 3]),
        (["1", "2.5", "1e2"], [1.0, 2.5, 100.0]),
        (["0.", ".5", "nan"], [0.0, 0.5, "nan"]),
        (["123456789012345678", "2", "3"], [123456789012345678, 2, 3]),
        (["123456789012345678", "2.5", "3"], ["123456789012345678", "2.5", "3"]),
        (["1.5", "123456789012345678", "3"], ["1.5", "123456789012345678", "3"]),
        (["1", "12345678901234567890", "3"], ["1", "12345678901234567890", "3"]),
        (["1", "02", "3"], ["1", "02", "3"]),
        (["1", "1_0", "3"], ["1", "1_0", "3"]),
        (["True", "False", "1"], ["True", "False", "1"]),
    ],
)
def test_no_number_loses_a_digit(place: Path, cells: list[str], expected: list[Any]) -> None:
    lines = "".join(f"{name}.png,{cell}\n" for name, cell in zip("abc", cells, strict=True))
    packed = table(place, f"image,v\n{lines}")
    assert [str(one["v"]) for one in rows(packed).values()] == list(map(str, expected))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("\ufefffile,label\r\na.png,1\r\n\r\nb.png,2\r\n", "t.csv"),
        ("file\tlabel\na.png\t1\nb.png\t2", "t.tsv"),
        ("file;label\na.png;1\nb.png;2\n", "t.csv"),
        ("a.png,1\nb.png,2\n", "t.csv"),
        ("file, label\na.png,1\nb.png,2\n", "t.csv"),
        ('{"file": "a.png", "label": 1}\n\n{"file": "b.png", "label": 2}', "t.jsonl"),
        ('\ufeff{"file": "a.png", "label": 1}\r\n{"label": 2, "file": "b.png"}\r\n', "t.jsonl"),
    ],
)
def test_the_same_table_in_other_clothes_is_the_same(place: Path, text: str, name: str) -> None:
    packed = table(place, text, name)
    assert rows(packed) == {"a.png": {"label": 1}, "b.png": {"label": 2}}
    assert [one["image"] for one in packed.samples.values()] == [
        (place / name).read_bytes() for name in ("a.png", "b.png")
    ]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("file;size, weight\na.png;1\nb.png;2\n", {"size, weight"}),
        ("file;size\na.png;1,5\nb.png;2,5\n", {"size"}),
        ('file,note\na.png,"x;y;z"\nb.png,"u;v;w"\n', {"note"}),
        ('file,note\na.png,"x,y"\nb.png,u\n', {"note"}),
    ],
)
def test_what_divides_the_cells_of_all_lines_alike_divides_them(
    place: Path, text: str, names: set[str]
) -> None:
    packed = table(place, text)
    assert [set(one) for one in rows(packed).values()] == [names, names]
    assert not packed.bad


def test_a_table_of_one_column_is_told_as_such(place: Path) -> None:
    packed = table(place, "file:label\na.png:1\nb.png:2\n")
    assert (
        "the table has one column, 'file:label': cells are divided by a comma, a tab, a "
        in (packed.report.notes[0])
    )


def test_an_empty_cell_is_told_with_both_ways_out(place: Path) -> None:
    packed = table(place, "image,n,m\na.png,1,2\nb.png,,3\n")
    assert packed.bad["b.png"] == (
        "it has no field 'n', which the first sample has: give it a value (an empty cell or a null "
        "is none), or pack all samples without it: --fields image,m"
    )


def test_texts_of_labels_are_numbers_of_their_sorted_names(place: Path) -> None:
    packed = table(place, "image,label\na.png,cat\nb.png,3\nc.png,ant\n")
    assert packed.classes == ("3", "ant", "cat")
    assert rows(packed) == {"a.png": {"label": 2}, "b.png": {"label": 0}, "c.png": {"label": 1}}
    assert "column 'label' has the numbers of these classes: '3', 'ant', 'cat'" in (
        packed.report.notes
    )


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_given_classes_number_the_labels_and_an_unknown_one_is_bad(place: Path, kind: str) -> None:
    path = place / f"t.{kind}"
    path.write_text(
        "image,label\na.png,cat\nb.png,cta\n"
        if kind == "csv"
        else '{"image": "a.png", "label": "cat"}\n{"image": "b.png", "label": "cta"}\n'
    )
    said = SourceOptions(classes=("dog", "cat"))
    report = pack_source(opened(kind, str(path), said), str(place / "db"), PackOptions())
    assert (report.samples, report.classes) == (1, ("dog", "cat"))
    assert report.bad == (
        ("b.png", "its class 'cta' is not one of the 2 given; did you mean 'cat'?"),
    )


def test_several_columns_of_paths_keep_their_names(place: Path) -> None:
    packed = table(place, "left,right,label\na.png,b.png,0\nb.png,c.png,1\n")
    assert packed.samples["b.png"]["right"] == (place / "c.png").read_bytes()


def test_paths_begin_at_the_folder_that_is_said(place: Path) -> None:
    (place / "sub").mkdir()
    os.rename(place / "a.png", place / "sub" / "a.png")
    packed = table(place, "image\na.png\n", args={"root": str(place / "sub")})
    assert list(packed.samples) == ["a.png"]
    for args, why in (
        ({"root": "/nowhere"}, "root = '/nowhere' is not a folder"),
        ({"rot": "x"}, "unknown word 'rot'"),
    ):
        with pytest.raises(SourceError, match=why):
            table(place, "image\na.png\n", "u.csv", args=args)


def test_rows_that_cannot_be_packed_are_named_and_the_others_are(place: Path) -> None:
    os.mkfifo(place / "pipe.png")
    (place / "text.png").write_text("text")
    packed = table(
        place,
        b"image,n\na.png,1\nnone.png,2\npipe.png,3\ntext.png,4\nb.png\nb.png,5,6\n\xff.png,7\nc.png,8\n",
    )
    assert list(packed.samples) == ["a.png", "c.png"]
    whys = {
        "none.png": "No such file or directory",
        "pipe.png": "it is not a file",
        "text.png": "not an image that can be read",
        "b.png": "cells, the table has 2 columns",
        "\\xff.png": "No such file or directory",
    }
    assert set(packed.bad) == set(whys)
    assert packed.report.bad_count == 6
    for name, why in whys.items():
        assert why in packed.bad[name]
        assert name not in packed.bad[name], "it is told before that"


def test_a_quote_that_lacks_its_other_one_is_named_and_the_rows_before_it_are_packed(
    place: Path,
) -> None:
    packed = table(place, 'image,n\na.png,1\nb.png,"2\nc.png,3\n')
    assert list(packed.samples) == ["a.png"]
    assert packed.bad == {"t.csv:4": "unexpected end of data: does a quote lack its other one?"}


LINES = [
    ({"p": "a.png", "n": 1, "boxes": [], "t": {"x": 1}, "none": None}, ""),
    ({"p": "b.png", "n": 2.5, "boxes": [[1, 2.5]], "t": {"x": 2}}, ""),
    ({"p": "c.png", "n": 2, "boxes": [[1, 2], [3, 4]], "t": {"x": 2}, "more": 1}, ""),
    ({"p": "c.png", "n": 2, "boxes": [[1], [3, 4]], "t": {"x": 2}}, "lists of unequal length"),
    ({"p": "c.png", "n": 2, "boxes": ["a"], "t": {"x": 2}}, "field 'boxes' is a list of texts"),
    ({"p": "c.png", "n": 2, "boxes": [], "t": 3}, "it has no field 't.x'"),
    ({"p": "c.png", "n": "2", "boxes": [], "t": {"x": 2}}, "field 'n' is text, in the first"),
    ([1], "its line is a list, not an object"),
]


def test_lines_of_json_have_numbers_lists_and_tables(place: Path) -> None:
    text = "".join(json.dumps(line) + "\n" for line, _ in LINES) + "{'a': 1}\n" + "[" * 100_000
    packed = table(place, text, "t.jsonl")
    found = rows(packed)
    assert found["a.png"] == {"n": 1.0, "boxes": [], "t.x": 1}
    assert found["c.png"] == {"n": 2.0, "boxes": [[1.0, 2.0], [3.0, 4.0]], "t.x": 2}
    assert packed.samples["a.png"]["boxes"].dtype == np.float64
    assert packed.report.tally == (("packed without field 'more', which the first one lacks", 1),)
    whys = [why for _, why in LINES if why]
    said = [reason for _, reason in packed.report.bad]
    assert [why for why, reason in zip(whys, said, strict=False) if why not in reason] == []
    assert [name for name, _ in packed.report.bad[-2:]] == ["line 9", "line 10"]


def test_a_line_of_gigabytes_is_named_and_not_kept(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "MAX_LINE", 100)
    text = '{"p": "a.png"}\n{"p": "' + "x" * 1000 + '"}\n{"p": "b.png"}\n'
    packed = table(place, text, "t.jsonl")
    assert list(packed.samples) == ["a.png", "b.png"]
    assert packed.bad == {"line 2": "its line has more than 100 bytes"}


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("t.csv", "", "has no rows"),
        ("t.csv", "image,label\n", "has no rows"),
        ("t.csv", "image,image\na.png,b.png\n", "two columns of its first line are called 'image'"),
        ("t.jsonl", "\n\n", "has no lines"),
    ],
)
def test_a_table_that_is_none_is_one_line_that_names_it(
    place: Path, name: str, text: str, why: str
) -> None:
    with pytest.raises(SourceError, match=why) as caught:
        table(place, text, name)
    assert str(place / name) in str(caught.value)
    with pytest.raises(SourceError, match="there is no such file"):
        Packed("csv", place / "none.csv", place / "db")
