"""Random-access JPEG: what rewriting and packing cost, and what a crop costs from tiles instead of
the whole file, all in one run on one core.

    taskset -c 1 python tests/bench/decode.py [--rounds 7]

Crops are those of random_resized_crop(224). Ways take turns, round after round; figures are CPU
time, medians over the rounds, and the ratio is the median of each round's. Prints tables; asserts
nothing about time.
"""

from __future__ import annotations

import argparse
import math
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median

import cv2
import numpy as np
import simplejpeg
from meter import table
from sklearn.datasets import load_sample_image

from loaderd.data.jpeg import rewrite
from loaderd.data.jpeg import tiles as restart
from loaderd.data.packing.inputs import pack_imagefolder

TARGET = 224
CROPS = 12  # of each photo
PACKED = 160  # files
Box = tuple[int, int, int, int]  # left, top, right, bottom


def photos(count: int, height: int, width: int, quality: int = 93) -> list[bytes]:
    """Parts of two real photos, enlarged or not, mirrored, with a sensor's noise, as JPEGs of
    4:2:0.
    """
    rng = np.random.default_rng(7)
    real = [np.asarray(load_sample_image(name)) for name in ("china.jpg", "flower.jpg")]
    out = []
    for i in range(count):
        photo = real[i % 2]
        factor = max(height / photo.shape[0], width / photo.shape[1]) * rng.uniform(1.02, 1.5)
        size = (math.ceil(photo.shape[1] * factor), math.ceil(photo.shape[0] * factor))
        photo = cv2.resize(
            photo, size, interpolation=cv2.INTER_CUBIC if factor > 1 else cv2.INTER_AREA
        )
        top, left = rng.integers(0, size[1] - height + 1), rng.integers(0, size[0] - width + 1)
        part = photo[top : top + height, left : left + width][:, :: 1 - 2 * int(rng.integers(2))]
        noisy = np.clip(part + rng.normal(0, 5, part.shape), 0, 255).astype(np.uint8)
        out.append(
            simplejpeg.encode_jpeg(
                np.ascontiguousarray(noisy), quality=quality, colorsubsampling="420"
            )
        )
    return out


def crop(rng: np.random.Generator, height: int, width: int) -> Box:
    for _ in range(10):
        area, ratio = (
            height * width * rng.uniform(0.08, 1.0),
            math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3))),
        )
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if wide <= width and high <= height:
            left, top = int(rng.integers(width - wide + 1)), int(rng.integers(height - high + 1))
            return left, top, left + wide, top + high
    return 0, 0, width, height


def eighths_for(box: Box) -> int:
    """The smallest fast scale that leaves the crop no smaller than the target."""
    least = min(box[2] - box[0], box[3] - box[1])
    return min((e for e in restart.SCALES if least * e >= 8 * TARGET), default=8)


def decoded(data: restart.Data, height: int, width: int, eighths: int) -> np.ndarray:
    return simplejpeg.decode_jpeg(
        data, min_height=-(-height * eighths // 8), min_width=-(-width * eighths // 8)
    )


def from_tiles(value: memoryview, box: Box, eighths: int) -> np.ndarray:
    tiles = restart.read(value)
    assert tiles is not None
    piece = tiles.splice(*box, eighths)
    return decoded(piece.data, piece.height, piece.width, eighths)


def cpu_s() -> float:
    """Of this process and the programs that it has run."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def in_turns(ways: dict[str, Callable[[], int]], rounds: int) -> dict[str, list[float]]:
    """CPU microseconds a unit of each way, one figure a round; a way returns its number of units.

    The first round warms up.
    """
    figures: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            begin = cpu_s()
            units = way()
            if turn:
                figures[name].append((cpu_s() - begin) / units * 1e6)
    return figures


def lines(figures: dict[str, list[float]], reference: str) -> list[list[str]]:
    out = []
    for name, values in figures.items():
        ratio = median(a / b for a, b in zip(figures[reference], values, strict=True))
        out.append([name, f"{median(values):.0f}", f"{min(values):.0f}", f"{ratio:.2f}x"])
    return out


def rewriting(files: Sequence[bytes], rounds: int) -> None:
    def whole() -> int:
        return sum(simplejpeg.decode_jpeg(data) is not None for data in files)

    def rewritten() -> int:
        return sum(len(rewrite.rewrite(data)) > 0 for data in files)

    def by_program() -> int:
        command = ["jpegtran", "-copy", "all", "-optimize", "-restart", "2B"]
        return sum(
            len(subprocess.run(command, input=data, capture_output=True, check=True).stdout) > 0
            for data in files
        )

    ways: dict[str, Callable[[], int]] = {"decode, for comparison": whole, "rewrite": rewritten}
    if shutil.which("jpegtran"):
        ways["jpegtran alone"] = by_program
    print(
        table(
            ("once, when packing", "us an image", "least", "against a decode"),
            lines(in_turns(ways, rounds), next(iter(ways))),
        )
    )
    new = [rewrite.rewrite(data) for data in files]
    tiles = [found for found in map(restart.read, new) if found is not None]
    print(
        f"\nsize x{sum(map(len, new)) / sum(map(len, files)):.4f} of "
        f"{mean(map(len, files)) / 1000:.0f} KB; tiles of {tiles[0].tile_height} x "
        f"{tiles[0].tile_width}, index {mean(2 * found.lengths.size for found in tiles):.0f} "
        f"bytes an image; by {rewrite.available()}\n"
    )


def packing(files: Sequence[bytes], rounds: int) -> None:
    """`loaderd pack imagefolder`, all of it from the files to the database, beside the transcoder
    on the same images in memory.
    """
    with tempfile.TemporaryDirectory() as place:
        folder, target = Path(place) / "photos", Path(place) / "photos.lmdb"
        for number in range(PACKED):
            path = folder / f"class-{number % 10}" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files[number % len(files)])

        def alone() -> int:
            return sum(
                len(rewrite.rewrite(files[number % len(files)])) > 0 for number in range(PACKED)
            )

        def packed() -> int:
            report = pack_imagefolder(str(folder), str(target))
            target.unlink()
            return report.samples

        figures = in_turns({"the transcoder alone": alone, "pack imagefolder": packed}, rounds)
    times = median(b / a for a, b in zip(*figures.values(), strict=True))
    rows = [
        [name, f"{median(values):.0f}", f"{min(values):.0f}", f"{1e6 / median(values):.0f}"]
        for name, values in figures.items()
    ]
    print(table((f"{PACKED} images", "us an image", "least", "images/s and core"), rows))
    print(f"\npacking takes {times:.2f} times the transcoder's CPU\n")


def cropping(files: Sequence[bytes], height: int, width: int, rounds: int) -> None:
    rng = np.random.default_rng(3)
    values = [
        (data, memoryview(rewrite.rewrite(data)), crop(rng, height, width))
        for data in files
        for _ in range(CROPS)
    ]
    scaled = [(old, new, box, eighths_for(box)) for old, new, box in values]

    def whole() -> int:
        return sum(decoded(old, height, width, 8) is not None for old, _, _ in values)

    def whole_scaled() -> int:
        return sum(decoded(old, height, width, e) is not None for old, _, _, e in scaled)

    def tiles() -> int:
        return sum(from_tiles(new, box, 8) is not None for _, new, box in values)

    def tiles_scaled() -> int:
        return sum(from_tiles(new, box, e) is not None for _, new, box, e in scaled)

    def read() -> int:
        return sum(restart.read(new) is not None for _, new, _ in values)

    found = [(restart.read(new), box) for _, new, box in values]

    def splice() -> int:
        return sum(one.splice(*box) is not None for one, box in found if one is not None)

    ways = {
        "whole file": whole,
        "whole file, scaled": whole_scaled,
        "tiles": tiles,
        "tiles, scaled": tiles_scaled,
        "index alone": read,
        "splice alone": splice,
    }
    print(
        table(
            (f"a crop of {width} x {height}", "us", "least", "against the whole file"),
            lines(in_turns(ways, rounds), "whole file"),
        )
    )
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    import importlib.metadata
    import platform

    names = ("loaderd", "numpy", "simplejpeg", "opencv-python-headless")
    print(
        f"Python {platform.python_version()}, "
        + ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
        + "\n"
    )
    for count, height, width in ((16, 375, 500), (4, 1200, 1600)):
        files = photos(count, height, width)
        print(f"{count} photos of {width} x {height}, {mean(map(len, files)) / 1000:.0f} KB\n")
        rewriting(files, rounds)
        packing(files, rounds)
        cropping(files, height, width, rounds)


if __name__ == "__main__":
    main()
