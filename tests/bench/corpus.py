"""What the benchmark reads, made anew in a folder: plain LMDBs, as a DataLoader's user has them,
and what `loaderd pack` makes of the same samples. And how a DataLoader reads the plain ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

COUNTS = {"u8": 512, "f32": 256, "tiny": 100_000, "photos": 384}  # samples of each kind
SMALL = {"u8": 128, "f32": 128, "tiny": 1024, "photos": 128}  # enough for two batches
SMALL_DISTINCT = 16  # photos of a small run
SHAPES = {
    "u8": ((3, 224, 224), "uint8"),
    "f32": ((3, 224, 224), "float32"),
    "tiny": ((256,), "float32"),
}
SIDE = 224
MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(3, 1, 1) * 255
STD = np.array([0.229, 0.224, 0.225], np.float32).reshape(3, 1, 1) * 255
NAME = "train/class_%04d/image_%09d.jpeg"


def key(index: int) -> bytes:
    return b"%08d" % index


class Plain:
    """A plain LMDB: key(i) -> the bytes of sample i of `count`.

    Opened once a process, where it is first used.
    """

    def __init__(self, path: str, count: int) -> None:
        self.path, self.count = path, count

    @cached_property
    def _read(self) -> Callable[[bytes], Any]:
        import lmdb

        self._env = lmdb.open(self.path, subdir=False, readonly=True, lock=False, readahead=False)
        return self._env.begin(buffers=True).get

    def value(self, index: int) -> memoryview:
        return self._read(key(index % self.count))

    def __len__(self) -> int:
        return self.count


class Arrays(Plain):
    """Ready arrays: {"x": the array, "y": its index}."""

    def __init__(self, path: str, count: int, kind: str) -> None:
        super().__init__(path, count)
        self.shape, self.dtype = SHAPES[kind]

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "x": np.frombuffer(self.value(index), self.dtype).reshape(self.shape).copy(),
            "y": index,
        }


class Photos(Plain):
    """A photo's random crop, as training has it: decoded and resized by OpenCV without a prefilter,
    which is the fastest that a dataset of one's own does. out: "u8", or "f32" for normalised. keys:
    names that it holds, and looks up.
    """

    def __init__(self, path: str, count: int, out: str, keys: int) -> None:
        super().__init__(path, count)
        self.out = out
        self.names = [NAME % (i % 1000, i) for i in range(keys)]

    def __len__(self) -> int:
        return len(self.names) or super().__len__()

    def __getitem__(self, index: int) -> dict[str, Any]:
        import cv2

        cv2.setNumThreads(0)
        if self.names:
            index = int(self.names[index].rpartition("_")[2].partition(".")[0])
        image = cv2.imdecode(np.frombuffer(self.value(index), np.uint8), cv2.IMREAD_COLOR)
        assert image is not None
        rng = np.random.default_rng(index)
        top, left, height, width = crop(rng, *image.shape[:2])
        image = cv2.resize(
            image[top : top + height, left : left + width],
            (SIDE, SIDE),
            interpolation=cv2.INTER_LINEAR,
        )
        if rng.random() < 0.5:
            image = cv2.flip(image, 1)
        planes = np.ascontiguousarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB).transpose(2, 0, 1))
        return {"x": planes if self.out == "u8" else (planes - MEAN) / STD, "y": index}


def crop(rng: np.random.Generator, height: int, width: int) -> tuple[int, int, int, int]:
    """(top, left, height, width) of a random crop of 8 to 100 % of the area."""
    for _ in range(10):
        area, ratio = (
            height * width * rng.uniform(0.08, 1),
            math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3))),
        )
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            return (
                int(rng.integers(height - high + 1)),
                int(rng.integers(width - wide + 1)),
                high,
                wide,
            )
    return 0, 0, height, width


class Named:
    """A layout: photos under names that the database itself holds, so many that nobody would want
    them in memory.
    """

    def __init__(self, get: Callable[[bytes], memoryview | None], count: int, total: int) -> None:
        self._get, self._count, self._total = get, count, total

    def __len__(self) -> int:
        return self._total

    def keys(self, index: int) -> list[bytes]:
        name = self._get(b"n%09d" % index)
        assert name is not None
        return [key(int(bytes(name).rpartition(b"_")[2].partition(b".")[0]) % self._count)]

    def parse(self, index: int, values: list[memoryview]) -> dict[str, Any]:
        return {"image": values[0], "y": index}


def dataloader(
    kind: str, path: str, count: int, out: str, batch_size: int, workers: int, keys: int
) -> Any:
    """torch's DataLoader over a plain LMDB: workers that stay, and its usual two batches ahead for
    each.
    """
    from torch.utils.data import DataLoader

    dataset: Any = Photos(path, count, out, keys) if kind == "photos" else Arrays(path, count, kind)
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=True,
    )


def values(kind: str, count: int) -> Iterable[bytes]:
    if kind == "photos":
        from decode import photos

        # a small run shows that it works, not how fast: there photos repeat, which saves drawing them
        few = photos(count if count > SMALL[kind] else SMALL_DISTINCT, 375, 500)
        return islice(cycle(few), count)
    shape, dtype = SHAPES[kind]
    rng = np.random.default_rng(0)
    return (rng.integers(0, 256, shape, np.uint8).astype(dtype).tobytes() for _ in range(count))


def make(folder: Path, kind: str, count: int, names: int) -> None:
    """In the folder: KIND.lmdb, plain, with the names of so many samples; KIND-plain.lmdb, the same
    samples packed; and of photos photos-tiles.lmdb, packed for random access.
    """
    import lmdb

    from loaderd.data.packing.inputs import pack_dataset, pack_imagefolder

    path = folder / f"{kind}.lmdb"
    with (
        lmdb.open(str(path), subdir=False, map_size=4 << 30, sync=False, lock=False) as env,
        env.begin(write=True) as txn,
    ):
        for i, value in enumerate(values(kind, count)):
            txn.put(key(i), value, append=True)
        for i in range(names):
            txn.put(b"n%09d" % i, (NAME % (i % 1000, i)).encode(), append=True)
    if kind != "photos":
        pack_dataset(
            "corpus:Arrays",
            {"path": str(path), "count": count, "kind": kind},
            str(folder / f"{kind}-plain.lmdb"),
        )
        return
    files, source = folder / "photos", Plain(str(path), count)
    files.mkdir()
    for i in range(count):
        (files / f"{i:05d}.jpg").write_bytes(source.value(i))
    for way, random_access in (("plain", False), ("tiles", True)):
        pack_imagefolder(
            str(files), str(folder / f"{kind}-{way}.lmdb"), random_access=random_access
        )
