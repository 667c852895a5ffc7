from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from data.ops.op_runs import Given, run
from loaderd.core.rng import CounterRng
from loaderd.data.images.image_error import OpError
from loaderd.data.images.lazy_image import LazyImage
from loaderd.data.images.pixel_source import ArraySource
from loaderd.data.ops.table import check
from loaderd_testing.sample_builders import picture


def hue_of(image: Any) -> np.ndarray:
    return np.asarray(image.convert("HSV"))[:, :, 0].astype(int)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("brightness", ImageEnhance.Brightness),
        ("contrast", ImageEnhance.Contrast),
        ("saturation", ImageEnhance.Color),
    ],
)
def test_a_strength_is_pillows_enhancement_by_the_factor_drawn(
    name: str, made: Callable[[Any], Any]
) -> None:
    image = picture()
    # all strengths are drawn at 0.75 of their range; then the order, then whether at all
    draws = Given(0.75, 0.75, 0.75, 0.75, 0, 0, 0, 0.0)
    expected = made(Image.fromarray(image)).enhance(1.2)
    np.testing.assert_array_equal(run("color_jitter", image, draws, 0, **{name: 0.4}), expected)
    again = run("color_jitter", image, draws, 0, **{name: [0.9, 1.3]})
    np.testing.assert_array_equal(again, expected)


def test_the_hue_is_turned_in_256_steps_and_nothing_else_is() -> None:
    image = np.zeros((1, 3, 3), np.uint8)
    image[0, [0, 1, 2], [0, 1, 2]] = 200  # red, green, blue
    draws = Given(0.5, 0.5, 0.5, 1.0, 0, 0, 0, 0.0)
    out = run("color_jitter", image, draws, hue=[-0.5, 0.335])
    assert np.abs(out.astype(int) - np.roll(image, 1, axis=2)).max() <= 3
    again = Image.fromarray(picture())
    turned = Image.fromarray(run("color_jitter", picture(), draws, hue=[-0.5, 0.25]))
    off = (hue_of(turned) - hue_of(again) - 63 + 128) % 256 - 128
    assert np.median(np.abs(off)) <= 1


def test_the_order_of_the_four_is_drawn() -> None:
    image = picture()
    seen = {
        run(
            "color_jitter", image, CounterRng(0, 0, i), contrast=[3, 3], brightness=[2, 2]
        ).tobytes()
        for i in range(20)
    }
    assert len(seen) == 2


def test_without_a_strength_nothing_is_done() -> None:
    image = picture()
    assert run("color_jitter", image) is image
    assert run("color_jitter", image, brightness=0.5, p=0) is image


def test_grayscale_is_pillows_luma_in_as_many_channels() -> None:
    image = picture()
    luma = np.asarray(Image.fromarray(image).convert("L"))
    assert run("grayscale", image).tolist() == np.dstack([luma] * 3).tolist()
    assert run("grayscale", image[:, :, :1]).tolist() == image[:, :, :1].tolist()
    assert run("grayscale", image, Given(0.2), p=0.2) is image


def test_an_alpha_channel_stays_as_it_is() -> None:
    image = np.dstack([picture(), picture()[:, :, 0]])
    out = run("color_jitter", image, brightness=[0.5, 0.5])
    assert out[:, :, 3].tolist() == image[:, :, 3].tolist()
    assert out[:, :, :3].tolist() == run("color_jitter", picture(), brightness=[0.5, 0.5]).tolist()


def test_colours_of_floats_or_labels_are_refused_with_the_way_out() -> None:
    floats = LazyImage(ArraySource(picture().astype(np.float32)))
    with pytest.raises(OpError, match="put it before to_float and normalize"):
        check(floats, "color_jitter", "image")
    mask = LazyImage(ArraySource(picture()[:, :, :1]), labels=True)
    with pytest.raises(OpError, match="'mask': its numbers are labels"):
        check(mask, "grayscale", "mask")
