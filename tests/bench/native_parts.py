"""What an installation without the native parts (`_crop`, `_jpeg`, `_rows`) loses, all in one run
on one core.

    taskset -c 1 python tests/bench/native_parts.py [--rounds 7]

With and without take turns, round after round; figures are CPU time, medians over the rounds, and
the ratio is the median of each round's. `loaderd/data/native_library.py` quotes the ratios. Prints
a table; asserts nothing about time.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from statistics import median

import cv2
import lmdb
import numpy as np
from decode import in_turns, photos
from images import CROPS, TRAIN, ours, quiet, slowly
from meter import table

from loaderd.config.stream import StreamConfig
from loaderd.data.jpeg import rewrite
from loaderd.data.lmdb import record_format
from loaderd.data.lmdb.bulk_rows import BulkReader
from loaderd.data.pipeline.pipeline import SamplePipeline
from loaderd.data.pipeline.request import SampleRequest
from loaderd.data.sample import Sample
from loaderd.data.sources.source import Source

PHOTOS = 16
BATCH = 256
ENDS = ("", " without")


def crops(rewritten: bool) -> tuple[Callable[[], int], Callable[[], int]]:
    """random_resized_crop(224) of photos of 500 x 375, with and without `_crop`."""
    stored = photos(PHOTOS, 375, 500)
    make = ours([rewrite.rewrite(data) for data in stored] if rewritten else stored, TRAIN)

    def all_of(one: Callable[[int, int], np.ndarray]) -> Callable[[], int]:
        return lambda: sum(
            one(index, epoch) is not None for index in range(PHOTOS) for epoch in range(CROPS)
        )

    return all_of(make), all_of(slowly(make))


def rows(path: str, count: int, width: int) -> tuple[Callable[[], int], Callable[[], int]]:
    """`count` raw rows of `width` float32 in batches of BATCH, shuffled, with and without `_rows`."""
    with lmdb.open(path, subdir=False, map_size=1 << 30) as env, env.begin(write=True) as txn:
        for n in range(count):
            txn.put(
                record_format.sample_key(n),
                record_format.pack_sample(Sample({"x": np.full(width, n, np.float32)})),
                append=True,
            )
        txn.put(
            record_format.META_KEY,
            record_format.pack_meta(record_format.DatabaseMeta(count, "bench", named=False)),
        )
    order = np.random.default_rng(1).permutation(count)

    def reader(native: bool) -> Callable[[], int]:
        source = Source(StreamConfig("bench", lmdb=path))
        sample_pipeline = SamplePipeline(source.plan, source)
        sample = sample_pipeline.make(SampleRequest(0, 0, 0), quiet)
        sample_pipeline.fix(sample_pipeline.specs(sample))
        bulk = sample_pipeline.bulk()
        assert isinstance(bulk, BulkReader)
        assert bulk._pages is not None, "`_rows` is needed"
        if not native:
            bulk._pages = None
        out = np.empty((BATCH, width), np.float32)

        def read() -> int:
            for first in range(0, count - BATCH + 1, BATCH):
                assert bulk.write(order[first : first + BATCH], {"x": out})
            return count // BATCH * BATCH

        return read

    return reader(native=True), reader(native=False)


def rewriting() -> tuple[Callable[[], int], Callable[[], int]]:
    """Photos of 500 x 375 rewritten for random access, by `_jpeg` and by the jpegtran program."""
    stored = photos(PHOTOS, 375, 500)

    def by_part() -> int:
        return sum(len(rewrite.rewrite(data)) > 0 for data in stored)

    def by_program() -> int:
        found, rewrite._library = rewrite._library, lambda: None
        try:
            return by_part()
        finally:
            rewrite._library = found

    assert rewrite._library(), "`_jpeg` is needed"
    assert rewrite._jpegtran(), "jpegtran is needed"
    return by_part, by_program


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    cv2.setNumThreads(0)
    ways: dict[str, tuple[Callable[[], int], Callable[[], int]]] = {
        "_crop: crops of plain JPEGs": crops(rewritten=False),
        "_crop: crops of rewritten JPEGs": crops(rewritten=True),
        "_jpeg: rewriting a JPEG": rewriting(),
    }
    with tempfile.TemporaryDirectory() as folder:
        ways["_rows: rows of 1 KiB"] = rows(f"{folder}/small", 100_000, 256)
        ways["_rows: rows of 147 KiB"] = rows(f"{folder}/large", 768, 37_632)
        figures = in_turns(
            {
                f"{name}{end}": way
                for name, pair in ways.items()
                for end, way in zip(ENDS, pair, strict=True)
            },
            rounds,
        )
    lines = []
    for name in ways:
        having, lacking = (figures[name + end] for end in ENDS)
        ratio = median(b / a for a, b in zip(having, lacking, strict=True))
        lines.append([name, f"{median(having):.2f}", f"{median(lacking):.2f}", f"{ratio:.1f}x"])
    print(table(("native part", "us each with it", "without", "times slower without"), lines))


if __name__ == "__main__":
    main()
