"""Original files of well-known datasets, numpy's files, and other databases."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderd.data.errors import SourceError
from loaderd_testing import packing
from loaderd_testing.foreign_databases import numbered
from loaderd_testing.packing import Packed
from loaderd_testing.sample_builders import coded, picture


def refused(kind: str, src: Path, why: str, **options: Any) -> None:
    """Packing it is refused with these words, in one line that names a file of it."""
    with pytest.raises(SourceError, match=why) as caught:
        Packed(kind, src, src.parent / "refused.lmdb", **options)
    assert "\n" not in str(caught.value)


# MNIST


def test_mnist_is_read_from_torchvisions_folder_and_from_a_named_file(tmp_path: Path) -> None:
    raw = packing.write_mnist(tmp_path)
    packing.write_mnist(tmp_path, "t10k", 3)
    for name in ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        (raw / f"{name}.gz").write_bytes(gzip.compress((raw / name).read_bytes()))
        (raw / name).unlink()
    whole = Packed("mnist", tmp_path, tmp_path / "a")
    assert len(whole.samples) == 5
    assert whole.report.notes == (
        "packed train-images-idx3-ubyte; for others name their file of images",
    )
    test = Packed("mnist", raw / "t10k-images-idx3-ubyte.gz", tmp_path / "b")
    assert [int(one["label"]) for one in test.samples.values()] == [0, 1, 2]
    assert test.samples["2"]["image"].shape == (28, 28, 1)


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("images-idx3", lambda data: data[:-1], "bytes need 3,936"),
        ("images-idx3", lambda data: b"\0" + data, "is no IDX file of 3 axes"),
        ("images-idx3", lambda data: data[:9], "has 9 bytes, and is no IDX file"),
        ("images-idx3", lambda data: gzip.compress(data)[:-20], "damaged"),
        ("images-idx3", lambda data: data[:4] + b"\xff" * 12, "bytes need"),
        (
            "labels-idx1",
            lambda data: data[:4] + b"\0\0\0\4" + data[8:12],
            "has 5 images, .* 4 labels",
        ),
    ],
)
def test_a_damaged_file_of_mnist_is_refused_with_its_sizes(
    tmp_path: Path, name: str, change: Callable[[bytes], bytes], why: str
) -> None:
    path = packing.write_mnist(tmp_path) / f"train-{name}-ubyte"
    path.write_bytes(change(path.read_bytes()))
    refused("mnist", tmp_path / "MNIST", why)


def test_what_is_not_mnist_is_refused_with_what_to_name(tmp_path: Path) -> None:
    refused("mnist", tmp_path / "none", "there is no such file or folder")
    raw = packing.write_mnist(tmp_path)
    refused("mnist", raw / "train-labels-idx1-ubyte", "is no file of images")
    (raw / "train-labels-idx1-ubyte").unlink()
    refused("mnist", raw, "there is no train-labels-idx1-ubyte beside it")
    (raw / "train-images-idx3-ubyte").unlink()
    refused("mnist", raw, "name a file of images")


# CIFAR


def test_cifar_100_has_both_labels_and_the_names_of_the_fine_ones(tmp_path: Path) -> None:
    root = packing.write_cifar(tmp_path, ["train", "test"], fine=True)
    meta = {b"fine_label_names": [b"apple", b"fish"], b"coarse_label_names": [b"food"]}
    (root / "batches.meta").unlink()
    (root / "meta").write_bytes(pickle.dumps(meta, 2))
    packed = Packed("cifar", root / "test", tmp_path / "db")
    assert packed.classes == ("apple", "fish")
    assert [(int(s["label"]), int(s["coarse_label"])) for s in packed.samples.values()] == [
        (1, 0),
        (1, 1),
    ]


@pytest.mark.parametrize(("name", "labels"), [("data_batch_1.bin", 1), ("test.bin", 2)])
def test_the_binary_files_of_cifar_are_read_too(tmp_path: Path, name: str, labels: int) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (3, labels + 3072), np.uint8)
    (tmp_path / name).write_bytes(rows.tobytes())
    packed = Packed("cifar", tmp_path / name, tmp_path / "db")
    for row, sample in zip(rows, packed.samples.values(), strict=True):
        assert sample["label"] == row[labels - 1]
        planes = row[labels:].reshape(3, 32, 32)
        assert (sample["image"] == planes.transpose(1, 2, 0)).all()


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("run",))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({b"data": Evil()}, "print"),
        ([1], "its pickle is no table"),
        ({b"labels": [1]}, "it has no data of 3,072 bytes a row"),
        ({b"data": np.zeros((2, 3072), np.uint8)}, "it has no labels"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, "not as many labels"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": ["a", "b"]}, "labels are no numbers"),
    ],
)
def test_a_pickle_that_is_no_batch_is_refused_and_runs_nothing(
    tmp_path: Path, value: Any, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_batch").write_bytes(pickle.dumps(value, 2))
    refused("cifar", tmp_path / "test_batch", why)
    assert capsys.readouterr().out == ""


def test_a_training_set_of_cifar_without_one_of_its_files_is_refused(tmp_path: Path) -> None:
    root = packing.write_cifar(tmp_path)
    (root / "data_batch_3").unlink()
    refused("cifar", tmp_path, r"data_batch_3: is missing; the training set has 5 files")
    (tmp_path / "cifar-10-python.tar.gz").touch()
    refused("cifar", tmp_path / "cifar-10-python.tar.gz", "tar xzf cifar-10-python.tar.gz")
    refused("cifar", tmp_path / "none", "there is no such file or folder")
    (tmp_path / "empty").mkdir()
    refused("cifar", tmp_path / "empty", "neither data_batch_1 to data_batch_5 nor train")
    (tmp_path / "x_batch.bin").write_bytes(b"x" * 3072)
    refused("cifar", tmp_path / "x_batch.bin", "no rows of 3,073")


# COCO


def test_bad_images_of_coco_are_named_and_the_others_are_packed(tmp_path: Path) -> None:
    table = packing.coco_table()
    of = {row["image_id"]: row for row in table["annotations"]}
    of[101]["bbox"] = [1, 2, 3]
    of[102]["category_id"] = 99
    of[103] |= {"bbox": ["a", 1, 2, 3]}
    table["images"] += [{"id": 7, "file_name": "none.png"}, {"id": 8}]
    table["annotations"].append({"image_id": 12345, "bbox": [0, 0, 1, 1], "category_id": 3})
    packed = Packed("coco", packing.write_coco(tmp_path, table), tmp_path / "db")
    assert list(packed.samples) == ["000000000000.png", "000000000004.png"]
    whys = [
        "a bbox that cannot be",
        "category_id 99",
        "a bbox that",
        "No such file",
        "no file_name",
    ]
    for why, said in zip(whys, packed.bad.values(), strict=True):
        assert why in said
    assert "1 annotations are of images that the file does not have" in packed.report.notes
    assert packed.samples["000000000000.png"]["boxes"].shape == (0, 4)


def test_keypoints_come_with_the_boxes(tmp_path: Path) -> None:
    table = packing.coco_table()
    for row in table["annotations"]:
        row["keypoints"] = list(range(6))
    packed = Packed("coco", packing.write_coco(tmp_path, table), tmp_path / "db")
    sizes = [one["keypoints"].shape for one in packed.samples.values()]
    assert sizes[1:] == [(n, 2, 3) for n in range(1, 5)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[", "is not JSON"),
        ("[]", "is not a file of COCO: it is a list"),
        ('{"images": []}', "has no images"),
        ('{"images": [1]}', "it has no list of images"),
        ('{"images": [{"id": 1}, {"id": 1}]}', "not all of its images have an id of their own"),
        ('{"images": [{"id": 1}]}', "it has no list of categories"),
    ],
)
def test_what_is_no_file_of_coco_is_refused(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "a.json").write_text(text)
    refused("coco", tmp_path / "a.json", why)
    refused("coco", tmp_path, "Is a directory; give a file of annotations, such as annotations/")


def test_images_that_are_not_found_are_asked_for(tmp_path: Path) -> None:
    path = packing.write_coco(tmp_path)
    (tmp_path / "train2017").rename(tmp_path / "elsewhere")
    refused("coco", path, r'say where with --args \'{"images": "FOLDER"}\'')
    refused("coco", path, "is not a folder", args={"images": "/nowhere"})
    refused("coco", path, "unknown word 'image'", args={"image": "x"})
    args = {"images": str(tmp_path / "elsewhere")}
    assert len(Packed("coco", path, tmp_path / "db", args=args).samples) == 5


# numpy's files


def test_each_of_several_files_is_a_sample_and_a_bad_one_is_named(tmp_path: Path) -> None:
    source = tmp_path / "src" / "deep"
    source.mkdir(parents=True)
    for at in range(3):
        np.save(source / f"{at}.npy", np.full((at + 1, 2), at, np.float32))
    np.save(source / "o.npy", np.array([None, {}], object), allow_pickle=True)
    (source / "t.npy").write_bytes((source / "2.npy").read_bytes()[:-1])
    packed = Packed("npy", tmp_path / "src", tmp_path / "db")
    assert [one["array"].tolist() for one in packed.samples.values()] == [
        [[at, at]] * (at + 1) for at in range(3)
    ]
    assert "dtype" in packed.bad["o.npy"]
    assert "bytes of data" in packed.bad["t.npy"]


def test_arrays_that_share_their_rows_are_fields(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    np.save(tmp_path / "src" / "x.npy", np.arange(12, dtype=np.int16).reshape(4, 3))
    np.save(tmp_path / "src" / "y.npy", np.arange(4))
    packed = Packed("npy", tmp_path / "src", tmp_path / "db", args={"rows": True})
    assert packed.samples["3"]["x"].tolist() == [9, 10, 11]
    assert packed.samples["3"]["y"] == 3
    np.save(tmp_path / "src" / "z.npy", np.arange(5))
    refused(
        "npy", tmp_path / "src", "different numbers of rows: x 4, y 4, z 5", args={"rows": True}
    )
    np.save(tmp_path / "src" / "z.npy", np.array(5))
    refused("npy", tmp_path / "src", "z is a single number", args={"rows": True})
    refused("npy", tmp_path / "src", '"rows": true', args={"row": True})


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is empty"),
        (b"x" * 200, "it is a .npy file that is damaged"),
        (b"\x93NUMPY\1\0\xff\xff", "it is a .npy file that is damaged"),
    ],
)
def test_a_file_that_is_not_numpys_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / "a.npy").write_bytes(data)
    refused("npy", tmp_path / "a.npy", why)
    refused("npy", tmp_path / "b.npy", "there is no such file")


# Other databases


def test_a_database_keeps_names_and_order_and_a_bad_value_is_named(tmp_path: Path) -> None:
    values = [coded(picture(8, 8, seed=at), "JPEG") for at in range(4)]
    values[2] = values[2][:100]
    numbered(tmp_path / "theirs", values, "img%d.jpg")
    packed = Packed("lmdb", tmp_path / "theirs", tmp_path / "db", random_access=False)
    assert list(packed.samples) == ["img0.jpg", "img1.jpg", "img3.jpg"]
    assert packed.samples["img3.jpg"]["image"] == values[3]
    assert "JPEG" in packed.bad["img2.jpg"]


def test_a_database_that_says_nothing_of_itself_is_described_as_in_a_config(tmp_path: Path) -> None:
    numbered(tmp_path / "theirs", [np.full(3, at, "<f4").tobytes() for at in range(4)])
    args = {"layout": "raw", "dtype": "float32", "shape": [3], "key_format": "{i}"}
    packed = Packed("lmdb", tmp_path / "theirs", tmp_path / "db", args=args, shuffle=1)
    assert sorted(float(one["array"][0]) for one in packed.samples.values()) == [0, 1, 2, 3]
    refused("lmdb", tmp_path / "theirs", "unknown word 'dtyp'", args={"dtyp": "x"})
    refused("lmdb", tmp_path / "theirs", "count: ", args={"count": "many"})


def test_a_database_of_ours_keeps_its_classes_and_can_be_packed_again(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / "src" / name).mkdir(parents=True)
        (tmp_path / "src" / name / "1.png").write_bytes(coded(picture()))
    first = Packed("imagefolder", tmp_path / "src", tmp_path / "one")
    second = Packed("lmdb", tmp_path / "one", tmp_path / "two", fields=("label",))
    assert (second.classes, list(second.samples)) == (("a", "b"), list(first.samples))
    assert set(second.samples["a/1.png"]) == {"label"}
    table = json.dumps({key: int(one["label"]) for key, one in second.samples.items()})
    assert table == '{"a/1.png": 0, "b/1.png": 1}'
