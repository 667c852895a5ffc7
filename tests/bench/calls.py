"""What a `call` costs by itself, for a picture of 224 x 224: the sample handed over in each style,
a callable that does nothing, and what it returned taken back.

    PYTHONPATH=tests/bench:tests/support python tests/bench/calls.py
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import numpy as np

from loaderd.config.stream import StreamConfig, TransformConfig
from loaderd.data.pipeline.pipeline import SamplePipeline
from loaderd.data.pipeline.request import SampleRequest
from loaderd.data.sources.source import Source
from loaderd_testing.torchvision_import import declare_operators

ROUNDS, SAMPLES = 9, 300


class Pictures:
    """One picture, given again and again."""

    def __init__(self) -> None:
        self.image = np.random.default_rng(0).integers(0, 256, (224, 224, 3), np.uint8)

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": self.image, "label": index}


def same(sample: Any, *rng: Any) -> Any:
    return sample


def one_picture(image: Any) -> Any:
    return image


def identity() -> Any:
    declare_operators()
    from torchvision.transforms import v2

    return v2.Identity()


def no_op() -> Any:
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # else it asks the network
    import albumentations

    return albumentations.Compose([albumentations.NoOp()])


CALLS: dict[str, TransformConfig | None] = {
    "no call": None,
    "function (sample, rng)": TransformConfig(None, "calls:same"),
    'takes = "array"': TransformConfig(None, "calls:one_picture", {}, {"takes": "array"}),
    'takes = "pil"': TransformConfig(None, "calls:one_picture", {}, {"takes": "pil"}),
    "torchvision v2": TransformConfig(None, "calls:identity"),
    "albumentations": TransformConfig(None, "calls:no_op"),
}


def main() -> None:
    made: dict[str, SamplePipeline] = {}
    for name, step in CALLS.items():
        steps = (step,) if step is not None else ()
        plan = StreamConfig("t", dataset="calls:Pictures", transforms=steps)
        made[name] = SamplePipeline(plan, Source(plan))
    spent: dict[str, list[float]] = {name: [] for name in CALLS}
    for _ in range(ROUNDS):
        for name, pipeline in made.items():
            begin = time.process_time()
            for n in range(SAMPLES):
                pipeline.make(SampleRequest(0, n, 0), lambda stage: None)
            spent[name].append((time.process_time() - begin) / SAMPLES * 1e6)
    nothing = min(spent["no call"])
    for name, seconds in spent.items():
        least = min(seconds)
        print(
            f"{name:<24} {least:7.1f} us, {least - nothing:7.1f} more; median {statistics.median(seconds):.1f}"
        )


if __name__ == "__main__":
    main()
