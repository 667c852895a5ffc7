"""Sources that are spoilt anywhere: a line that names what is wrong, or what is left is packed."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import re
from pathlib import Path

import numpy as np
import pytest

from loaderd.data.errors import SourceError
from loaderd_testing.packing import SOURCES, Packed, python_2

SPOILT = {
    "webdataset": "shards/s-00.tar",
    "parquet": "data/train-0.parquet",
    "csv": "labels.csv",
    "jsonl": "labels.jsonl",
    "npy": "train.npz",
    "mnist": "MNIST/raw/train-images-idx3-ubyte",
    "cifar": "cifar-10-batches-py/data_batch_1",
    "coco": "annotations/instances_train2017.json",
}


def spoilt(data: bytes, draw: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(draw.choice([1, 3, 10, 40])):
        at, how = draw.randrange(len(made)), draw.random()
        if how < 0.6:
            made[at] = draw.randrange(256)
        elif how < 0.8:
            del made[at : at + draw.randrange(1, 20)]
        else:
            made[at:at] = draw.randbytes(draw.randrange(1, 8))
    return bytes(made)


@pytest.mark.parametrize("kind", SPOILT)
def test_a_source_that_is_spoilt_anywhere_is_packed_or_refused_in_one_line(
    tmp_path: Path, kind: str
) -> None:
    SOURCES[kind][0](tmp_path)
    path = tmp_path / SPOILT[kind]
    whole = path.read_bytes()
    for seed in range(8):
        path.write_bytes(spoilt(whole, random.Random(f"{kind} {seed}")))
        with contextlib.suppress(SourceError):
            Packed(kind, path, tmp_path / f"{seed}.lmdb")


def test_names_of_classes_that_are_no_utf_8_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"n,label\n1,a\xff\n2,b\n")
    packed = Packed("csv", tmp_path / "t.csv", tmp_path / "db")
    assert packed.classes == ("a\\udcff", "b")
    assert [int(one["label"]) for one in packed.samples.values()] == [0, 1]


def test_a_batch_of_cifar_with_a_name_of_any_bytes_is_read(tmp_path: Path) -> None:
    table = {b"data": np.zeros((1, 3072), np.uint8), b"labels": [3], b"\xdb": b"x"}
    for name, data in (("2", python_2(table)), ("3", pickle.dumps(table, 2))):
        (tmp_path / name).write_bytes(data)
        packed = Packed("cifar", tmp_path / name, tmp_path / f"db{name}")
        assert packed.samples["0"]["label"] == 3


@pytest.mark.parametrize("kind", SPOILT)
def test_a_file_that_the_system_does_not_read_is_named(tmp_path: Path, kind: str) -> None:
    SOURCES[kind][0](tmp_path)
    path = tmp_path / SPOILT[kind]
    path.unlink()
    path.symlink_to("/proc/self/mem")  # nobody can read its first byte
    with pytest.raises(SourceError, match=re.escape(path.name)):
        Packed(kind, path, tmp_path / "db")


def test_a_folder_below_that_cannot_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        SOURCES["npy"][0](tmp_path / name)
    scandir = os.scandir

    def refusing(path: str) -> object:
        if path.endswith("/b"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)  # root may list any folder
    with pytest.raises(SourceError, match="/b: cannot be read: Permission denied"):
        Packed("npy", tmp_path, tmp_path / "db")
