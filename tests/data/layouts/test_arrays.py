"""Databases of arrays: atoms, molecules, features, latents, safetensors, pyxis."""

from __future__ import annotations

import base64
import gzip
import io
import json
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import ase.build
import ase.io.jsonio
import lmdb
import lz4.frame
import msgpack
import msgpack_numpy
import numpy as np
import pytest
import safetensors.numpy

from loaderd.data.errors import SourceError
from loaderd.data.sample import BadValue
from loaderd_testing.foreign_databases import JPEG, layout_of, numbered, pickled, samples, source
from loaderd_testing.sample_builders import write


def by_msgpack(value: Any) -> bytes:
    return msgpack.packb(value, default=msgpack_numpy.encode)


def test_atoms_of_ase_are_read_without_those_that_were_deleted(tmp_path: Path) -> None:
    def packed(value: Any) -> bytes:
        return zlib.compress(ase.io.jsonio.encode(value).encode())

    items = {b"nextid": packed(5), b"deleted_ids": packed([2]), b"metadata": packed({"a": 1})}
    for ident, name in ((1, "H2O"), (3, "CH4"), (4, "H2")):
        atoms = ase.build.molecule(name)
        row = {"numbers": atoms.numbers, "positions": atoms.positions, "cell": atoms.cell, "pbc": atoms.pbc, "energy": -1.5 * ident, "charge": 1 + 2j, "calculator": None}  # fmt: skip
        items[str(ident).encode()] = packed(row)
    with source(write(tmp_path / "a.aselmdb", items)) as opened:
        assert (opened.layout, opened.total) == ("ase", 3)
        assert [opened.key(i) for i in range(3)] == ["1", "3", "4"]
        sample = opened.read(1)
        np.testing.assert_array_equal(sample["numbers"], ase.build.molecule("CH4").numbers)
        np.testing.assert_allclose(sample["positions"], ase.build.molecule("CH4").positions)
        assert sample["cell"].shape == (3, 3)
        assert complex(sample["charge"]) == 1 + 2j
        assert "calculator" not in sample


@pytest.mark.parametrize(
    "array",
    [
        [[2], "object", [1, 2]],
        [[2], "float64", ["a", "b"]],
        [[3], "float64", [1.0]],
        [[-1], "int64", [1]],
        5,
    ],
)
def test_an_array_of_ase_that_is_forged_is_a_bad_sample(tmp_path: Path, array: Any) -> None:
    row = zlib.compress(json.dumps({"x": {"__ndarray__": array}}).encode())
    items = {b"1": row, b"nextid": zlib.compress(b"2")}
    with (
        source(write(tmp_path / "db", items)) as opened,
        pytest.raises(BadValue, match="it has an array that is"),
    ):
        opened.read(0)


def molecule(size: int) -> dict[str, Any]:
    return {"atoms": ["C"] * size, "coordinates": [np.full((size, 3), size, "f4")], "smi": "C" * size, "target": 1.5}  # fmt: skip


def test_molecules_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    plain = numbered(tmp_path / "a", [pickled(molecule(i + 1)) for i in range(12)])
    with source(plain, fields=("smi", "target")) as opened:
        assert (opened.layout, opened.total, opened.codec) == ("unimol", 12, "pickle")
        assert [len(opened.read(i)["smi"]) for i in range(12)] == list(range(1, 13))
    items = {struct.pack(">I", i): gzip.compress(pickled(molecule(i % 5 + 1))) for i in range(300)}
    with source(write(tmp_path / "b", items)) as opened:
        assert (opened.layout, opened.total, opened.codec) == ("unimol", 300, "gzip+pickle")
        assert opened.key(256) == struct.pack(">I", 256).hex()
        assert "coordinates.0" in opened.read(299)


def test_wanted_fields_that_are_absent_are_told_with_those_that_there_are(tmp_path: Path) -> None:
    path = numbered(tmp_path / "a", [pickled(molecule(2))])
    with (
        source(path, fields=("smi", "mass")) as opened,
        pytest.raises(BadValue, match=r"no field 'mass'; it has 'atoms', 'coordinates', 'smi'"),
    ):
        opened.read(0)


def test_samples_of_pyxis_lie_in_a_named_database(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    image = np.arange(12, dtype=np.uint8).reshape(2, 6)

    def packed(array: np.ndarray) -> bytes:
        return msgpack.packb({b"type": 1, b"dtype": array.dtype.str, b"shape": list(array.shape), b"data": array.tobytes()})  # fmt: skip

    with lmdb.open(path, subdir=False, max_dbs=2, map_size=1 << 20) as env:
        data, meta = env.open_db(b"data_db"), env.open_db(b"meta_db")
        with env.begin(write=True) as txn:
            for i in range(3):
                value = {"X": packed(image + i), "y": packed(np.array(i, "<i4"))}
                txn.put(b"%010d" % i, msgpack.packb(value), db=data)
            txn.put(b"nb_samples", b"3", db=meta)
    with source(path) as opened:
        assert (opened.layout, opened.total, opened.key(2)) == ("pyxis", 3, "0000000002")
        np.testing.assert_array_equal(opened.read(2)["X"], image + 2)
        before = opened.values
        assert opened.changed() == ""
    with lmdb.open(path, subdir=False, max_dbs=2, map_size=1 << 20) as env:
        data = env.open_db(b"data_db")
        with env.begin(write=True) as txn:
            txn.put(b"%010d" % 2, msgpack.packb({"X": packed(image), "y": packed(np.array(9, "<i4"))}), db=data)  # fmt: skip
    with source(path) as opened:
        assert opened.values != before


def test_the_rewrite_of_pyxis_has_msgpack_for_names_and_keys(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    with lmdb.open(path, subdir=False, max_dbs=2, map_size=1 << 20) as env:
        main, meta = env.open_db(by_msgpack("main")), env.open_db(by_msgpack("metadata"))
        with env.begin(write=True) as txn:
            for i in (0, 1, 300):
                value = by_msgpack({"X": by_msgpack(np.full(3, i)), "y": by_msgpack(i)})
                txn.put(by_msgpack(i), value, db=main)
            txn.put(by_msgpack("__indices"), by_msgpack([0, 1, 300]), db=meta)
    with source(path) as opened:
        assert (opened.layout, opened.total) == ("pyxis2", 3)
        assert opened.read(2)["X"].tolist() == [300] * 3


def features(rows: int) -> dict[str, Any]:
    return {"features": np.full((rows, 4), rows, "f2"), "conf": np.ones(rows, "f2")}


def test_features_of_uniter_are_msgpack_or_npz(tmp_path: Path) -> None:
    def npz(arrays: dict[str, Any]) -> bytes:
        file, flag = io.BytesIO(), io.BytesIO()
        np.savez_compressed(file, **arrays)
        np.save(flag, np.array(False))
        with zipfile.ZipFile(file, "a") as members:  # what an old numpy made of its argument
            members.writestr("allow_pickle.npy", flag.getvalue())
        return file.getvalue()

    for name, coded in (("a", by_msgpack), ("b", npz)):
        items = {b"coco_%d.npz" % i: coded(features(10 + i)) for i in range(3)}
        order = ["coco_2.npz", "coco_0.npz", "coco_1.npz"]
        path = write(tmp_path / name, items | {b"__keys__": json.dumps(order).encode()})
        with source(path) as opened:
            assert (opened.layout, [opened.key(i) for i in range(3)]) == ("uniter", order)
            sample = opened.read(0)
            assert set(sample) == {"features", "conf"}
            assert sample["features"].shape == (12, 4)


def test_texts_of_uniter_have_their_keys_beside_them(tmp_path: Path) -> None:
    items = {b"q%d" % i: lz4.frame.compress(by_msgpack({"input_ids": [101] * (i + 3)})) for i in range(3)}  # fmt: skip
    path = write(tmp_path / "txt_db", items, subdir=True)
    (tmp_path / "txt_db" / "id2len.json").write_text(json.dumps({"q2": 5, "q0": 3, "q1": 4}))
    with source(path) as opened:
        assert (opened.layout, opened.codec) == ("uniter_text", "lz4+msgpack")
        assert [opened.key(i) for i in range(3)] == ["q2", "q0", "q1"]
        assert opened.read(0)["input_ids"].shape == (5,)


def test_features_of_mmf_and_vilbert_are_arrays_of_as_many_rows_as_boxes(tmp_path: Path) -> None:
    boxes = np.arange(12, dtype="<f4").reshape(3, 4)
    vilbert = {"image_id": "7", "num_boxes": 3, "boxes": base64.b64encode(boxes.data), "features": base64.b64encode((boxes * 2).data)}  # fmt: skip
    mmf = {"feature_path": "val/7", "features": boxes, "num_boxes": 3}
    for name, value in (("a", vilbert), ("b", mmf)):
        path = write(tmp_path / name, {b"7": pickled(value), b"keys": pickled([b"7"])})
        with source(path) as opened:
            assert (opened.layout, opened.total) == ("mmf", 1)
            assert opened.read(0)["features"].shape == (3, 4)
    broken = {**vilbert, "boxes": base64.b64encode(b"12345")}
    path = write(tmp_path / "c", {b"7": pickled(broken), b"keys": pickled(["7"])})
    with source(path) as opened, pytest.raises(BadValue, match="5 bytes, which are not 3 rows"):
        opened.read(0)


def test_images_of_chinese_clip_are_base64_of_either_alphabet(tmp_path: Path) -> None:
    items = {b"1000": base64.urlsafe_b64encode(JPEG), b"1001": base64.b64encode(JPEG), b"num_images": b"2"}  # fmt: skip
    assert [s["image"] for s in samples(write(tmp_path / "imgs", items))] == [JPEG, JPEG]
    pairs = numbered(tmp_path / "pairs", [pickled((1000, j, f"文本 {j}")) for j in range(3)], num_samples=b"3")  # fmt: skip
    assert layout_of(pairs) == "chinese_clip_pairs"
    assert samples(pairs, fields=("image_id", "text_id", "text"))[2]["text"] == "文本 2"


def test_images_of_stylegan2_come_in_each_of_their_sizes(tmp_path: Path) -> None:
    items = {b"%d-%05d" % (size, i): JPEG for size in (128, 256) for i in range(3)}
    path = write(tmp_path / "a", items | {b"length": b"3"})
    with source(path) as opened:
        assert (opened.layout, opened.total) == ("stylegan2", 3)
        assert opened.read(2).encoded == {"image.128", "image.256"}
    with source(path, fields=("image.256",)) as opened:
        assert opened.key(1) == "256-00001"
    with pytest.raises(SourceError, match=r"no field 'image\.64'; it has image\.128, image\.256"):
        source(path, fields=("image.64",))
    one = write(tmp_path / "b", {b"64-%05d" % i: JPEG for i in range(2)} | {b"length": b"2"})
    assert set(samples(one)[0]) == {"image"}


def latents(path: Path, count: int, stated: bytes, dtype: str = "<f2") -> str:
    items = {b"latents_shape": stated, b"prompts_shape": b"%d" % count}
    for i in range(count):
        items[b"latents_%d_data" % i] = np.full((2, 3), i, dtype).tobytes()
        items[b"prompts_%d_data" % i] = b"a cat %d" % i
    return write(path, items)


def test_latents_are_rows_of_the_stored_shape_and_prompts_are_text(tmp_path: Path) -> None:
    with source(latents(tmp_path / "a", 12, b"12 2 3")) as opened:
        assert (opened.layout, opened.total) == ("latents", 12)
        sample = opened.read(11)
        assert (sample["latents"].dtype, sample["latents"].shape) == (np.float16, (2, 3))
        assert sample["latents"][0, 0] == 11
        assert sample["prompts"] == "a cat 11"
        assert "taken for float16" in opened.warnings[0]
    with source(latents(tmp_path / "b", 2, b"2 2 3", "<f4")) as opened:
        assert opened.read(0)["latents"].dtype == np.float32
    options: dict[str, Any] = {"dtype": {"latents": "int16"}, "shape": {"latents": (3, 2)}}
    with source(latents(tmp_path / "c", 2, b"2 2 3"), **options) as opened:
        assert opened.read(0)["latents"].shape == (3, 2)
        assert opened.warnings == ()
    with pytest.raises(SourceError, match="no float16 or float32 of shape"):
        source(latents(tmp_path / "d", 2, b"2 5 5"))
    with source(latents(tmp_path / "e", 3, b"2 2 3")) as opened:
        assert opened.total == 3
        assert "says that it has 2 samples, and has 3" in opened.warnings[0]


def test_frames_of_deepmd_are_tables_of_arrays(tmp_path: Path) -> None:
    def packed(array: np.ndarray) -> dict[str, Any]:
        return {"type": str(array.dtype), "shape": list(array.shape), "data": array.tobytes()}

    frames = [msgpack.packb({"coords": packed(np.full((i + 1, 3), i, "f4")), "n": i}) for i in range(3)]  # fmt: skip
    meta = msgpack.packb({"nframes": 3, "frame_idx_fmt": "012d"})
    path = numbered(tmp_path / "db", frames, "%012d", __metadata__=meta)
    with source(path) as opened:
        assert (opened.layout, opened.total, opened.key(2)) == ("deepmd", 3, "000000000002")
        assert opened.read(2)["coords"].shape == (3, 3)
    broken = numbered(tmp_path / "b", frames, "%012d", __metadata__=b"\x80")
    with pytest.raises(SourceError, match="__metadata__ cannot be read"):
        source(broken)


def test_safetensors_and_features_of_sorel_are_recognised(tmp_path: Path) -> None:
    bands = {"B02": np.arange(4, dtype="u2").reshape(2, 2), "B05": np.zeros(3, "f4")}
    path = write(tmp_path / "a", {b"S2A_%d" % i: safetensors.numpy.save(bands) for i in range(2)})
    with source(path) as opened:
        assert (opened.layout, opened.total) == ("safetensors", 2)
        np.testing.assert_array_equal(opened.read(0)["B02"], bands["B02"])
    row = zlib.compress(msgpack.packb({0: [0.5, 1.5, 2.0]}))
    sorel = write(tmp_path / "b", {b"%064x" % i: row for i in range(3)})
    with source(sorel) as opened:
        assert (opened.layout, opened.codec) == ("sorel", "zlib+msgpack")
        assert opened.read(1)["features"].tolist() == [0.5, 1.5, 2.0]


def test_any_values_that_are_coded_alike_are_read(tmp_path: Path) -> None:
    vectors = {word.encode(): pickled(np.full(4, at, "f4")) for at, word in enumerate(("the", "café"))}  # fmt: skip
    with source(write(tmp_path / "a", vectors)) as opened:
        assert (opened.layout, opened.total, opened.key(0)) == ("values", 2, "café")
        assert opened.read(0)["array"].tolist() == [1.0] * 4
    file = io.BytesIO()
    np.save(file, np.arange(3))
    with source(numbered(tmp_path / "b", [file.getvalue()] * 12)) as opened:
        assert (opened.layout, opened.codec, opened.total) == ("values", "npy", 12)
        assert opened.read(11)["array"].tolist() == [0, 1, 2]
    mixed = numbered(tmp_path / "c", [pickled({"x": 1}), JPEG])
    with pytest.raises(SourceError, match="no other is recognised"):
        source(mixed)
    with source(mixed, "values") as opened, pytest.raises(BadValue, match="it is no pickle"):
        opened.read(1)


@pytest.mark.parametrize("forged", ["object", "other shape", "cut"])
def test_an_npz_that_is_forged_is_a_bad_sample(tmp_path: Path, forged: str) -> None:
    file = io.BytesIO()
    array = np.array([{}], object) if forged == "object" else np.zeros(4)
    np.savez(file, x=array)
    data = file.getvalue()
    if forged == "other shape":
        data = data.replace(b"'shape': (4,)", b"'shape': (9,)")
    if forged == "cut":
        data = data[:-30]
    good = io.BytesIO()
    np.savez(good, x=np.zeros(4))
    path = numbered(tmp_path / "db", [good.getvalue(), data])
    with source(path, "values") as opened, pytest.raises(BadValue):
        opened.read(1)
