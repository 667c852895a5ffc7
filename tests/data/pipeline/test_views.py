from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from data.pipeline.test_pipeline import Stream, closed
from loaderd.config.stream import TransformConfig
from loaderd.core.rng import CounterRng
from loaderd.data.pipeline.request import SampleRequest
from loaderd.data.sample import Sample
from loaderd_testing.sample_builders import coded, op, picture, silent

__all__ = ["closed"]  # the fixture

CROP = op("random_resized_crop", size=16)


def noise(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    sample["image"][0, 0, 0] = rng.integers(256)
    return sample


def test_each_view_has_draws_of_its_own_and_the_first_those_of_a_single_one(tmp_path: Path) -> None:
    single = Stream(tmp_path, transforms=(CROP,))
    double = Stream(tmp_path, transforms=(CROP,), views=2)
    for index in range(3):
        made = double.make(index)
        assert made.keys() == {"image.0", "image.1", "label"}
        assert made.images == {"image.0", "image.1"}
        np.testing.assert_array_equal(made["image.0"], single.make(index)["image"])
        assert (made["image.0"] != made["image.1"]).any()
        np.testing.assert_array_equal(made["image.1"], double.make(index)["image.1"])


def test_the_second_view_is_that_of_its_draws_alone(tmp_path: Path) -> None:
    made = Stream(tmp_path, transforms=(op("hflip"),), views=8).make(1)
    plain = Stream(tmp_path).make(1)["image"]
    for view in range(8):
        mirrored = CounterRng(0, 0, 1, view).uniform(0, 0) < 0.5
        expected = plain[:, ::-1] if mirrored else plain
        np.testing.assert_array_equal(made[f"image.{view}"], expected)


def test_user_code_gets_another_generator_for_each_view(tmp_path: Path) -> None:
    call = TransformConfig(None, f"{__name__}:noise", {})
    made = Stream(tmp_path, transforms=(call,), views=4).make()
    assert len({int(made[f"image.{view}"][0, 0, 0]) for view in range(4)}) > 1


def test_pictures_are_made_where_the_batch_wants_them(tmp_path: Path) -> None:
    stream = Stream(tmp_path, transforms=(CROP,), views=2)
    out = {f"image.{view}": np.zeros((16, 16, 3), np.uint8) for view in range(2)}
    made = stream.sample_pipeline.make(SampleRequest(0, 0, 0, out=out), silent)
    expected = stream.make()
    for name in out:
        np.testing.assert_array_equal(made[name], expected[name])


def test_boxes_and_their_labels_are_those_of_their_view(tmp_path: Path) -> None:
    fields = {
        "image": coded(picture(), "PNG"),
        "boxes": np.array([[0, 0, 50, 40], [0, 0, 1, 1]], np.float32),
        "labels": np.array([7, 8]),
        "name": "a",
    }
    samples = [Sample(fields, encoded=("image",))]
    crop = op("random_crop", size=20, boxes="boxes")
    made = Stream(tmp_path, samples, transforms=(crop,), views=2).make()
    assert made.keys() == {
        "image.0", "image.1", "boxes.0", "boxes.1", "labels.0", "labels.1", "name",
    }  # fmt: skip
    assert made["boxes.1"].tolist() == [[0, 0, 20, 20]]
    assert made["labels.1"].tolist() == [7]
