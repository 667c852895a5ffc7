"""What the tests of loaderd.data are made of: pictures, databases, and a user's datasets, layouts
and functions.
"""

from __future__ import annotations

import base64
import collections
import importlib.util
import io
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import simplejpeg
from PIL import Image

from loaderd.config.stream import StreamConfig, TransformConfig
from loaderd.core.jobs import Stage
from loaderd.data.jpeg import tiles
from loaderd.data.lmdb import record_format
from loaderd.data.sample import Sample


def picture(height: int = 40, width: int = 50, seed: int = 0) -> np.ndarray:
    """A smooth picture with some noise, uint8 height x width x 3."""
    rng = np.random.default_rng(seed)
    base = np.add.outer(np.linspace(0, 120, height), np.linspace(0, 100, width))[
        :, :, None
    ] + np.array([0, 15, 30])
    return (base + rng.integers(0, 6, (height, width, 3))).astype(np.uint8)


def real_photo(name: str) -> np.ndarray:
    """A photo that scikit-learn brings, "china" or "flower": uint8 427 x 640 x 3.

    The package itself is not imported: that takes longer than most tests.
    """
    package = importlib.util.find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / "datasets" / "images" / f"{name}.jpg"
    with Image.open(path) as image:
        return np.asarray(image)


def coded(image: np.ndarray | Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(
        buffer, kind, **options
    )
    return buffer.getvalue()


# A JPEG of 16 x 16 pixels whose chroma has a quarter of the rows (sampling 4:4:1).
QUARTER_ROWS = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAgGBgcGBQgHBwcJCQgKDBQNDAsLDBkSEw8UHRofHh0aHBwgJC4nICIsIxwcKDcpLDAxNDQ0Hyc5PTgyPC4zNDL/2wBDAQkJCQwLDBgNDRgy"
    "IRwhMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjL/wAARCAAQABADARQAAhEBAxEB/8QAFwABAQEBAAAAAAAAAAAAAAAAAAQDB//EABYQAQEB"
    "AAAAAAAAAAAAAAAAAAABA//EABYBAQEBAAAAAAAAAAAAAAAAAAIAA//EABYRAQEBAAAAAAAAAAAAAAAAAAEAAv/aAAwDAQACEQMRAD8A4LM1UzBDYG2wmauZgRM23//Z"
)


def sampled(across: int, down: int, height: int, width: int) -> bytes:
    """A JPEG whose chroma has one sample for `across` x `down` (together 1, 2 or 4) of luma: one of
    as many blocks, with another header.
    """
    known = {1: "444", 2: "422", 4: "411"}[across * down]
    columns, rows = -(-width // (8 * across)), -(-height // (8 * down))
    image = np.ascontiguousarray(picture(rows * 8, columns * 8 * across * down))
    data = bytearray(simplejpeg.encode_jpeg(image, quality=90, colorsubsampling=known))
    frame = next(begin for marker, begin, _ in tiles.segments(bytes(data)) if marker == 0xC0)
    tiles.SIZE.pack_into(data, frame + 1, height, width)
    data[frame + 7] = across << 4 | down
    return bytes(data)


def by_pillow(data: bytes, mode: str = "RGB") -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.array(image.convert(mode))


def write(path: Path | str, items: Mapping[bytes, bytes], *, subdir: bool = False) -> str:
    with (
        lmdb.open(str(path), subdir=subdir, map_size=1 << 28, lock=subdir) as env,
        env.begin(write=True) as txn,
    ):
        for key, value in items.items():
            txn.put(key, value)
    return str(path)


def write_own(
    path: Path | str, samples: list[Sample], names: list[bytes] | None = None, **meta: Any
) -> str:
    """A database in loaderd's own layout with these samples."""
    items = {
        record_format.sample_key(i): record_format.pack_sample(s, names[i] if names else b"")
        for i, s in enumerate(samples)
    }
    record = record_format.DatabaseMeta(len(samples), "test", named=names is not None, **meta)
    return write(path, items | {record_format.META_KEY: record_format.pack_meta(record)})


def image_samples(count: int = 4, kind: str = "PNG") -> list[Sample]:
    return [
        Sample({"image": coded(picture(seed=i), kind), "label": np.array(i, np.int64)}, encoded=("image",)) for i in range(count)
    ]  # fmt: skip


def silent(stage: Stage) -> None:
    pass


def op(name: str, **args: Any) -> TransformConfig:
    return TransformConfig(name, None, args)


def call(name: str, **args: Any) -> TransformConfig:
    return TransformConfig(None, f"{__name__}:{name}", args)


def dataset_plan(name: str, *, args: dict[str, Any] | None = None, **rest: Any) -> StreamConfig:
    return StreamConfig("t", dataset=f"{__name__}:{name}", dataset_args=args or {}, **rest)


class Fixed:
    """A dataset whose samples are in the class: sample i is VALUES[i]."""

    VALUES: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.VALUES)

    def __getitem__(self, index: int) -> Any:
        return self.VALUES[index]


Point = collections.namedtuple("Point", "x y")


class Holding(Fixed):
    """A dataset of what the test hands over in `HELD`."""

    def __init__(self) -> None:
        self.VALUES = tuple(HELD)


HELD: list[Any] = []


class Listed(Fixed):
    """A dataset whose samples are the lines of a file."""

    def __init__(self, path: str) -> None:
        with open(path) as file:
            self.VALUES = tuple(file)


class Shuffled(Fixed):
    """A dataset that shuffles its samples with the global generators when it is built."""

    def __init__(self) -> None:
        values = [*range(100), *np.random.permutation(100).tolist()]
        random.shuffle(values)
        self.VALUES = tuple(values)


class Unprinted(Fixed):
    """A dataset that cannot say its fingerprint."""

    VALUES = (1,)

    def fingerprint(self) -> str:
        raise ValueError("no manifest")


class Numbers:
    classes = ("even", "odd")

    def __init__(self, n: int = 10, fails_at: int = -1) -> None:
        self.n = n
        self.fails_at = fails_at

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        if index == self.fails_at:
            raise ValueError(f"sample {index} is broken")
        return np.full(4, index, np.float32), index % 2


class Many(Numbers):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Short(Numbers):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices[1:]]


class Endless:
    def __getitem__(self, index: int) -> int:
        return index


class Unbuilt:
    def __init__(self, root: str) -> None:
        raise FileNotFoundError(f"no data in {root}")


class Pairs:
    """A layout of two keys a sample: img-<i> and lab-<i>."""

    classes = ("cat", "dog")

    def __init__(self, get: Any, n: int = 2) -> None:
        self.get = get
        self.n = n

    def __len__(self) -> int:
        return self.n

    def keys(self, index: int) -> list[bytes]:
        return [b"img-%d" % index, b"lab-%d" % index]

    def parse(self, index: int, values: list[memoryview]) -> dict[str, Any]:
        return {"image": values[0], "label": int(bytes(values[1]))}


class WrongKeys(Pairs):
    def keys(self, index: int) -> Any:
        return b"img-%d" % index


class FailingKeys(Pairs):
    def keys(self, index: int) -> Any:
        raise LookupError("no index file\nand a second line")


class WrongParse(Pairs):
    def parse(self, index: int, values: list[memoryview]) -> Any:
        return list(values)


class Inner:
    """A layout that reads a named database."""

    def __init__(self, get: Any) -> None:
        self.get = get

    def __len__(self) -> int:
        return int(bytes(self.get(b"n", db="info")))

    def keys(self, index: int) -> list[bytes]:
        return [b"%d" % index]

    def parse(self, index: int, values: list[memoryview]) -> dict[str, Any]:
        return {"x": index, "word": str(values[0], "utf-8")}


def noisy(
    sample: dict[str, Any], rng: np.random.Generator, strength: float = 1.0
) -> dict[str, Any]:
    sample["noise"] = rng.random(3) * strength
    return sample


def scribble(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Writes into every array that it gets."""
    for value in sample.values():
        if isinstance(value, np.ndarray):
            value[...] = 0
    return sample


def palettes(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"mask": Image.new("P", (4, 3))}


def nothing(sample: dict[str, Any], rng: np.random.Generator) -> None:
    return None


def failing(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    raise KeyError("mask")


def leaving(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    sys.exit(3)


def as_planar(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "image": sample["image"].transpose(2, 0, 1)}


def as_pillow(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {
        "image": Image.fromarray(sample["image"]),
        "label": 7,
        "ratio": 0.5,
        "ok": True,
        "word": "hi",
    }


def as_complex_infinite(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"x": np.array([1 + 1j, complex(0, np.inf), complex(np.nan, 0)], np.complex64)}


def as_infinite(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"x": np.array([1.0, np.inf, np.nan])}


def by_index(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A shape that depends on the label."""
    return {"x": np.zeros(1 + int(sample["1"]), np.float32)}


def padded(samples: list[tuple[Any, int]], rng: np.random.Generator) -> dict[str, Any]:
    return {
        "x": np.stack([x for x, _ in samples]),
        "lengths": [len(x) for x, _ in samples],
        "names": [str(y) for _, y in samples],
        "draw": rng.random(),
    }


def tupled(samples: list[tuple[Any, int]], rng: np.random.Generator) -> tuple[Any, ...]:
    return np.stack([x for x, _ in samples]), {"y": [y for _, y in samples]}


def ragged(samples: list[tuple[Any, int]], rng: np.random.Generator) -> dict[str, Any]:
    return {"ids": [[1] * y for _, y in samples]}


def as_dataloader_calls_it(samples: Any) -> Any:
    return {"x": np.stack([x for x, _ in samples])}


def without_arguments() -> Any:
    return {}


def as_it_came(samples: list[Any]) -> dict[str, Any]:
    """Keeps the samples, for the test to look at."""
    CAME[:] = samples
    return {"n": len(samples)}


CAME: list[Any] = []


def with_box(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Adds what no batch could hold."""
    return {**sample, "boxes": [(0, 0, 1, 1)] * 2}


def broken_collate(samples: list[dict[str, Any]], rng: np.random.Generator) -> dict[str, Any]:
    raise RuntimeError("cannot stack")


class Panic(BaseException):
    """As the exceptions of libraries that are written in Rust: none of `Exception`."""


class Panics:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        if index == 1:
            raise Panic("a library of another language gave up")
        return index
