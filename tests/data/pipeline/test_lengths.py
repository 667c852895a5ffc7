from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loaderd.config.stream import StreamConfig
from loaderd.data.errors import SampleFault
from loaderd.data.pipeline.lengths import LENGTH, LengthBatcher, padded
from loaderd.data.pipeline.pipeline import SamplePipeline
from loaderd.data.pipeline.request import SampleRequest
from loaderd.data.sample import BadValue, Sample
from loaderd.data.sources.source import Source
from loaderd_testing.sample_builders import HELD, call, dataset_plan, silent


def rule(value: float = 0, multiple: int = 1, mask: str = "") -> dict[str, Any]:
    return {"value": value, "multiple": multiple, "mask": mask}


def made(*held: Any, **plan: Any) -> list[Sample]:
    """The samples of a dataset of these values; a bad one raises its fault."""
    HELD[:] = held
    with Source(dataset_plan("Holding", **plan)) as source:
        sample_pipeline = SamplePipeline(source.plan, source)
        samples: list[Sample] = []
        for index in range(len(held)):
            samples.append(sample_pipeline.make(SampleRequest(0, 0, index), silent))
            if not index:
                sample_pipeline.fix(sample_pipeline.specs(samples[0]))
        return samples


def batch(*held: Any, **plan: Any) -> dict[str, Any]:
    return LengthBatcher(StreamConfig("t", **plan))(made(*held, **plan))


def test_lists_of_numbers_are_padded_to_the_longest_of_the_batch() -> None:
    got = batch(
        {"ids": [1, 2], "label": 5, "text": "a"},
        {"ids": [], "label": 6, "text": "b"},
        {"ids": [3, 4, 5], "label": 7, "text": "c"},
        pad={"ids": rule(-1, mask="attention_mask")},
    )
    assert got["ids"].tolist() == [[1, 2, -1], [-1, -1, -1], [3, 4, 5]]
    assert got["attention_mask"].tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1]]
    assert (got["label"].tolist(), got["text"]) == ([5, 6, 7], ["a", "b", "c"])
    assert got[LENGTH].tolist() == [2, 0, 3]
    assert {got[name].dtype for name in ("ids", "attention_mask", LENGTH)} == {np.dtype(np.int64)}


def test_the_first_axis_is_padded_to_a_multiple_and_every_axis_to_the_longest() -> None:
    values = [np.ones((2, 3), np.float32), np.ones((5, 1), np.float32)]
    got, lengths = padded(values, np.nan, 4, "x")
    assert got.shape == (2, 8, 3)
    assert lengths.tolist() == [2, 5]
    assert np.nansum(got) == 6 + 5


@pytest.mark.parametrize(
    ("values", "fill", "words"),
    [
        ([np.zeros(2, np.uint8)], -1, "uint8, which cannot hold -1"),
        ([np.zeros(2, np.int64)], 0.5, "cannot hold 0.5"),
        ([np.array(3)], 0, "is a number, which has no length"),
    ],
)
def test_what_cannot_be_padded_says_why(values: Any, fill: float, words: str) -> None:
    with pytest.raises(BadValue, match=words):
        padded(values, fill, 1, "x")


def test_ragged_fields_are_a_list_or_flat_with_offsets() -> None:
    held = ({"boxes": [[0, 0, 1, 1]]}, {"boxes": []}, {"boxes": [[1, 1, 2, 2], [0, 0, 5, 5]]})
    got = batch(*held, ragged=("boxes",))
    assert [boxes.shape for boxes in got["boxes"]] == [(1, 4), (0, 4), (2, 4)]
    got = batch(*held, ragged=("boxes",), ragged_as="flat")
    assert got["boxes"].shape == (3, 4)
    assert got["boxes.offsets"].tolist() == [0, 1, 1, 3]


def test_a_transform_may_return_lists_for_such_a_field() -> None:
    (sample,) = made(
        {"x": 1, "boxes": [(0, 0, 1, 1)]}, ragged=("boxes",), transforms=(call("with_box"),)
    )
    assert sample["boxes"].shape == (2, 4)


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (({"ids": [1], "y": [1]}, {"ids": [1], "y": [1, 2]}), "field 'y.1' more"),
        (({"ids": [1]}, {"ids": [1.5]}), "'ids' is float64 of shape"),
        (({"ids": [1]}, {"ids": [[1]]}), r"'ids' is int64 of shape \(1, 1\)"),
        (({"ids": [1]}, {"ids": [[1], [1, 2]]}), "'ids' is a list that is no array"),
    ],
)
def test_a_sample_that_does_not_fit_the_others_is_bad_by_itself(held: Any, words: str) -> None:
    with pytest.raises(SampleFault, match=words):
        made(*held, pad={"ids": rule()})


@pytest.mark.parametrize(
    ("held", "plan", "words"),
    [
        ({"x": 1}, {"pad": {"ids": rule()}}, "'ids' is named in pad or ragged.* they have 'x'"),
        ({"ids": "a"}, {"ragged": ("ids",)}, "no array of that name"),
        ({"ids": [1], "m": 1}, {"pad": {"ids": rule(mask="m")}}, "two fields are called 'm'"),
    ],
)
def test_a_setting_that_names_what_is_not_there_says_what_is(
    held: Any, plan: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadValue, match=words):
        batch(held, **plan)
