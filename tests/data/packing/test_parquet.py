"""Parquet files: what is no array, nulls, damage."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from loaderd.data.errors import SourceError
from loaderd_testing.packing import Packed
from loaderd_testing.sample_builders import coded, picture


def written(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    parquet.write_table(pa.table(columns), path, **options)
    return path


def lists(rows: list[Any], kind: Any) -> pa.Array:
    return pa.array(rows, pa.list_(kind))


def test_columns_keep_their_types(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.parquet",
        {
            "u1": pa.array([1, 2], pa.uint8()),
            "f4": pa.array([0.5, 1], pa.float32()),
            "b": [True, False],
            "t": ["x", "y"],
            "raw": [b"\0", b"\1"],
            "fixed": pa.array([[1, 2], [3, 4]], pa.list_(pa.int16(), 2)),
            "nested": lists([[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]], pa.list_(pa.float64())),
            "named": pa.array(["p", "q"]).dictionary_encode(),
            "table": [{"x": 1, "y": {"z": [1]}}, {"x": 2, "y": {"z": [2]}}],
            "rows": [[{"c": 1, "box": [1.0, 2.0]}], [{"c": 2, "box": [3.0, 4.0]}] * 2],
        },
    )
    packed = Packed("parquet", path, tmp_path / "db")
    second = packed.samples["a.parquet:1"]
    found = {
        name: (value.dtype.str, value.tolist()) if isinstance(value, np.ndarray) else value
        for name, value in second.items()
    }
    assert found == {
        "u1": ("|u1", 2),
        "f4": ("<f4", 1.0),
        "b": ("|b1", False),
        "t": "y",
        "raw": b"\1",
        "fixed": ("<i2", [3, 4]),
        "nested": ("<f8", [[3.0, 4.0], [5.0, 6.0]]),
        "named": "q",
        "table.x": ("<i8", 2),
        "table.y.z": ("<i8", [2]),
        "rows.c": ("<i8", [2, 2]),
        "rows.box": ("<f8", [[3.0, 4.0], [3.0, 4.0]]),
    }
    assert packed.report.notes == ()


def test_rows_that_cannot_be_packed_are_named_and_the_others_are(tmp_path: Path) -> None:
    image = {"bytes": coded(picture()), "path": "p"}
    good = {"n": 1, "boxes": [[1.0, 2.0]], "e": [0.5], "image": image}
    odd: list[dict[str, Any]] = [
        {"n": None},
        {"boxes": [[1.0], [2.0, 3.0]]},
        {"boxes": [None]},
        {"e": [None]},
        {"image": None},
        {"image": {"bytes": None, "path": "/etc/passwd"}},
        {"image": {"bytes": b"no image", "path": "p"}},
    ]
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.Table.from_pylist([good, *(good | one for one in odd), good]), path)
    packed = Packed("parquet", path, tmp_path / "db")
    assert list(packed.samples) == ["a.parquet:0", "a.parquet:8"]
    whys = [
        "it has no field 'n', which the first sample has",
        "field 'boxes' has lists of unequal length, 1 to 2",
        "field 'boxes' has a null in a list",
        "field 'e' has a null in a list",
        "it has no field 'image'",
        "field 'image' has no bytes, only the path '/etc/passwd'",
        "not an image that can be read",
    ]
    assert list(packed.bad) == [f"a.parquet:{row}" for row in range(1, 8)]
    for why, said in zip(whys, packed.bad.values(), strict=True):
        assert why in said


def test_an_empty_list_is_an_array_of_the_columns_type(tmp_path: Path) -> None:
    rows = lists([[[1.0, 2.0]], []], pa.list_(pa.float32()))
    packed = Packed("parquet", written(tmp_path / "a.parquet", {"x": rows}), tmp_path / "db")
    empty = packed.samples["a.parquet:1"]["x"]
    assert (empty.shape, empty.dtype) == ((0, 2), np.float32)


def test_columns_that_no_array_holds_are_left_out_and_told_unless_they_were_asked_for(
    tmp_path: Path,
) -> None:
    columns = {
        "n": [1, 2],
        "when": [datetime.datetime(2020, 1, 1)] * 2,
        "tags": [["a"], ["b", "c"]],
        "never": [None, None],
    }
    path = written(tmp_path / "a.parquet", columns)
    packed = Packed("parquet", path, tmp_path / "db")
    assert set(packed.samples["a.parquet:0"]) == {"n"}
    assert packed.report.notes == (
        "column 'when' is left out: it is timestamp[us]",
        "column 'tags' is left out: it is lists of string",
        "column 'never' is left out: it is all nulls",
    )
    with pytest.raises(SourceError, match="column 'tags' is lists of string, which is not packed"):
        Packed("parquet", path, tmp_path / "tags", fields=("tags",))
    with pytest.raises(SourceError, match="has no column 'm'; it has n, when, tags, never"):
        Packed("parquet", path, tmp_path / "m", fields=("n", "m"))


def test_class_names_are_those_of_the_column_that_datasets_calls_so(tmp_path: Path) -> None:
    features = {"fine": {"_type": "ClassLabel", "names": ["a", "b"]}, "x": {"_type": "Value"}}
    table = pa.table({"fine": [0, 1], "x": [1, 2]})
    said = {"huggingface": json.dumps({"info": {"features": features}})}
    parquet.write_table(table.replace_schema_metadata(said), tmp_path / "a.parquet")
    assert Packed("parquet", tmp_path / "a.parquet", tmp_path / "db").classes == ("a", "b")
    parquet.write_table(table.replace_schema_metadata({"huggingface": "["}), tmp_path / "b.parquet")
    assert Packed("parquet", tmp_path / "b.parquet", tmp_path / "db2").classes == ()


def test_a_damaged_file_and_a_damaged_row_group_cost_their_own_rows(tmp_path: Path) -> None:
    whole = {"n": list(range(400)), "t": [f"{n:200}" for n in range(400)]}
    for name in "abc":
        written(tmp_path / f"{name}.parquet", whole, row_group_size=100, compression="zstd")
    path = tmp_path / "c.parquet"
    with parquet.ParquetFile(path) as file:
        begin = file.metadata.row_group(2).column(1).data_page_offset
    data = bytearray((tmp_path / "b.parquet").read_bytes())
    data[begin : begin + 400] = b"\xff" * 400
    (tmp_path / "b.parquet").write_bytes(data)
    path.write_bytes(path.read_bytes()[:-9])
    packed = Packed("parquet", tmp_path, tmp_path / "db")
    assert len(packed.samples) == 400 + 300
    assert (packed.report.bad_count, list(packed.bad)[1]) == (101, "b.parquet:200")
    assert "its row group: " in packed.bad["b.parquet:250"]
    assert "magic" in packed.bad["c.parquet"]
    rest = Packed("parquet", tmp_path, tmp_path / "rest", split="0:301").samples
    assert len(rest) + sum(name.startswith("b") for name in rest) > 0


def test_a_split_is_read_in_the_files_order(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", {"n": list(range(1000))}, row_group_size=300)
    packed = Packed("parquet", path, tmp_path / "db", split="0%:30%")
    found = [int(one["n"]) for one in packed.samples.values()]
    assert found == sorted(set(found))
    assert len(found) == 300


def test_what_is_no_parquet_file_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,t\n1,2\n")
    with pytest.raises(SourceError, match=r"a\.csv: cannot be read: .*not a parquet file"):
        Packed("parquet", tmp_path / "a.csv", tmp_path / "db")


def test_without_pyarrow_it_is_said_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SourceError, match=r"pip install 'loaderd\[parquet\]'"):
        Packed("parquet", tmp_path, tmp_path / "db")
