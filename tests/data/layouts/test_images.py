"""Databases of images: scene text, Caffe, files by key, raw pictures."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from loaderd.data.errors import SourceError
from loaderd.data.sample import BadValue
from loaderd_testing.foreign_databases import (
    JPEG,
    PNG,
    bytes_field,
    datum,
    float_field,
    layout_of,
    number_field,
    numbered,
    pickled,
    samples,
    source,
)
from loaderd_testing.sample_builders import picture, write


def scene_text(path: Path, words: list[str], stated: int | None = None) -> str:
    items = {b"image-%09d" % i: JPEG for i in range(1, len(words) + 1)}
    items |= {b"label-%09d" % i: word.encode() for i, word in enumerate(words, 1)}
    count = len(words) if stated is None else stated
    return write(path, items | {b"num-samples": b"%d" % count})


def test_scene_text_has_an_image_and_a_label_from_number_one_on(tmp_path: Path) -> None:
    path = scene_text(tmp_path / "db", ["hello", "naïve", "你好"])
    with source(path) as opened:
        assert (opened.layout, opened.total, opened.key(0)) == ("scene_text", 3, "image-000000001")
        assert opened.read(0).encoded == {"image"}
    assert [sample["label"] for sample in samples(path)] == ["hello", "naïve", "你好"]
    assert set(samples(path, fields=("label",))[0]) == {"label"}
    with pytest.raises(SourceError, match=r"no keys such as words-000000001"):
        source(path, fields=("words",))


@pytest.mark.parametrize("stated", [1, 2, 4, 9000])
def test_a_wrong_number_of_texts_is_told_and_all_of_them_are_read(
    tmp_path: Path, stated: int
) -> None:
    with source(scene_text(tmp_path / "db", ["a", "b", "c"], stated)) as opened:
        assert opened.total == 3
        assert f"says that it has {stated:,} samples, and has 3" in opened.warnings[0]
        assert opened.read(2)["label"] == "c"


def test_pairs_of_textzoom_and_labels_of_mmocr_are_scene_text(tmp_path: Path) -> None:
    zoom = write(tmp_path / "zoom", {
        b"image_hr-000000001": JPEG, b"image_lr-000000001": PNG, b"label-000000001": b"word", b"num-samples": b"1",
    })  # fmt: skip
    (sample,) = samples(zoom)
    assert (sample["image_hr"], sample["image_lr"], sample["label"]) == (JPEG, PNG, "word")
    label = json.dumps({"filename": "1.jpg", "text": "GRAND"}).encode()
    only = write(tmp_path / "labels", {b"label-000000001": label, b"num-samples": b"1"})
    assert samples(only) == [{"filename": "1.jpg", "text": "GRAND"}]


def test_a_label_that_is_no_text_and_one_that_is_missing_are_bad_samples(tmp_path: Path) -> None:
    items = {b"image-%09d" % i: JPEG for i in (1, 2)} | {b"label-000000001": b"\xff"}
    with source(write(tmp_path / "db", items | {b"num-samples": b"2"})) as opened:
        with pytest.raises(BadValue, match="not UTF-8"):
            opened.read(0)
        with pytest.raises(BadValue, match="no key 'label-000000002'"):
            opened.read(1)


def test_caffe_pictures_come_in_rows_of_red_green_blue(tmp_path: Path) -> None:
    pixels = picture(6, 5)
    blue_first = np.ascontiguousarray(pixels[:, :, ::-1].transpose(2, 0, 1)).tobytes()
    path = write(tmp_path / "db", {
        b"00000000_n01/a.jpg": datum((3, 6, 5), 3, blue_first),
        b"00000002_n02/b.jpg": datum((3, 16, 20), 7, JPEG, encoded=True),
        b"00000003_gray": datum((1, 2, 2), 0, b"\1\2\3\4"),
    })  # fmt: skip
    with source(path) as opened:
        assert (opened.layout, opened.total) == ("caffe", 3)
        first = opened.read(0)
        np.testing.assert_array_equal(first["image"], pixels)
        assert first.images == {"image"}
        assert int(first["label"]) == 3
        assert opened.read(1).encoded == {"image"}
        assert opened.read(2)["image"].shape == (2, 2, 1)


def test_caffe_features_empty_pictures_and_damaged_messages(tmp_path: Path) -> None:
    sizes = number_field(1, 4) + number_field(2, 1) + number_field(3, 1)
    floats = b"".join(float_field(6, x) for x in (0.5, 1.5, -2.0, 3.0))
    packed = bytes_field(6, struct.pack("<4f", 0.5, 1.5, -2.0, 3.0))
    minus = number_field(5, (1 << 64) - 1)
    empty = datum((0, 0, 0), 0)
    path = numbered(tmp_path / "db", [sizes + floats, sizes + packed + minus, sizes, empty, sizes + bytes_field(4, b"abc")], "%08d")  # fmt: skip
    with source(path, layout="caffe") as opened:
        for index, label in ((0, 0), (1, -1)):
            sample = opened.read(index)
            assert sample["data"].ravel().tolist() == [0.5, 1.5, -2.0, 3.0]
            assert int(sample["label"]) == label
        for index, reason in (
            (2, "4 bytes, and 0 bytes"),
            (3, "empty picture"),
            (4, "4 bytes, and 3 bytes"),
        ):
            with pytest.raises(BadValue, match=reason):
                opened.read(index)


def test_tensors_of_caffe2_are_read(tmp_path: Path) -> None:
    def tensor(kind: int, payload: bytes) -> bytes:
        return bytes_field(1, number_field(2, kind) + payload)

    values = [tensor(4, bytes_field(6, JPEG)) + tensor(2, number_field(4, i)) for i in range(11)]
    path = numbered(tmp_path / "db", values)
    with source(path) as opened:
        assert (opened.layout, opened.total) == ("caffe2", 11)
        assert opened.read(10)["image"] == JPEG
        assert int(opened.read(10)["label"]) == 10


def test_images_under_hashes_and_under_raw_bytes_have_names(tmp_path: Path) -> None:
    digests = [hashlib.sha1(b"%d" % i).hexdigest().encode() for i in range(4)]
    lsun = write(tmp_path / "lsun", dict.fromkeys(digests, JPEG))
    raw = [hashlib.md5(b"%d" % i).digest() for i in range(4)]
    siamfc = write(tmp_path / "siamfc", dict.fromkeys(raw, JPEG))
    with source(lsun) as opened:
        assert (opened.layout, opened.total, opened.key(0)) == ("lsun", 4, min(digests).decode())
    with source(siamfc) as opened:
        assert (opened.layout, opened.total, opened.key(0)) == ("siamfc", 4, min(raw).hex())
        assert opened.read(3)["image"] == JPEG


def test_files_by_key_are_read_in_the_order_of_an_index_with_labels(tmp_path: Path) -> None:
    keys = [f"train/n0 14/{i:03d}.JPEG" for i in range(3)]
    path = write(tmp_path / "db", {key.encode(): JPEG for key in keys})
    assert layout_of(path) == "files"
    index = tmp_path / "train.txt"
    index.write_text("".join(f"{key} {10 - i}\n" for i, key in enumerate(reversed(keys))) + "train/gone.JPEG 3\n")  # fmt: skip
    with source(path, index_file=str(index)) as opened:
        assert [opened.key(i) for i in range(3)] == keys[::-1]
        assert [int(opened.read(i)["label"]) for i in range(3)] == [10, 9, 8]
        with pytest.raises(BadValue, match=r"has no key 'train/gone\.JPEG'"):
            opened.read(3)
        first = opened.identity
    index.write_text(index.read_text().replace(" 10\n", " 11\n"))
    with source(path, index_file=str(index)) as opened:
        assert opened.identity != first  # other labels are other data


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.txt", "b\na\n", ["b", "a"]),
        ("a.csv", "b,cat\na,dog\n", ["b", "a"]),
        ("a.tsv", "b\tbig cat\na\tdog\n", ["b", "a"]),
        ("a.json", '["b", "a"]', ["b", "a"]),
        ("b.json", '{"a": 7, "b": 5}', ["a", "b"]),
        ("c.json", '{"s": ["x", "y"]}', ["s/x", "s/y"]),
    ],
)  # fmt: skip
def test_an_index_is_lines_or_json(
    tmp_path: Path, name: str, text: str, expected: list[str]
) -> None:
    path = write(tmp_path / "db", dict.fromkeys((b"a", b"b", b"s/x", b"s/y"), JPEG))
    (tmp_path / name).write_text(text)
    with source(path, index_file=str(tmp_path / name)) as opened:
        assert [opened.key(i) for i in range(opened.total)] == expected
        if "," in text and name.endswith("csv"):
            assert opened.read(0)["label"] == "cat"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.txt", "", "lists no keys"),
        ("a.json", "{", "is not JSON"),
        ("a.json", "[1]", "is no list or table of keys"),
        ("a.txt", "a 1\nb\n", "line 2 has no label"),
    ],
)
def test_an_index_that_cannot_be_used_is_an_error_that_names_it(
    tmp_path: Path, name: str, text: str, reason: str
) -> None:
    path = write(tmp_path / "db", {b"a": JPEG})
    (tmp_path / name).write_text(text)
    with pytest.raises(SourceError, match=re.escape(f"{name}: {reason}")):
        source(path, index_file=str(tmp_path / name))
    with pytest.raises(SourceError, match=r"gone\.txt: cannot be read"):
        source(path, index_file=str(tmp_path / "gone.txt"))


def test_basicsr_takes_its_keys_from_meta_info_without_extensions(tmp_path: Path) -> None:
    keys = ["000/00000001", "000/00000000", "001/a.b"]
    path = write(tmp_path / "gt.lmdb", {key.encode(): PNG for key in keys}, subdir=True)
    (tmp_path / "gt.lmdb" / "meta_info.txt").write_text("".join(f"{key}.png (24,32,3) 1\n" for key in keys))  # fmt: skip
    with source(path) as opened:
        assert (opened.layout, opened.total, opened.warnings) == ("basicsr", 3, ())
        assert [opened.key(i) for i in range(3)] == keys
        assert opened.read(2)["image"] == PNG


def test_raw_pictures_of_mmsr_have_their_sizes_beside_them(tmp_path: Path) -> None:
    pixels = picture(4, 5)
    blue_first = np.ascontiguousarray(pixels[:, :, ::-1])
    path = write(tmp_path / "gt.lmdb", {b"0001": blue_first.tobytes(), b"0002": b"short"}, subdir=True)  # fmt: skip
    info = {"name": "x", "resolution": ["3_4_5"], "keys": ["0001", "0002"]}
    (tmp_path / "gt.lmdb" / "meta_info.pkl").write_bytes(pickled(info))
    with source(path) as opened:
        assert opened.layout == "mmsr"
        np.testing.assert_array_equal(opened.read(0)["image"], pixels)
        with pytest.raises(BadValue, match="60 bytes, and 5 bytes"):
            opened.read(1)


def test_raw_numbers_need_a_dtype_and_are_read_with_it(tmp_path: Path) -> None:
    rows = {b"P01_frame_%010d.jpg" % i: np.full(8, i, "<f4").tobytes() for i in (1, 2, 4)}
    path = write(tmp_path / "db", rows)
    with pytest.raises(SourceError, match='layout = "raw" and dtype = "float32"'):
        source(path)
    with pytest.raises(SourceError, match="needs dtype"):
        source(path, "raw")
    assert [s["array"].tolist() for s in samples(path, "raw", dtype="float32")] == [[float(i)] * 8 for i in (1, 2, 4)]  # fmt: skip
    with source(path, "raw", dtype="float32", shape=(2, -1), fields=("rgb",)) as opened:
        assert opened.read(0)["rgb"].shape == (2, 4)
    with (
        source(path, "raw", dtype="float32", shape=(3, -1)) as opened,
        pytest.raises(BadValue, match="no whole number of pieces of 12 bytes"),
    ):
        opened.read(0)
    form = "P01_frame_{i:010d}.jpg"
    with source(path, "raw", dtype="float32", key_format=form) as opened:
        assert opened.total == 3
        assert "1 of its numbers from 1 to 4 are missing: 3" in opened.warnings[0]


def test_several_keys_make_a_sample_where_each_field_has_its_pattern(tmp_path: Path) -> None:
    items: dict[bytes, bytes] = {b"len": b"3"}
    for i in range(3):
        items |= {b"rgb_%04d" % i: picture(4, 6, i).tobytes(), b"control_%04d" % i: np.full(3, i, "<f4").tobytes(), b"said_%04d" % i: b"go %d" % i}  # fmt: skip
    options: dict[str, Any] = {
        "key_format": {"rgb": "rgb_{i:04d}", "control": "control_{i:04d}", "said": "said_{i:04d}"},
        "dtype": {"rgb": "uint8", "control": "float32", "said": "text"},
        "shape": {"rgb": (4, 6, 3)},
    }
    with source(write(tmp_path / "db", items), "raw", **options) as opened:
        assert (opened.total, opened.key(1)) == (3, "rgb_0001")
        sample = opened.read(2)
        np.testing.assert_array_equal(sample["rgb"], picture(4, 6, 2))
        assert sample.images == {"rgb"}
        assert sample["control"].tolist() == [2.0] * 3
        assert sample["said"] == "go 2"


@pytest.mark.parametrize("form", ["u32be", "u32le", "u64be", "u64le"])
def test_keys_that_are_binary_numbers_are_read_in_their_order(tmp_path: Path, form: str) -> None:
    code = {"u32be": ">I", "u32le": "<I", "u64be": ">Q", "u64le": "<Q"}[form]
    items = {struct.pack(code, i): np.full(2, i, "<i4").tobytes() for i in range(300)}
    found = samples(write(tmp_path / "db", items), "raw", dtype="int32", key_format=form)
    assert [int(sample["array"][0]) for sample in found] == list(range(300))


def test_the_wrong_layout_by_name_is_refused_with_the_right_one(tmp_path: Path) -> None:
    path = scene_text(tmp_path / "db", ["a"])
    with pytest.raises(SourceError, match=r'layout = "tape": is not of this layout, which is recognised by num_examples; it looks like layout = "scene_text"'):  # fmt: skip
        source(path, "tape")


def test_the_options_of_a_layout_are_refused_where_they_mean_nothing(tmp_path: Path) -> None:
    path = scene_text(tmp_path / "db", ["a", "b"])
    with source(path, count=1) as opened:
        assert opened.total == 1
    with pytest.raises(SourceError, match=r"count = 3: it has 2 samples"):
        source(path, count=3)


def test_records_of_named_databases_are_never_taken_for_values(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    with lmdb.open(path, subdir=False, max_dbs=4, map_size=1 << 20) as env:
        for name in (b"0", b"1"):
            inner = env.open_db(name)
            with env.begin(write=True) as txn:
                txn.put(b"x", b"y", db=inner)
    with pytest.raises(SourceError, match="a named database"):
        source(path)
