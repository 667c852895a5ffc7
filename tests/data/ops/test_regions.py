from __future__ import annotations

import math

import numpy as np
import pytest

from data.ops.op_runs import Given, run
from loaderd.core.rng import CounterRng
from loaderd.data.images.image_error import OpError
from loaderd.data.ops.regions import erased_box
from loaderd_testing.sample_builders import picture


@pytest.mark.parametrize(("size", "sigma"), [(3, 0.5), (5, 1.3), (9, 4.0)])
def test_a_blur_is_the_sum_of_its_neighbours_with_gaussian_weights(size: int, sigma: float) -> None:
    image, half = picture(24, 31), size // 2
    places = np.arange(size) - half
    weights = np.exp(-(places**2) / (2 * sigma**2))
    kernel = np.outer(weights, weights) / weights.sum() ** 2
    edged = np.pad(image.astype(float), ((half, half), (half, half), (0, 0)), "reflect")
    windows = np.lib.stride_tricks.sliding_window_view(edged, (size, size), axis=(0, 1))
    expected = np.einsum("hwcij,ij->hwc", windows, kernel)
    out = run("gaussian_blur", image, kernel_size=size, sigma=sigma)
    assert out.dtype == np.uint8
    assert np.abs(out - expected).max() <= 0.51


def test_a_blur_keeps_floats_and_one_channel() -> None:
    image = picture()[:, :, :1].astype(np.float32) / 255
    out = run("gaussian_blur", image, kernel_size=5)
    assert (out.dtype, out.shape) == (np.float32, image.shape)
    assert run("gaussian_blur", image, Given(0.5, 0.3), kernel_size=5, p=0.3) is image


def test_a_blur_wider_than_the_picture_is_told_with_both_sizes() -> None:
    with pytest.raises(OpError, match="kernel_size = 23 cannot mirror an image of 11 x 40"):
        run("gaussian_blur", picture(11, 40), kernel_size=23)


def test_the_erased_box_has_the_area_and_aspect_that_were_drawn() -> None:
    box = erased_box(100, 200, (0.0, 0.5), (0.5, 2.0), Given(0.5, 0.75, 3, 5), 0)
    area, aspect = 20_000 * 0.25, math.exp(math.log(0.5) + 0.75 * math.log(4))
    assert box == (3, 5, round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect)))
    assert erased_box(2, 2, (0.9, 1), (1, 1), CounterRng(0, 0, 0), 0) is None


def test_only_the_box_is_overwritten() -> None:
    image = picture(40, 60)
    draws = CounterRng(0, 0, 3)
    box = erased_box(40, 60, (0.02, 0.33), (0.3, 3.3), draws, 0)
    assert box is not None
    top, left, height, width = box
    out = run("random_erasing", image, draws, p=1, value=[1, 2, 3])
    assert (out[top : top + height, left : left + width] == [1, 2, 3]).all()
    changed = (out != image).any(axis=2)
    changed[top : top + height, left : left + width] = False
    assert not changed.any()
    assert run("random_erasing", image, draws, p=0) is image


def test_noise_is_of_the_pictures_type_and_the_same_each_time() -> None:
    draws = CounterRng(0, 0, 1)
    floats = np.full((64, 64, 3), 9, np.float32)
    out = run("random_erasing", floats, draws, p=1, value="random", scale=[0.3, 0.3])
    noise = out[out != 9]
    assert abs(noise.mean()) < 0.1
    assert abs(noise.std() - 1) < 0.1
    assert (
        out.tobytes()
        == run("random_erasing", floats, draws, p=1, value="random", scale=[0.3, 0.3]).tobytes()
    )
    whole = run("random_erasing", picture(), draws, p=1, value="random")
    assert whole.dtype == np.uint8
    assert len(np.unique(whole)) > 50


def test_half_a_level_cannot_be_written_into_bytes() -> None:
    with pytest.raises(OpError, match=r"value = 0\.5"):
        run("random_erasing", picture(), CounterRng(0, 0, 1), p=1, value=0.5)
