"""MNIST's original files, and those of its relatives (Fashion-MNIST, KMNIST, EMNIST)."""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from functools import partial

import numpy as np

from loaderd.data.errors import SampleFault, SourceError
from loaderd.data.packing.files import fingerprint_of, read_file
from loaderd.data.packing.source import PackItem, SourceOptions
from loaderd.data.sample import Sample

IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
BELOW = ("", "raw", "MNIST/raw", "FashionMNIST/raw", "KMNIST/raw", "EMNIST/raw")  # as torchvision
MAX_BYTES = 4 << 30  # of a file, uncompressed
MAGIC = {3: 0x00000803, 1: 0x00000801}  # bytes, of so many axes


class MnistSource:
    """The digits of a file of images, or of the training set of a folder."""

    kind = "mnist"
    named = False
    form = "dict"
    classes = ()
    unreadable: tuple[tuple[str, str], ...] = ()

    def __init__(self, path: str, spool_folder: str, said: SourceOptions) -> None:
        """Read both files. Raises SourceError."""
        images = _images(os.path.abspath(path))
        folder, name = os.path.split(images)
        labels = _present(os.path.join(folder, name.replace(IMAGES, LABELS).removesuffix(".gz")))
        if labels is None:
            raise SourceError(f"{images}: there is no {name.replace(IMAGES, LABELS)} beside it")
        self._images, self._labels = read_idx(images, 3), read_idx(labels, 1)
        self.total = len(self._images)
        if len(self._labels) != self.total:
            raise SourceError(
                f"{images}: has {self.total:,} images, {os.path.basename(labels)} has "
                f"{len(self._labels):,} labels"
            )
        self.fingerprint = fingerprint_of([images, labels])
        whole = os.path.isdir(path)
        self.notes = [f"packed {name}; for others name their file of images"] if whole else []

    def __enter__(self) -> MnistSource:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def item(self, index: int) -> PackItem:
        """Named by its index."""
        return PackItem(b"%d" % index, partial(self._read, index))

    def _read(self, index: int) -> Sample:
        label = np.array(self._labels[index], np.int64)
        values = {"image": self._images[index][:, :, np.newaxis], "label": label}
        return Sample(values, images=("image",))


def _images(path: str) -> str:
    """The file of images that is meant. Raises SourceError."""
    if os.path.isdir(path):
        for below in BELOW:
            found = _present(os.path.join(path, below, f"train-{IMAGES}"))
            if found is not None:
                return found
        raise SourceError(f"{path}: has no train-{IMAGES} (or .gz); name a file of images")
    if not os.path.isfile(path):
        raise SourceError(f"{path}: there is no such file or folder")
    if IMAGES not in os.path.basename(path):
        raise SourceError(f"{path}: is no file of images: their names end with {IMAGES} (or .gz)")
    return path


def _present(path: str) -> str | None:
    return next((each for each in (path, f"{path}.gz") if os.path.isfile(each)), None)


def read_idx(path: str, axes: int) -> np.ndarray:
    """The array of an IDX file of bytes. Raises SourceError."""
    try:
        data = _uncompressed(read_file(path))
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{path}: is damaged: {error}") from None
    except SampleFault as fault:
        raise SourceError(f"{path}: {fault.message}") from None
    head = struct.Struct(f">{1 + axes}I")
    if len(data) < head.size:
        raise SourceError(f"{path}: has {len(data)} bytes, and is no IDX file")
    magic, *shape = head.unpack_from(data)
    if magic != MAGIC[axes]:
        raise SourceError(
            f"{path}: begins with {data[:4].hex(' ')}, and is no IDX file of {axes} axes"
        )
    needed = head.size + int(np.prod(shape, dtype=object))
    if len(data) != needed or not shape[0]:
        raise SourceError(f"{path}: has {len(data):,} bytes; {shape} bytes need {needed:,}")
    return np.frombuffer(data, np.uint8, offset=head.size).reshape(shape)


def _uncompressed(data: bytes) -> bytes:
    """At most MAX_BYTES of it. Raises OSError, EOFError, zlib.error."""
    if not data.startswith(b"\x1f\x8b"):
        return data
    worker = zlib.decompressobj(wbits=31)
    made = worker.decompress(data, MAX_BYTES)
    if not worker.eof:
        raise gzip.BadGzipFile("it is cut short, or too large")
    return made
