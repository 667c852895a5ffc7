"""Sources of every kind that `loaderd pack` takes, packed in this process and read back."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import lmdb
import numpy as np
import pyarrow
from pyarrow import parquet

from loaderd.config.stream import StreamConfig
from loaderd.data.packing.inputs import PackOptions, pack_source
from loaderd.data.packing.kinds import opened
from loaderd.data.packing.source import SourceOptions
from loaderd.data.packing.writer import PackReport
from loaderd.data.sample import Sample
from loaderd.data.sources.source import Source
from loaderd_testing.sample_builders import coded, picture
from loaderd_testing.sample_builders import write as write_items

Samples = list[dict[str, Any]]


class Packed:
    """A packed source.

    Attributes:
        report: What `pack` said.
        samples: Each with its name, its arrays and bytes copied.
    """

    def __init__(
        self,
        kind: str,
        src: str | Path,
        db: Path,
        *,
        fields: tuple[str, ...] = (),
        args: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        said = SourceOptions(fields=fields, args=args or {})
        self.report: PackReport = pack_source(
            opened(kind, str(src), said), str(db), PackOptions(**options)
        )
        self.samples: dict[str, dict[str, Any]] = {}
        with Source(StreamConfig("t", lmdb=str(db))) as source:
            self.classes = source.classes
            for index in range(source.total):
                self.samples[source.key(index)] = _copied(source.read(index))

    @property
    def bad(self) -> dict[str, str]:
        """What was left out, with the reason."""
        return dict(self.report.bad)


def _copied(sample: Sample) -> dict[str, Any]:
    return {
        name: value.copy() if hasattr(value, "copy") else _plain(value)
        for name, value in sample.items()
    }


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else bytes(value)


# One source of each kind, by a writer that is not ours: what writes it into a folder, what reads it
# as it is read without loaderd, and what a stream of it needs.


def write_webdataset(folder: Path) -> None:
    """Shards of webdataset's own writer."""
    from webdataset.writer import ShardWriter  # it imports torch, which few tests here need

    (folder / "shards").mkdir()
    with ShardWriter(f"{folder}/shards/s-%02d.tar", maxcount=3, verbose=0) as sink:
        for at in range(5):
            sink.write(
                {
                    "__key__": f"d/{at:03}",
                    "png": coded(picture(seed=at)),
                    "cls": at % 3,
                    "txt": f"grüße {at}",
                    "json": {"size": [at, 4], "where": {"lat": at / 2}, "none": None},
                    "npy": np.arange(4, dtype=np.float32) * at,
                }
            )


def shard_samples(folder: Path) -> Samples:
    """The samples as webdataset reads them. It would leave it to chance when shards are closed."""
    from webdataset import tariterators

    with contextlib.ExitStack() as stack:
        streams = [
            {"url": str(path), "stream": stack.enter_context(path.open("rb"))}
            for path in sorted(folder.glob("*.tar"))
        ]
        return list(tariterators.group_by_keys(tariterators.tar_file_expander(streams)))


def read_webdataset(folder: Path) -> Samples:
    from webdataset.autodecode import Decoder

    decoder = Decoder([])
    samples = [decoder(sample) for sample in shard_samples(folder / "shards")]
    return [
        {
            "image": one["png"],
            "label": one["cls"],
            "txt": one["txt"],
            "json.size": one["json"]["size"],
            "json.where.lat": one["json"]["where"]["lat"],
            "npy": one["npy"],
        }
        for one in samples
    ]


def write_parquet(folder: Path) -> None:
    """A file as Hugging Face's datasets writes it."""
    (folder / "data").mkdir()
    rows = [
        {
            "image": {"bytes": coded(picture(seed=at)), "path": f"{at}.png"},
            "label": at % 3,
            "text": f"grüße {at}",
            "embedding": [at / 4, 1.0],
            "objects": {"bbox": [[1.0, 2.0, 3.0, float(at)]], "category": [at]},
        }
        for at in range(5)
    ]
    boxes = pyarrow.list_(pyarrow.list_(pyarrow.float32()))
    objects = {"bbox": boxes, "category": pyarrow.list_(pyarrow.int64())}
    image = {"bytes": pyarrow.binary(), "path": pyarrow.string()}
    schema = pyarrow.schema(
        {
            "image": pyarrow.struct(image),
            "label": pyarrow.int64(),
            "text": pyarrow.string(),
            "embedding": pyarrow.list_(pyarrow.float32()),
            "objects": pyarrow.struct(objects),
        },
        {"huggingface": json.dumps({"info": {"features": HF_FEATURES}})},
    )
    table = pyarrow.Table.from_pylist(rows, schema)
    parquet.write_table(table, folder / "data" / "train-0.parquet", row_group_size=2)


HF_FEATURES = {
    "image": {"_type": "Image"},
    "label": {"names": ["cat", "dog", "emu"], "_type": "ClassLabel"},
}


def read_parquet(folder: Path) -> Samples:
    rows = parquet.read_table(folder / "data" / "train-0.parquet").to_pylist()
    return [
        {
            "image": row["image"]["bytes"],
            "label": row["label"],
            "text": row["text"],
            "embedding": row["embedding"],
            "objects.bbox": row["objects"]["bbox"],
            "objects.category": row["objects"]["category"],
        }
        for row in rows
    ]


TABLE = [
    {"path": f"{at}.png", "label": "cat" if at % 2 else "bee", "age": at / 2, "note": f"a, {at}"}
    for at in range(5)
]


def write_csv(folder: Path) -> None:
    write_pictures(folder)
    with (folder / "labels.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, TABLE[0])
        writer.writeheader()
        writer.writerows(TABLE)


def read_csv(folder: Path) -> Samples:
    with (folder / "labels.csv").open(newline="") as file:
        return [table_sample(folder, row) for row in csv.DictReader(file)]


def write_jsonl(folder: Path) -> None:
    write_pictures(folder)
    (folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in TABLE))


def read_jsonl(folder: Path) -> Samples:
    lines = (folder / "labels.jsonl").read_text().splitlines()
    return [table_sample(folder, json.loads(line)) for line in lines]


def write_pictures(folder: Path) -> None:
    for at in range(5):
        (folder / f"{at}.png").write_bytes(coded(picture(seed=at)))


def table_sample(folder: Path, row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "image": (folder / row["path"]).read_bytes(),
        "label": ["bee", "cat"].index(row["label"]),
        "age": float(row["age"]),
        "note": row["note"],
    }


def write_npy(folder: Path) -> None:
    pictures = np.stack([picture(8, 8, seed=at) for at in range(5)])
    np.savez(folder / "train.npz", x=pictures, y=np.arange(5, dtype=np.int32))


def read_npy(folder: Path) -> Samples:
    with np.load(folder / "train.npz") as arrays:
        return [{"x": x, "y": y} for x, y in zip(arrays["x"], arrays["y"], strict=True)]


def write_mnist(folder: Path, part: str = "train", count: int = 5) -> Path:
    """The two files as their page describes them; the folder."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    pixels = np.stack([picture(28, 28, seed=at)[:, :, 0] for at in range(count)]).tobytes()
    heads = struct.pack(">4I", 0x803, count, 28, 28), struct.pack(">2I", 0x801, count)
    (raw / f"{part}-images-idx3-ubyte").write_bytes(heads[0] + pixels)
    (raw / f"{part}-labels-idx1-ubyte").write_bytes(
        heads[1] + bytes(at % 10 for at in range(count))
    )
    return raw


def read_mnist(folder: Path) -> Samples:
    raw = folder / "MNIST" / "raw"
    images = np.fromfile(raw / "train-images-idx3-ubyte", np.uint8, offset=16)
    labels = np.fromfile(raw / "train-labels-idx1-ubyte", np.uint8, offset=8)
    return [
        {"image": image, "label": int(label)}
        for image, label in zip(images.reshape(-1, 28, 28, 1), labels, strict=True)
    ]


CIFAR_TRAINING = tuple(f"data_batch_{number}" for number in range(1, 6))


def write_cifar(folder: Path, names: Sequence[str] = CIFAR_TRAINING, *, fine: bool = False) -> Path:
    """Batches as CIFAR's page describes them; the folder."""
    root = folder / "cifar-10-batches-py"
    root.mkdir(exist_ok=True)
    for number, name in enumerate(names):
        data = np.random.default_rng(number).integers(0, 256, (2, 3072), np.uint8)
        table: dict[bytes, Any] = {b"batch_label": name.encode(), b"data": data}
        table |= (
            {b"fine_labels": [number, 1], b"coarse_labels": [0, number]}
            if fine
            else {b"labels": [number, 9]}
        )
        (root / name).write_bytes(python_2(table))
    meta = {b"label_names": [b"plane", b"car"], b"num_vis": 3072}
    (root / "batches.meta").write_bytes(python_2(meta))
    return root


class Python2Pickler(pickle._Pickler):  # it has no public name
    """Writes bytes as Python 2 wrote its texts."""

    dispatch: ClassVar[Any] = dict(pickle._Pickler.dispatch)
    write: Any
    memoize: Any

    def save_text(self, value: bytes) -> None:
        self.write(b"T" + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    dispatch[bytes] = save_text


def python_2(value: Any) -> bytes:
    """The value as cPickle of Python 2 writes it, with numpy of that time."""
    file = io.BytesIO()
    Python2Pickler(file, 2).dump(value)
    return file.getvalue().replace(b"cnumpy._core.multiarray", b"cnumpy.core.multiarray")


def read_cifar(folder: Path) -> Samples:
    samples: Samples = []
    for name in CIFAR_TRAINING:
        table = pickle.loads((folder / "cifar-10-batches-py" / name).read_bytes(), encoding="bytes")
        images = table[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        for image, label in zip(images, table[b"labels"], strict=True):
            samples.append({"image": image, "label": label})
    return samples


def coco_table() -> dict[str, Any]:
    """Annotations as COCO's page describes them: image number n has n boxes."""
    annotations = [
        {
            "id": 10 * at + number,
            "image_id": 100 + at,
            "category_id": (7, 3)[number % 2],
            "bbox": [1.5, number, 10, 20.25],
            "area": 200.5,
            "iscrowd": number % 2,
            "segmentation": [[1, 2, 3, 4, 5, 6]],
        }
        for at in range(5)
        for number in range(at)
    ]
    return {
        "images": [{"id": 100 + at, "file_name": f"{at:012}.png"} for at in range(5)],
        "annotations": annotations,
        "categories": [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}],
    }


def write_coco(folder: Path, table: Mapping[str, Any] | None = None) -> Path:
    """Images and their annotations; the file of these."""
    (folder / "annotations").mkdir()
    (folder / "train2017").mkdir()
    for at in range(5):
        (folder / "train2017" / f"{at:012}.png").write_bytes(coded(picture(seed=at)))
    path = folder / "annotations" / "instances_train2017.json"
    path.write_text(json.dumps(table or coco_table()))
    return path


def read_coco(folder: Path) -> Samples:
    table = json.loads((folder / "annotations" / "instances_train2017.json").read_text())
    samples: Samples = []
    for image in table["images"]:
        rows = [row for row in table["annotations"] if row["image_id"] == image["id"]]
        boxes = [[x, y, x + w, y + h] for x, y, w, h in (row["bbox"] for row in rows)]
        samples.append(
            {
                "image": (folder / "train2017" / image["file_name"]).read_bytes(),
                "image_id": image["id"],
                "boxes": np.reshape(boxes, (-1, 4)),
                "labels": [{3: 0, 7: 1}[row["category_id"]] for row in rows],
                "area": [row["area"] for row in rows],
                "iscrowd": [row["iscrowd"] for row in rows],
            }
        )
    return samples


def write_lmdb(folder: Path) -> None:
    """A database of LSUN's layout: images under keys of their own."""
    images = {
        b"%040x" % (at * 7919): coded(picture(seed=at), "WEBP", lossless=True) for at in range(5)
    }
    write_items(folder / "theirs.lmdb", images)


def read_lmdb(folder: Path) -> Samples:
    with (
        lmdb.open(str(folder / "theirs.lmdb"), subdir=False, readonly=True, lock=False) as env,
        env.begin() as txn,
    ):
        return [{"image": value} for _, value in txn.cursor()]


Written = tuple[Callable[[Path], object], Callable[[Path], Samples], str]
SOURCES: dict[str, Written] = {
    "webdataset": (write_webdataset, read_webdataset, ""),
    "parquet": (write_parquet, read_parquet, ""),
    "csv": (write_csv, read_csv, ""),
    "jsonl": (write_jsonl, read_jsonl, ""),
    "npy": (write_npy, read_npy, ""),
    "mnist": (write_mnist, read_mnist, ""),
    "cifar": (write_cifar, read_cifar, ""),
    "coco": (write_coco, read_coco, "ragged = ['boxes', 'labels', 'area', 'iscrowd']"),
    "lmdb": (write_lmdb, read_lmdb, ""),
}
