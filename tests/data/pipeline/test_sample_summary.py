"""What a scan is told of a sample: its numbers are numpy's, its hash is of what is stored."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderd.config.stream import StreamConfig
from loaderd.data.errors import SampleFault
from loaderd.data.pipeline.pipeline import SamplePipeline
from loaderd.data.pipeline.request import SampleRequest
from loaderd.data.pipeline.sample_summary import COUNT, HIGH, LOW, MEAN, SQUARES, Surveyor, mark
from loaderd.data.sample import Sample
from loaderd.data.sources.source import Source
from loaderd_testing.sample_builders import (
    HELD,
    Point,
    call,
    dataset_plan,
    image_samples,
    op,
    silent,
    write_own,
)
from loaderd_wire.slots import FieldSpec


def surveyed(
    sample: Sample, *, collated: bool = False, specs: tuple[FieldSpec, ...] = ()
) -> Sample:
    wanted = specs or tuple(
        FieldSpec(name, value.dtype.str, value.shape, image=name in sample.images)
        if isinstance(value, np.ndarray)
        else FieldSpec(name, "", (), "text" if isinstance(value, str) else "bytes")
        for name, value in sample.items()
    )
    return Surveyor(
        {"specs": [asdict(spec) for spec in wanted], "collated": collated}, "here"
    ).summary(sample, mark(sample))


def expect(numbers: np.ndarray, values: np.ndarray) -> None:
    flat = values.reshape(-1).astype(np.float64)
    assert numbers[COUNT] == flat.size
    assert numbers[[LOW, HIGH]].tolist() == [flat.min(), flat.max()]
    assert numbers[MEAN] == pytest.approx(flat.mean())
    assert numbers[SQUARES] == pytest.approx(((flat - flat.mean()) ** 2).sum())


def test_a_picture_counts_by_channel_from_0_to_1() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 3), np.uint8)
    made = surveyed(Sample({"image": pixels}, images=("image",)))
    assert made["channels"].tolist() == [3]
    for channel in range(3):
        expect(made["numbers"][channel], pixels[..., channel] / 255)


def test_a_picture_that_was_turned_counts_by_channel_too() -> None:
    pixels = np.random.default_rng(0).random((3, 7, 5), np.float32)
    sample = Sample({"image": pixels})
    sample.planar.add("image")
    made = surveyed(sample)
    for channel in range(3):
        expect(made["numbers"][channel], pixels[channel])


@pytest.mark.parametrize("dtype", ["u1", "i8", "f2", "f4", "f8", "?"])
def test_the_numbers_of_an_array_are_numpys(dtype: str) -> None:
    values = np.random.default_rng(1).integers(0, 2 if dtype == "?" else 200, (6, 4)).astype(dtype)
    expect(surveyed(Sample({"x": values}))["numbers"][0], values)


def test_values_that_are_not_finite_are_counted_and_left_out() -> None:
    made = surveyed(
        Sample({"x": np.array([1, np.nan, 3, np.inf], np.float32), "y": np.full(2, np.nan)})
    )
    assert made["numbers"][0].tolist() == [2, 1, 3, 2, 2, 2]
    assert made["numbers"][1].tolist() == [0, np.inf, -np.inf, 0, 0, 2]


def test_a_sample_of_another_shape_is_unfit_unless_its_stream_collates() -> None:
    specs = (FieldSpec("x", "|u1", (4, 4)),)
    odd = Sample({"x": np.zeros((5, 4), np.uint8)})
    made = surveyed(odd, specs=specs)
    assert "shape (5, 4), in the stream's first sample it is uint8 of shape (4, 4)" in made["fault"]
    assert made["shapes"] == "5,4"
    assert not made["numbers"][:, COUNT].any()
    assert surveyed(odd, specs=specs, collated=True)["fault"] == ""


def test_a_sample_of_another_dtype_is_no_sample_of_its_stream() -> None:
    with pytest.raises(SampleFault, match="in the stream's first sample"):
        surveyed(Sample({"x": np.zeros(2, np.int16)}), specs=(FieldSpec("x", "|u1", (2,)),))


def test_equal_contents_have_equal_hashes_whatever_their_labels() -> None:
    same = [Sample({"x": np.arange(9), "label": np.array(n), "name": str(n)}) for n in range(2)]
    assert mark(same[0])[0] == mark(same[1])[0]
    assert mark(Sample({"x": np.arange(9).reshape(3, 3)}))[0] != mark(same[0])[0]
    assert mark(Sample({"y": np.array(1)}))[0] != mark(Sample({"y": np.array(2)}))[0]


def made_by(path: Path, **plan: Any) -> tuple[Sample, Sample, tuple[FieldSpec, ...]]:
    """The first sample of the database, as it is stored, and its fields."""
    with Source(StreamConfig("t", lmdb=str(path), **plan)) as source:
        sample_pipeline = SamplePipeline(source.plan, source)
        sample = sample_pipeline.make(SampleRequest(0, 0, 0), silent)
        return sample, source.read(0), sample_pipeline.specs(sample)


def test_a_stream_with_a_survey_hashes_what_is_stored_and_measures_what_is_made(
    tmp_path: Path,
) -> None:
    write_own(tmp_path / "db", image_samples())
    plain, _, specs = made_by(tmp_path / "db", transforms=(op("to_float"),))
    wanted = {"specs": [asdict(spec) for spec in specs], "collated": False}
    with Source(
        StreamConfig("t", lmdb=str(tmp_path / "db"), transforms=(op("to_float"),), survey=wanted)
    ) as source:
        made, stored = (
            SamplePipeline(source.plan, source).make(SampleRequest(0, 0, 0), silent),
            source.read(0),
        )
        assert (int(made["hash"]), int(made["stored"])) == mark(stored)
    for channel in range(3):
        expect(made["numbers"][channel], plain["image"][..., channel])
    assert made["fault"] == ""


def test_a_survey_leaves_faults_as_they_are(tmp_path: Path) -> None:
    write_own(tmp_path / "db", image_samples())
    with pytest.raises(SampleFault, match="NonFinite"):
        made_by(
            tmp_path / "db",
            transforms=(call("as_infinite"),),
            nonfinite="error",
            survey={"specs": [], "collated": False},
        )


def survey_of(first: dict[str, Any], *others: dict[str, Any], **plan: Any) -> list[Sample]:
    """Summaries of these samples of a dataset, whose first one has fixed the fields."""
    HELD[:] = [first, *others]
    made: list[Sample] = []
    with Source(dataset_plan("Holding", **plan)) as source:
        pipeline = SamplePipeline(source.plan, source)
        specs = pipeline.specs(pipeline.make(SampleRequest(0, 0, 0), silent))
        wanted = {
            "specs": [asdict(spec) for spec in specs],
            "collated": source.plan.whole_samples,
            "free": sorted(source.plan.free_fields),
        }
    scanned = {"collate": "stack", "pad": {}, "ragged": (), "survey": wanted}
    with Source(dataset_plan("Holding", **{**plan, **scanned})) as source:
        pipeline = SamplePipeline(source.plan, source)
        for index in range(1 + len(others)):
            made.append(pipeline.make(SampleRequest(0, 0, index), silent))
    return made


def test_an_empty_list_of_a_ragged_field_is_no_fault() -> None:
    first, empty = survey_of({"boxes": [[1, 2, 3, 4]]}, {"boxes": []}, ragged=("boxes",))
    assert (first["fault"], empty["fault"]) == ("", "")
    assert (first["shapes"], empty["shapes"]) == ("1,4", "0,4")


def test_samples_for_a_collate_function_have_no_faults_and_are_known_by_all_that_they_hold() -> (
    None
):
    collate = "loaderd_testing.sample_builders:as_it_came"
    summaries = survey_of(
        {"x": np.zeros(2), "ids": [1, 2]},
        {"x": np.zeros(2), "ids": [1, 3]},
        {"x": np.zeros(2), "ids": [1, 2]},
        {"x": np.zeros(2), "ids": [1, None]},
        {"x": "other", "ids": Point(1, object())},
        collate=collate,
    )
    assert {made["fault"] for made in summaries} == {""}
    hashes = [int(made["hash"]) for made in summaries]
    assert hashes[0] == hashes[2]
    assert len(set(hashes)) == 4
    assert [int(made["numbers"][0, COUNT]) for made in summaries] == [2, 2, 2, 2, 0]
