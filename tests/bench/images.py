"""Images a second and core for the training and the evaluation recipe, stored photo to 224 x 224
uint8: plain JPEG and random access beside Pillow, which decodes the whole, in one run on one core.

    taskset -c 1 python tests/bench/images.py [--rounds 7]

All ways make the same crops, and take turns, round after round; figures are CPU time, medians over
the rounds, and the ratio is the median of each round's. What comes out is compared with Pillow's.
Prints tables; asserts nothing about time.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import math
import platform
from collections.abc import Callable, Sequence
from statistics import mean, median

import cv2
import numpy as np
from decode import in_turns, photos
from meter import table
from PIL import Image

from loaderd.config.stream import StreamConfig, TransformConfig
from loaderd.core.jobs import Stage
from loaderd.core.rng import CounterRng
from loaderd.data.jpeg import fused_decode, rewrite
from loaderd.data.ops.geometry import crop_box
from loaderd.data.pipeline.pipeline import SamplePipeline
from loaderd.data.pipeline.request import SampleRequest
from loaderd.data.sample import Sample
from loaderd.data.sources.source import Source

CROPS = 6  # of each photo
TRAIN = (
    TransformConfig("random_resized_crop", None, {"size": 224}),
    TransformConfig("hflip", None),
)
EVAL = (
    TransformConfig("resize", None, {"size": 256}),
    TransformConfig("center_crop", None, {"size": 224}),
)


class Held(Source):
    """A source of stored images in memory: what the database itself costs isn't measured here."""

    def __init__(self, values: Sequence[bytes]) -> None:
        self._values = values
        self.user_code = False

    def read(self, index: int) -> Sample:
        return Sample({"image": memoryview(self._values[index])}, encoded=("image",))


def quiet(stage: Stage) -> None:
    pass


def ours(
    values: Sequence[bytes], steps: tuple[TransformConfig, ...]
) -> Callable[[int, int], np.ndarray]:
    sample_pipeline = SamplePipeline(
        StreamConfig("bench", lmdb="-", transforms=steps), Held(values)
    )
    return lambda index, epoch: sample_pipeline.make(SampleRequest(1, epoch, index), quiet)["image"]


def slowly(make: Callable[[int, int], np.ndarray]) -> Callable[[int, int], np.ndarray]:
    """The same where the extension has not been built."""

    def without(index: int, epoch: int) -> np.ndarray:
        found, fused_decode.library = fused_decode.library, lambda: None
        try:
            return make(index, epoch)
        finally:
            fused_decode.library = found

    return without


def pillows_training(values: Sequence[bytes]) -> Callable[[int, int], np.ndarray]:
    def make(index: int, epoch: int) -> np.ndarray:
        draws = CounterRng(1, epoch, index)
        with Image.open(io.BytesIO(values[index])) as image:
            top, left, height, width = crop_box(
                image.height, image.width, (0.08, 1.0), (0.75, 1.3333), draws, 0
            )
            out = image.resize(
                (224, 224), Image.Resampling.BILINEAR, (left, top, left + width, top + height)
            )
        return np.asarray(
            out.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if draws.uniform(1, 0) < 0.5 else out
        )

    return make


def pillows_evaluation(values: Sequence[bytes]) -> Callable[[int, int], np.ndarray]:
    def make(index: int, epoch: int) -> np.ndarray:
        with Image.open(io.BytesIO(values[index])) as image:
            longer = int(256 * max(image.size) / min(image.size))
            size = (256, longer) if image.height > image.width else (longer, 256)
            out = image.resize(size, Image.Resampling.BILINEAR)
        left, top = round((size[0] - 224) / 2), round((size[1] - 224) / 2)
        return np.asarray(out.crop((left, top, left + 224, top + 224)))

    return make


def closeness(
    one: Callable[[int, int], np.ndarray], other: Callable[[int, int], np.ndarray], count: int
) -> str:
    """PSNR in dB, mean and worst."""
    errors = [
        float(((one(i, epoch).astype(float) - other(i, epoch)) ** 2).mean()) for i in range(count) for epoch in range(CROPS)
    ]  # fmt: skip
    figures = [10 * math.log10(255**2 / max(error, 1e-9)) for error in errors]
    return f"{mean(figures):.1f}, {min(figures):.1f}"


def compare(
    what: str, ways: dict[str, Callable[[int, int], np.ndarray]], count: int, rounds: int
) -> None:
    def whole(make: Callable[[int, int], np.ndarray]) -> Callable[[], int]:
        return lambda: sum(
            make(i, epoch) is not None for i in range(count) for epoch in range(CROPS)
        )

    figures = in_turns({name: whole(make) for name, make in ways.items()}, rounds)
    reference = next(iter(ways))
    rows = []
    for name, values in figures.items():
        ratio = median(a / b for a, b in zip(figures[reference], values, strict=True))
        close = "" if name == reference else closeness(ways[name], ways[reference], count)
        rows.append(
            [name, f"{median(values):.0f}", f"{1e6 / median(values):.0f}", f"{ratio:.2f}x", close]
        )
    print(
        table(
            (what, "us an image", "images/s and core", f"against {reference}", "PSNR, mean, worst"),
            rows,
        )
    )
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    cv2.setNumThreads(0)
    names = ("loaderd", "numpy", "simplejpeg", "opencv-python-headless", "pillow")
    print(
        f"Python {platform.python_version()}, "
        + ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
        + "\n"
    )
    for count, height, width, quality in (
        (16, 375, 500, 93),
        (4, 1200, 1600, 85),
    ):  # about 80 and 400 KB, as such photos have
        plain = photos(count, height, width, quality)
        tiled = [rewrite.rewrite(data) for data in plain]
        print(f"{count} photos of {width} x {height}, {mean(map(len, plain)) / 1000:.0f} KB\n")
        for what, steps, pillows in (
            ("training", TRAIN, pillows_training),
            ("evaluation", EVAL, pillows_evaluation),
        ):
            ways = {
                "Pillow": pillows(plain),
                "plain JPEG": ours(plain, steps),
                "random access": ours(tiled, steps),
            }
            if fused_decode.library() is not None:
                ways |= {
                    "plain, no extension": slowly(ways["plain JPEG"]),
                    "random access, no extension": slowly(ways["random access"]),
                }
            compare(what, ways, count, rounds)


if __name__ == "__main__":
    main()
