"""Values that are lists of parts: tensorpack, ImageFolderLMDB, and what has a key that counts."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import types
from pathlib import Path
from typing import Any

import msgpack
import msgpack_numpy
import numpy as np
import pytest

from loaderd.data.errors import SourceError
from loaderd.data.pipeline.pipeline import SamplePipeline
from loaderd.data.pipeline.request import SampleRequest
from loaderd_testing.foreign_databases import (
    JPEG,
    layout_of,
    numbered,
    pickled,
    samples,
    source,
)
from loaderd_testing.sample_builders import silent, write


@pytest.mark.parametrize("codec", ["pickle", "msgpack"])
def test_what_tensorpack_writes_is_read(
    tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorpack import dataflow
    from tensorpack.dataflow import serialize
    from tensorpack.utils.serialize import MsgpackSerializer, PickleSerializer

    points = [[np.frombuffer(JPEG, np.uint8), index % 2] for index in range(11)]
    path = str(tmp_path / "train.lmdb")
    written = {"pickle": PickleSerializer, "msgpack": MsgpackSerializer}[codec]
    monkeypatch.setattr(serialize, "dumps", written.dumps)
    serialize.LMDBSerializer.save(dataflow.DataFromList(points, shuffle=False), path)
    with source(path) as opened:
        assert (opened.layout, opened.total, opened.key(10)) == ("tensorpack", 11, "00000010")
        sample = opened.read(10)
        assert sample.encoded == {"image"}
        assert sample["image"] == JPEG
        assert int(sample["label"]) == 0
        made = SamplePipeline(opened.plan, opened).make(SampleRequest(0, 0, 3), silent)
        assert made["image"].shape == (16, 20, 3)


def test_parts_of_a_list_are_called_as_the_config_says(tmp_path: Path) -> None:
    path = numbered(tmp_path / "db", [pickled([1.5, "a", [1, 2]])], "%08d", __keys__=pickled([b"00000000"]))  # fmt: skip
    (sample,) = samples(path, fields=("x", "name", "box"))
    assert (float(sample["x"]), sample["name"], sample["box"].tolist()) == (1.5, "a", [1, 2])
    assert set(samples(path)[0]) == {"0", "1", "2"}
    with source(path, fields=("x",)) as opened, pytest.raises(ValueError, match="it has 3 parts"):
        opened.read(0)


def by_pickle(value: Any) -> bytes:
    return pickle.dumps(value)


def by_msgpack(value: Any) -> bytes:
    return msgpack.packb(value, default=msgpack_numpy.encode)


@pytest.mark.parametrize("coded_by", [by_pickle, by_msgpack])
@pytest.mark.parametrize("count", [3, 300])
def test_an_imagefolder_lmdb_is_read_in_the_order_of_its_numbers(
    tmp_path: Path, coded_by: Any, count: int
) -> None:
    path = numbered(
        tmp_path / "db",
        [coded_by(({b"data": JPEG}, i) if coded_by is by_msgpack else (JPEG, i)) for i in range(count)],
        __keys__=coded_by([b"%d" % i for i in range(count)]),
        __len__=coded_by(count),
        classes=by_pickle(["cat", "dog"]),
    )  # fmt: skip
    with source(path) as opened:
        assert (opened.layout, opened.total) == ("imagefolder_lmdb", count)
        assert opened.classes == ("cat", "dog")
        assert [int(opened.read(i)["label"]) for i in range(count)] == list(range(count))
        assert opened.read(0)["image"] == JPEG
        assert opened.warnings == ()


def test_a_counter_that_is_wrong_is_told_and_no_sample_is_lost(tmp_path: Path) -> None:
    for stated in (2, 4, 5000):
        path = numbered(tmp_path / f"db{stated}", [pickled({"x": i}) for i in range(3)], num_examples=pickled(stated))  # fmt: skip
        with source(path) as opened:
            assert (opened.layout, opened.total) == ("tape", 3)
            assert f"it says that it has {stated:,} samples, and has 3" in opened.warnings[0]


def test_numbers_that_are_missing_are_told_and_the_others_are_read(tmp_path: Path) -> None:
    items = {str(i).encode(): pickled({"x": i}) for i in range(100) if i not in (2, 4)}
    path = write(tmp_path / "db", items | {b"length": b"98"})
    with source(path) as opened:
        assert (opened.layout, opened.total) == ("saprot", 98)
        assert "2 of its numbers from 0 to 99 are missing: 2, 4" in opened.warnings[0]
        assert [int(opened.read(i)["x"]) for i in range(98)] == [i for i in range(100) if i not in (2, 4)]  # fmt: skip


def test_pickles_of_python_2_are_read(tmp_path: Path) -> None:
    label = b"\x80\x02(U" + bytes([len(JPEG) % 256]) + b"x" * (len(JPEG) % 256) + b"K\x07t."
    old = b"\x80\x02(T" + len(JPEG).to_bytes(4, "little") + JPEG + b"K\x07t."
    assert label[:1] == b"\x80"
    path = numbered(tmp_path / "db", [old, old], "%08d", __keys__=b"\x80\x02]q\x00(U\x0800000000U\x0800000001e.")  # fmt: skip
    assert [int(sample["label"]) for sample in samples(path)] == [7, 7]
    assert samples(path)[0]["image"] == JPEG


def test_a_value_that_is_coded_unlike_the_others_is_a_bad_sample(tmp_path: Path) -> None:
    values = [pickled({"x": 1}), b"{}", pickled({"x": 3})[:-4]]
    path = numbered(tmp_path / "db", values, num_examples=pickled(3))
    with source(path) as opened:
        assert int(opened.read(0)["x"]) == 1
        for index in (1, 2):
            with pytest.raises(ValueError, match="pickle"):
                opened.read(index)


@pytest.mark.parametrize("form", ["json", "msgpack", "pkl"])
def test_atom3d_is_read_in_each_of_its_forms(tmp_path: Path, form: str) -> None:
    row = {"id": "11as.pdb", "xyz": [[0.0, 1.0], [2.0, 3.0]]}
    packed = {"json": json.dumps(row).encode(), "msgpack": msgpack.packb(row), "pkl": pickled(row)}
    path = numbered(
        tmp_path / "db", [gzip.compress(packed[form])] * 4,
        num_examples=b"4", serialization_format=form.encode(), id_to_idx=b"{}",
    )  # fmt: skip
    with source(path) as opened:
        assert (opened.layout, opened.total, opened.warnings) == ("atom3d", 4, ())
    sample = samples(path)[3]
    assert sample["id"] == "11as.pdb"
    assert sample["xyz"].shape == (2, 2)


def test_saprot_and_table_master_are_told_apart_from_others_by_their_counters(
    tmp_path: Path,
) -> None:
    seq = json.dumps({"seq": "MdEv", "plddt": [90.0, 80.5], "label": 1}).encode()
    saprot = numbered(tmp_path / "a", [seq] * 3, length=b"3", info=b"made by hand")
    assert layout_of(saprot) == "saprot"
    assert samples(saprot)[2]["plddt"].tolist() == [90.0, 80.5]
    tables = numbered(tmp_path / "b", [pickled(("t.png", JPEG, "a,1"))], __len__=pickled(1))
    assert layout_of(tables) == "tablemaster"
    assert samples(tables, fields=("name", "image", "text"))[0]["image"] == JPEG


class Touch:
    def __reduce__(self) -> Any:
        return os.mkdir, (MADE,)


MADE = ""


def test_pickles_of_classes_are_run_only_where_the_stream_allows_it(tmp_path: Path) -> None:
    atoms = types.SimpleNamespace(pos=np.zeros((2, 3), "f4"), natoms=2, y=1.5)
    path = numbered(tmp_path / "db", [pickled(atoms)] * 3, length=pickled(3))
    with pytest.raises(SourceError, match=r"need types\.SimpleNamespace.*allow_pickle = true"):
        source(path)
    with source(path, allow_pickle=True) as opened:
        assert (opened.layout, opened.total, opened.user_code) == ("ocp", 3, True)
        sample = opened.read(2)
        assert sample["pos"].shape == (2, 3)
        assert (int(sample["natoms"]), float(sample["y"])) == (2, 1.5)


def test_a_single_value_that_asks_for_code_is_a_bad_sample_and_runs_nothing(tmp_path: Path) -> None:
    global MADE
    MADE = str(tmp_path / "made")
    path = numbered(tmp_path / "db", [pickled({"x": 1}), pickled(Touch())], num_examples=b"2")
    with source(path) as opened:
        with pytest.raises(ValueError, match=r"needs posix\.mkdir"):
            opened.read(1)
        assert int(opened.read(0)["x"]) == 1
    assert not Path(MADE).exists()
