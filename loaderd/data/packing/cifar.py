"""CIFAR-10's and CIFAR-100's original files: those for Python, and the binary ones.

The pickles are interpreted, and not run.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from loaderd.data.errors import SampleFault, SourceError
from loaderd.data.packing.files import fingerprint_of, read_file
from loaderd.data.packing.source import PackItem, SourceOptions
from loaderd.data.sample import Sample
from loaderd.data.values.arrays import UnreadableValue
from loaderd.data.values.pickles import unpickle

PIXELS = 3 * 32 * 32
BELOW = ("", "cifar-10-batches-py", "cifar-100-python", "cifar-10-batches-bin", "cifar-100-binary")
# What a folder's training set is, and which labels a file may have, with the file of their names.
TRAINING = (
    tuple(f"data_batch_{number}" for number in range(1, 6)),
    tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    ("train",),
    ("train.bin",),
)
NAMES = ("batches.meta", "meta", "batches.meta.txt", "fine_label_names.txt")


class CifarBatch(NamedTuple):
    """A file's images, as bytes x PIXELS, and its labels by field."""

    images: np.ndarray
    labels: dict[str, np.ndarray]


class CifarSource:
    """The images of a file, or of the training set of a folder."""

    kind = "cifar"
    named = False
    form = "dict"
    unreadable: tuple[tuple[str, str], ...] = ()

    def __init__(self, path: str, spool_folder: str, said: SourceOptions) -> None:
        """Read all of them. Raises SourceError."""
        paths = _files(os.path.abspath(path))
        batches = [read_batch(each) for each in paths]
        if len({tuple(batch.labels) for batch in batches}) > 1:
            raise SourceError(f"{path}: its files are of CIFAR-10 and of CIFAR-100")
        self._images = [batch.images for batch in batches]
        self._labels = {
            name: np.concatenate([batch.labels[name] for batch in batches])
            for name in batches[0].labels
        }
        self._ends = np.cumsum([len(images) for images in self._images])
        self.total = int(self._ends[-1])
        self.classes = _names(os.path.dirname(paths[0]))
        self.fingerprint = fingerprint_of(paths)
        shown = ", ".join(map(os.path.basename, paths))
        whole = os.path.isdir(path)
        self.notes = [f"packed {shown}; for the test set name its file"] if whole else []

    def __enter__(self) -> CifarSource:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def item(self, index: int) -> PackItem:
        """Named by its index."""
        return PackItem(b"%d" % index, partial(self._read, index))

    def _read(self, index: int) -> Sample:
        number = int(np.searchsorted(self._ends, index, "right"))
        row = index - (int(self._ends[number - 1]) if number else 0)
        planes = self._images[number][row].reshape(3, 32, 32)
        sample = Sample(
            {"image": np.ascontiguousarray(planes.transpose(1, 2, 0))}, images=("image",)
        )
        for name, labels in self._labels.items():
            sample[name] = np.array(labels[index], np.int64)
        return sample


def _files(path: str) -> list[str]:
    """The files that are meant. Raises SourceError."""
    if os.path.isfile(path):
        if path.endswith((".tar.gz", ".tgz")):
            raise SourceError(f"{path}: unpack it first: tar xzf {os.path.basename(path)}")
        return [path]
    if not os.path.isdir(path):
        raise SourceError(f"{path}: there is no such file or folder")
    for below in BELOW:
        folder = os.path.join(path, below)
        for names in TRAINING:
            files = [os.path.join(folder, name) for name in names]
            there = [file for file in files if os.path.isfile(file)]
            if there and len(there) < len(files):
                absent = next(file for file in files if file not in there)
                raise SourceError(f"{absent}: is missing; the training set has {len(files)} files")
            if there:
                return there
    raise SourceError(f"{path}: has neither data_batch_1 to data_batch_5 nor train (or .bin)")


def read_batch(path: str) -> CifarBatch:
    """The images of a file. Raises SourceError."""
    try:
        data = read_file(path)
        batch = _binary(path, data) if path.endswith(".bin") else _pickled(data)
    except SampleFault as fault:
        raise SourceError(f"{path}: {fault.message}") from None
    except UnreadableValue as error:
        raise SourceError(f"{path}: {error}") from None
    if not len(batch.images) or any(
        len(each) != len(batch.images) for each in batch.labels.values()
    ):
        raise SourceError(f"{path}: has {len(batch.images):,} images, and not as many labels")
    return batch


def _pickled(data: bytes) -> CifarBatch:
    table: Any = unpickle(data)
    if not isinstance(table, dict):
        raise UnreadableValue("it is not a batch of CIFAR: its pickle is no table")
    table = {key.decode("latin-1") if isinstance(key, bytes) else key: table[key] for key in table}
    images = table.get("data")
    if (
        not isinstance(images, np.ndarray)
        or images.dtype != np.uint8
        or images.shape[1:] != (PIXELS,)
    ):
        raise UnreadableValue(
            f"it is not a batch of CIFAR: it has no data of {PIXELS:,} bytes a row"
        )
    known = {"labels": "label", "fine_labels": "label", "coarse_labels": "coarse_label"}
    try:
        labels = {
            field: np.asarray(table[key], np.int64) for key, field in known.items() if key in table
        }
    except (ValueError, TypeError, OverflowError) as error:
        raise UnreadableValue(f"its labels are no numbers: {error}") from None
    if "label" not in labels:
        raise UnreadableValue("it is not a batch of CIFAR: it has no labels")
    return CifarBatch(images, labels)


def _binary(path: str, data: bytes) -> CifarBatch:
    """CIFAR-10 has a label before each image, CIFAR-100 has a coarse and a fine one."""
    fields = ["label"] if "_batch" in os.path.basename(path) else ["coarse_label", "label"]
    size = len(fields) + PIXELS
    if len(data) % size:
        raise UnreadableValue(f"it has {len(data):,} bytes, which are no rows of {size:,}")
    rows = np.frombuffer(data, np.uint8).reshape(-1, size)
    labels = {field: rows[:, at].astype(np.int64) for at, field in enumerate(fields)}
    return CifarBatch(rows[:, len(fields) :], {"label": labels.pop("label"), **labels})


def _names(folder: str) -> tuple[str, ...]:
    """The names of the labels, from the file beside them; () without it, or if it is damaged."""
    for name in NAMES:
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            continue
        try:
            data = read_file(path)
            if name.endswith(".txt"):
                return tuple(data.decode().split())
            table: Any = unpickle(data)
            names = next(
                table[key]
                for key in ("label_names", b"label_names", "fine_label_names", b"fine_label_names")
                if key in table
            )
            return tuple(each.decode() if isinstance(each, bytes) else str(each) for each in names)
        except (SampleFault, UnreadableValue, UnicodeDecodeError, TypeError, StopIteration):
            return ()
    return ()
