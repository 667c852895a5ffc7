"""Rows copied in bulk are those made one by one, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from loaderd.config.stream import StreamConfig
from loaderd.data.lmdb import record_format, store
from loaderd.data.lmdb.bulk_rows import LARGE, RowCopier
from loaderd.data.pipeline.pipeline import SamplePipeline
from loaderd.data.pipeline.request import SampleRequest
from loaderd.data.sample import Sample
from loaderd.data.sources.source import Source
from loaderd_testing.sample_builders import (
    dataset_plan,
    image_samples,
    op,
    picture,
    silent,
    write_own,
)


@pytest.fixture(params=["pages", "without"], autouse=True)
def means(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extension, where it has been built, and without."""
    if request.param == "without":
        monkeypatch.setattr(store, "library", lambda: None)


def numbers(index: int, width: int = 100) -> Sample:
    rng = np.random.default_rng(index)
    return Sample(
        {
            "x": rng.integers(0, 256, width, np.uint8),
            "grid": rng.random((3, 5), np.float32),
            "y": np.array(index, np.int64),
            "ok": np.array(index % 2 == 0),
            "im": picture(6, 7, index),
        },
        images=("im",),
    )


def opened(path: Path, **plan: Any) -> tuple[Source, SamplePipeline]:
    source = Source(StreamConfig("t", lmdb=str(path), **plan))
    return source, SamplePipeline(source.plan, source)


def places(sample_pipeline: SamplePipeline, rows: int) -> dict[str, np.ndarray]:
    return {
        spec.name: np.full((rows, *spec.shape), 7, spec.dtype)
        for spec in sample_pipeline.specs(sample_pipeline.make(SampleRequest(0, 0, 0), silent))
    }


def bulk_of(sample_pipeline: SamplePipeline) -> RowCopier | None:
    sample_pipeline.fix(sample_pipeline.specs(sample_pipeline.make(SampleRequest(0, 0, 0), silent)))
    return sample_pipeline.bulk()


@pytest.mark.parametrize("width", [3, 100, LARGE + 5])
def test_rows_in_bulk_are_the_rows_one_by_one(tmp_path: Path, width: int) -> None:
    source, sample_pipeline = opened(
        Path(write_own(tmp_path / "db", [numbers(i, width) for i in range(20)]))
    )
    with source:
        bulk = bulk_of(sample_pipeline)
        assert bulk is not None
        indices = np.array([3, 19, 0, 3, 7], np.int64)
        arrays = places(sample_pipeline, len(indices))
        assert bulk.write(indices, arrays)
        for row, index in enumerate(indices.tolist()):
            sample = sample_pipeline.make(SampleRequest(0, 0, index), silent)
            assert list(sample) == list(arrays)
            for name in sample:
                np.testing.assert_array_equal(arrays[name][row], sample[name])
            del sample
        some = {"y": np.zeros(2, np.int64)}
        assert bulk.write(np.array([5, 6]), some)
        assert some["y"].tolist() == [5, 6]
        assert bulk.write(np.array([], np.int64), {"y": np.zeros(0, np.int64)})


@pytest.mark.parametrize(
    "odd",
    [
        Sample({**numbers(9), "x": np.zeros(101, np.uint8)}, images=("im",)),
        Sample({**numbers(9), "x": np.zeros(100, np.int8)}, images=("im",)),
        Sample({**numbers(9), "y": np.zeros((), np.uint64)}, images=("im",)),
        Sample(dict(reversed(numbers(9).items())), images=("im",)),
        numbers(9, LARGE),
    ],
)
@pytest.mark.parametrize("width", [100, LARGE])
def test_a_row_of_another_shape_dtype_or_order_is_left_to_those_that_can_tell(
    tmp_path: Path, odd: Sample, width: int
) -> None:
    source, sample_pipeline = opened(
        Path(write_own(tmp_path / "db", [numbers(0, width), odd, numbers(2, width)]))
    )
    with source:
        bulk = bulk_of(sample_pipeline)
        assert bulk is not None
        assert bulk.write(np.array([0, 2]), places(sample_pipeline, 2))
        alike = width == LARGE and len(odd["x"]) == LARGE
        assert bulk.write(np.array([0, 1, 2]), places(sample_pipeline, 3)) == alike


def test_a_missing_or_damaged_row_is_left_to_those_that_can_tell(tmp_path: Path) -> None:
    path = write_own(tmp_path / "db", [numbers(i) for i in range(5)])
    with lmdb.open(path, subdir=False, lock=False) as env, env.begin(write=True) as txn:
        txn.delete(record_format.sample_key(2))
        txn.put(record_format.sample_key(3), b"x" * len(record_format.pack_sample(numbers(3))))
    source, sample_pipeline = opened(Path(path))
    with source:
        bulk = bulk_of(sample_pipeline)
        assert bulk is not None
        for indices in ([0, 2], [3, 1], [99], [3]):
            assert not bulk.write(np.array(indices), places(sample_pipeline, len(indices)))
        assert bulk.write(np.array([1, 4]), places(sample_pipeline, 2))


def test_values_that_are_not_finite_are_left_to_those_that_can_tell(tmp_path: Path) -> None:
    samples = [Sample({"x": np.array([1, value], np.float32)}) for value in (1, np.nan, np.inf, 3)]
    path = Path(write_own(tmp_path / "db", samples))
    for nonfinite, good in (("error", False), ("allow", True)):
        source, sample_pipeline = opened(path, nonfinite=nonfinite)
        with source:
            bulk = bulk_of(sample_pipeline)
            assert bulk is not None
            assert bulk.write(np.array([0, 1]), places(sample_pipeline, 2)) is good
            assert bulk.write(np.array([2]), places(sample_pipeline, 1)) is good
            assert bulk.write(np.array([0, 3]), places(sample_pipeline, 2))


def test_arrays_that_do_not_fit_are_a_mistake_and_not_memory_overwritten(tmp_path: Path) -> None:
    source, sample_pipeline = opened(
        Path(write_own(tmp_path / "db", [numbers(i) for i in range(3)]))
    )
    with source:
        bulk = bulk_of(sample_pipeline)
        assert bulk is not None
        for array in (
            np.zeros(1, np.int64),
            np.zeros(2, np.int32),
            np.zeros((2, 2), np.int64)[:, 0],
            np.zeros(3, np.int64),
        ):
            with pytest.raises(ValueError, match=r"field 'y': an array .* is none for 2 rows"):
                bulk.write(np.array([0, 1]), {"y": array})


def test_what_is_not_delivered_as_it_is_stored_has_no_bulk(tmp_path: Path) -> None:
    plain = Path(write_own(tmp_path / "plain", [numbers(i) for i in range(2)]))
    named = Path(write_own(tmp_path / "named", [numbers(i) for i in range(2)], [b"a", b"b"]))
    coded = Path(write_own(tmp_path / "coded", image_samples()))
    text = Path(write_own(tmp_path / "text", [Sample({"x": np.zeros(3), "t": "a"})]))
    for path, plan in (
        (plain, {"transforms": (op("hflip", field="im"),)}),
        (plain, {"collate": "loaderd_testing.sample_builders:padded"}),
        (named, {}),
        (coded, {}),
        (coded, {"decode": False}),
        (text, {}),
    ):
        source, sample_pipeline = opened(path, **plan)
        with source:
            assert bulk_of(sample_pipeline) is None, (path.name, plan)
    with Source(dataset_plan("Numbers")) as source:
        assert bulk_of(SamplePipeline(source.plan, source)) is None
