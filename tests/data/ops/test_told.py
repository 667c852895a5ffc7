"""What an op says that it does is what it does."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from loaderd.core.rng import CounterRng
from loaderd.data.images.lazy_image import LazyImage
from loaderd.data.images.pixel_source import ArraySource
from loaderd.data.ops.table import MAKERS, make_op
from loaderd.data.ops.told import told
from loaderd_testing.sample_builders import picture

NEEDS: dict[str, dict[str, Any]] = {
    "resize": {"size": 20},
    "long_side": {"size": 20},
    "center_crop": {"size": 20},
    "random_crop": {"size": 20, "padding": 2},
    "random_resized_crop": {"size": 20},
    "hflip": {},
    "vflip": {},
    "rotate90": {"p": 0.5},
    "pad": {"padding": 3},
    "color_jitter": {"brightness": 0.4, "hue": 0.1, "p": 0.5},
    "grayscale": {"p": 0.5},
    "rand_augment": {},
    "gaussian_blur": {"kernel_size": 3, "sigma": [1.0, 2.0], "p": 0.5},
    "random_erasing": {"p": 0.5},
    "to_float": {},
    "normalize": {"mean": 0.5, "std": 0.5},
    "to_chw": {},
}


def test_every_op_is_here() -> None:
    assert NEEDS.keys() == MAKERS.keys()


@pytest.mark.parametrize("op", sorted(set(NEEDS) - {"to_float", "normalize", "to_chw"}))
def test_an_op_says_no_exactly_where_it_leaves_a_picture_as_it_is(op: str) -> None:
    run = make_op(op, NEEDS[op], 0).run
    before, said = picture(40, 50), set[str]()
    for index in range(20):
        draws = CounterRng(0, 0, index)
        view = LazyImage(ArraySource(before))
        run(view, draws)
        after = view.pixels()
        words = told(op, run, 40, 50, draws)
        assert words.startswith(f"{op}: ")
        said.add(words)
        if words == f"{op}: no":
            np.testing.assert_array_equal(after, before)
        elif op not in ("rand_augment", "rotate90"):  # identity, and a turn by 0 degrees
            assert after.shape != before.shape or (after != before).any()
    assert len(said) > 1 or op in ("resize", "long_side", "center_crop", "pad")


@pytest.mark.parametrize("op", ["to_float", "normalize", "to_chw"])
def test_an_op_that_is_the_same_for_all_says_nothing(op: str) -> None:
    assert told(op, make_op(op, NEEDS[op], 0).run, 40, 50, CounterRng(0, 0, 0)) == ""


def test_a_crop_is_told_with_its_place() -> None:
    run = make_op("random_crop", {"size": [20, 30]}, 0).run
    draws = CounterRng(0, 0, 1)
    words = told("random_crop", run, 40, 50, draws)
    found = re.fullmatch(r"random_crop: 20 x 30 at (\d+), (\d+) of 40 x 50", words)
    assert found is not None
    top, left = map(int, found.groups())
    view = LazyImage(ArraySource(picture(40, 50)))
    run(view, draws)
    np.testing.assert_array_equal(view.pixels(), picture(40, 50)[top : top + 20, left : left + 30])
