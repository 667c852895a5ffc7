"""What `nonfinite = "error"` costs a worker on a recipe that ends in `normalize`: CPU time a
sample, with it and without, in turn.

    python tests/bench/nonfinite.py [--rounds 9]

Photos of 375 x 500, random_resized_crop(224), hflip, normalize. Prints a table; asserts nothing
about time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from decode import photos
from meter import row, table, versions

from loaderd.config.stream import StreamConfig, TransformConfig
from loaderd.core.jobs import Stage
from loaderd.data.pipeline.pipeline import SamplePipeline
from loaderd.data.pipeline.request import SampleRequest
from loaderd.data.sources.source import Source

COUNT = 48
RECIPES = {
    "normalize last": (
        TransformConfig("random_resized_crop", None, {"size": 224}),
        TransformConfig("hflip", None),
        TransformConfig(
            "normalize", None, {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
        ),
    ),
    "normalize, to_chw": (
        TransformConfig("random_resized_crop", None, {"size": 224}),
        TransformConfig("hflip", None),
        TransformConfig(
            "normalize", None, {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
        ),
        TransformConfig("to_chw", None),
    ),
}


def note(stage: Stage) -> None: ...


def sample_s(sample_pipeline: SamplePipeline, epoch: int) -> float:
    begin_s = time.process_time()
    for index in range(COUNT):
        sample_pipeline.make(SampleRequest(0, epoch, index), note)
    return (time.process_time() - begin_s) / COUNT


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    from loaderd.data.packing.inputs import pack_imagefolder
    from loaderd.worker.process_setup import pin_native_threads

    pin_native_threads()
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name, "photos")
        folder.mkdir()
        for n, data in enumerate(photos(COUNT, 375, 500)):
            (folder / f"{n:03}.jpg").write_bytes(data)
        pack_imagefolder(str(folder), f"{name}/db", random_access=False)
        for title, steps in RECIPES.items():
            sample_pipelines = []
            for kind in ("allow", "error"):
                source = stack.enter_context(
                    Source(
                        StreamConfig("bench", lmdb=f"{name}/db", nonfinite=kind, transforms=steps)
                    )
                )
                sample_pipelines.append(SamplePipeline(source.plan, source))
                sample_s(sample_pipelines[-1], 0)
            taken = (
                np.array(
                    [
                        [sample_s(sample_pipeline, epoch) for sample_pipeline in sample_pipelines]
                        for epoch in range(rounds)
                    ]
                )
                * 1e6
            )
            rows.append(row(f"{title}, allow", taken[:, 0].tolist(), "us"))
            rows.append(row(f"{title}, error", taken[:, 1].tolist(), "us", taken[:, 0].tolist()))
            rows.append(
                [
                    f"{title}, the check costs",
                    f"{np.median(taken[:, 1] / taken[:, 0] - 1):.1%}",
                    "",
                    "",
                ]
            )
    print(f"CPU a sample, {COUNT} photos, {rounds} rounds. {versions()}\n")
    print(table(("what", "median", "spread", "ratio"), rows))


if __name__ == "__main__":
    main()
