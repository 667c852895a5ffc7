from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from data.ops.op_runs import Given
from loaderd.core.rng import CounterRng
from loaderd.data.images.image_error import OpError
from loaderd.data.images.lazy_image import LazyImage
from loaderd.data.images.pixel_source import ArraySource
from loaderd.data.ops.table import make_op
from loaderd.data.sample import Sample

HEIGHT, WIDTH = 60, 80


def moved(op: str, fields: dict[str, Any], draws: CounterRng | None = None, **args: Any) -> Sample:
    """The sample after the op on a picture of HEIGHT x WIDTH."""
    sample = Sample(fields)
    ready = make_op(op, args, 0)
    ready.marks.move(sample, ready.run, draws or CounterRng(0, 0, 0), (HEIGHT, WIDTH), op)
    return sample


def boxes(*rows: list[float]) -> dict[str, Any]:
    return {"boxes": np.array(rows, np.float32), "labels": np.arange(len(rows))}


GEOMETRY: list[tuple[str, dict[str, Any]]] = [
    ("resize", {"size": [30, 120]}),
    ("long_side", {"size": 160}),
    ("center_crop", {"size": 50}),
    ("center_crop", {"size": 100}),
    ("random_crop", {"size": 40, "padding": 7}),
    ("random_resized_crop", {"size": [40, 90]}),
    ("hflip", {"p": 1}),
    ("vflip", {"p": 1}),
    ("rotate90", {"k": 1}),
    ("rotate90", {"k": 2}),
    ("rotate90", {"k": 3}),
    ("pad", {"padding": [1, 2, 3, 4]}),
]


@pytest.mark.parametrize(("op", "args"), GEOMETRY)
def test_a_box_stays_around_what_it_was_drawn_around(op: str, args: dict[str, Any]) -> None:
    image = np.zeros((HEIGHT, WIDTH, 1), np.float32)
    image[24:44, 30:50] = 1
    for index in range(5):
        draws = CounterRng(0, 0, index)
        view = LazyImage(ArraySource(image))
        make_op(op, args, 0).run(view, draws)
        pixels = view.pixels()[:, :, 0] > 0.5
        sample = moved(op, boxes([30, 24, 50, 44]), draws, **args, boxes="boxes")
        if pixels.any():
            rows, columns = np.flatnonzero(pixels.any(1)), np.flatnonzero(pixels.any(0))
            expected = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
            assert np.abs(sample["boxes"][0] - expected).max() <= 1


def test_boxes_are_clipped_and_those_outside_dropped_with_their_labels() -> None:
    fields = boxes([0, 0, 10, 10], [10, 5, 30, 25], [70, 50, 80, 60])
    sample = moved("center_crop", fields, size=40, boxes="boxes")
    # the crop begins at x = 20, y = 10
    assert sample["boxes"].tolist() == [[0, 0, 10, 15]]
    assert sample["labels"].tolist() == [1]
    assert sample["boxes"].dtype == np.float32


def test_without_any_box_left_shapes_and_dtypes_stay() -> None:
    sample = moved("center_crop", boxes([0, 0, 5, 5]), size=10, boxes="boxes")
    assert sample["boxes"].shape == (0, 4)
    assert sample["labels"].shape == (0,)
    empty = {"boxes": np.empty((0, 4), np.int64), "labels": np.empty(0, np.int64)}
    sample = moved("hflip", empty, p=1, boxes="boxes")
    assert (sample["boxes"].shape, sample["boxes"].dtype) == ((0, 4), np.int64)


def test_whole_numbers_are_rounded() -> None:
    sample = moved("resize", {"boxes": np.array([[10, 20, 31, 41]])}, size=[30, 40], boxes="boxes")
    assert sample["boxes"].tolist() == [[5, 10, 16, 20]]


def test_a_field_that_may_belong_to_the_boxes_is_asked_for_and_never_left_behind() -> None:
    fields = boxes([0, 0, 10, 10], [30, 20, 50, 40]) | {"area": np.array([100, 400])}
    with pytest.raises(OpError, match="field 'area' has a row for each box, too: say follow"):
        moved("center_crop", fields, size=40, boxes="boxes")
    both = moved("center_crop", fields, size=40, boxes="boxes", follow=["labels", "area"])
    assert (both["labels"].tolist(), both["area"].tolist()) == ([1], [400])
    alone = moved("center_crop", fields, size=40, boxes="boxes", follow=["labels"])
    assert alone["area"].tolist() == [100, 400]
    with pytest.raises(OpError, match="no field 'areas', which follow names"):
        moved("center_crop", fields, size=40, boxes="boxes", follow=["areas"])


def test_lists_are_taken_as_arrays_are() -> None:
    fields = {"boxes": [[0, 0, 10, 10], [30, 20, 50, 40]], "labels": ["cat", "dog"]}
    sample = moved("center_crop", fields, size=40, boxes="boxes")
    assert sample["boxes"].tolist() == [[10, 10, 30, 30]]
    assert sample["labels"] == ["dog"]


def test_labels_of_another_number_than_the_boxes_are_told() -> None:
    fields = boxes([0, 0, 10, 10]) | {"labels": np.arange(3)}
    with pytest.raises(OpError, match="'labels' has 3 rows and field 'boxes' 1 boxes"):
        moved("hflip", fields, boxes="boxes")


def test_points_outside_are_dropped_and_those_of_objects_become_invisible() -> None:
    flat = {"points": np.array([[5.0, 5.0, 2.0], [40.0, 30.0, 1.0]])}
    sample = moved("center_crop", flat, size=40, keypoints="points")
    assert sample["points"].tolist() == [[20, 20, 1]]
    joints = boxes([0, 0, 5, 5], [20, 10, 60, 50]) | {
        "points": np.array([[[1.0, 1, 2], [2, 2, 2]], [[40, 30, 2], [79, 59, 2]]])
    }
    sample = moved("center_crop", joints, size=40, boxes="boxes", keypoints="points")
    assert sample["points"].tolist() == [[[20, 20, 2], [0, 0, 0]]]


def test_outlines_are_moved_to_the_edge_and_go_with_their_boxes() -> None:
    outlines = {"outline": np.array([[[0.0, 0], [5, 0], [5, 5]], [[10, 10], [40, 10], [40, 30]]])}
    fields = boxes([0, 0, 5, 5], [10, 10, 40, 30]) | outlines
    sample = moved("center_crop", fields, size=40, boxes="boxes", polygons="outline")
    assert sample["outline"].tolist() == [[[0, 0], [20, 0], [20, 20]]]
    alone = moved("center_crop", outlines, size=40, polygons="outline")
    assert alone["outline"].tolist() == [[[0, 0], [20, 0], [20, 20]]]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (np.zeros((3, 5)), r"of shape \(3, 5\): it is to be n x 4"),
        (np.array([[10, 10, 5, 20]]), r"box 0 is \[10, 10, 5, 20\], but boxes are to be x1, y1"),
        (np.array([[np.nan, 0, 1, 1]]), "box 0"),
        ("text", "no array of numbers"),
    ],
)
def test_what_are_no_boxes_is_told(value: Any, told: str) -> None:
    with pytest.raises(OpError, match=told):
        moved("hflip", {"boxes": value}, Given(0.0), boxes="boxes")


def test_boxes_that_the_sample_does_not_have_are_told() -> None:
    with pytest.raises(OpError, match="'boxes': the sample does not have it"):
        moved("hflip", {"image": np.zeros(3)}, Given(0.0), boxes="boxes")
