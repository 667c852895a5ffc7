from __future__ import annotations

import math
import os
import random

import numpy as np
import pytest
import sklearn.datasets
from PIL import Image

from loaderd.data.images.resize import FAR, NEAR, Axis, _taps, resample, resize
from loaderd_testing.sample_builders import picture


def photos() -> list[np.ndarray]:
    folder = os.path.join(os.path.dirname(sklearn.datasets.__file__), "images")
    found = []
    for name in ("china.jpg", "flower.jpg"):
        with Image.open(os.path.join(folder, name)) as image:
            found += [
                np.asarray(image),
                np.asarray(image.resize((500, 334), Image.Resampling.LANCZOS)),
            ]
    return found


def pillow(image: np.ndarray, height: int, width: int) -> np.ndarray:
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    error = float(((a.astype(float) - b) ** 2).mean())
    return 99.0 if error == 0 else 10 * math.log10(255**2 / error)


def test_the_training_recipe_on_photos_is_close_to_pillows_antialiased_bilinear() -> None:
    rng = random.Random(7)
    figures = []
    for image in photos():
        height, width, _ = image.shape
        for _ in range(30):
            area, aspect = (
                height * width * rng.uniform(0.08, 1),
                math.exp(rng.uniform(math.log(0.75), math.log(1.3333))),
            )
            h, w = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
            if h <= height and w <= width:
                top, left = rng.randint(0, height - h), rng.randint(0, width - w)
                crop = np.ascontiguousarray(image[top : top + h, left : left + w])
                figures.append(psnr(resize(crop, 224, 224), pillow(crop, 224, 224)))
    assert len(figures) > 60
    assert sum(figures) / len(figures) >= 48
    assert min(figures) >= 38


@pytest.mark.parametrize("size", [(64, 96), (32, 32), (100, 20), (333, 500), (10, 10)])
def test_far_shrinking_growing_and_mixed_sizes_are_close_to_pillow(size: tuple[int, int]) -> None:
    for image in photos()[1::2]:
        assert psnr(resize(image, *size), pillow(image, *size)) >= 38


def test_a_checkerboard_shrinks_to_gray_and_does_not_alias() -> None:
    board = (
        (np.indices((200, 200)).sum(axis=0) % 2 * 255)
        .astype(np.uint8)[:, :, None]
        .repeat(3, axis=2)
    )
    for size in (100, 90, 70, 67, 50, 20):
        assert np.abs(resize(board, size, size)[5:-5, 5:-5].astype(int) - 127).max() <= 8, size


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("size", [(20, 25), (80, 100), (30, 40), (5, 6)])
def test_shape_and_dtype_are_kept_for_any_channels(
    channels: int, dtype: type, size: tuple[int, int]
) -> None:
    image = np.repeat(picture()[:, :, :1], channels, axis=2).astype(dtype)
    out = resize(image, *size)
    assert out.shape == (*size, channels)
    assert out.dtype == dtype
    assert np.abs(out.astype(float).mean() - image.mean()) < 2
    np.testing.assert_allclose(out[..., 0], out[..., -1], rtol=1e-5)


def test_floats_are_resized_like_bytes() -> None:
    image = picture()
    for size in ((25, 30), (9, 9)):
        np.testing.assert_allclose(
            resize(image.astype(np.float32), *size), resize(image, *size), atol=1.6
        )


def test_a_view_with_any_strides_is_taken_and_left_as_it_is() -> None:
    image = picture(60, 60)
    before = image.copy()
    for size in ((10, 10), (25, 25), (100, 100)):
        np.testing.assert_array_equal(
            resize(image[::2, 5:40], *size), resize(image[::2, 5:40].copy(), *size)
        )
    np.testing.assert_array_equal(image, before)


def test_the_same_size_is_the_same_picture() -> None:
    image = picture()
    assert resize(image, 40, 50) is image


def test_taps_sum_to_one_and_are_the_triangle_at_two_and_three() -> None:
    for shrink in np.linspace(0.2, 3, 50):
        assert _taps(float(shrink)).sum() == pytest.approx(1, abs=1e-6)
    for shrink in np.linspace(1.08, 1.625, 20):
        assert _taps(float(shrink), cubic=True).sum() == pytest.approx(1, abs=1e-6)
    assert len(NEAR) == len(FAR) == 17
    np.testing.assert_allclose(_taps(2), [0.25, 0.5, 0.25])
    np.testing.assert_allclose(_taps(3), np.array([1, 2, 3, 2, 1]) / 9, atol=1e-4)
    np.testing.assert_allclose(_taps(0.5), [0, 1, 0])


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("step", [0.8, 1.0, 1.03, 1.3, 1.5, 1.9, 2.2, 2.7, 3.3, 4.5, 8.1])
def test_boxes_that_lie_between_pixels_are_close_to_pillow(
    channels: int, dtype: type, step: float
) -> None:
    draw = random.Random(step)
    photo = np.repeat(photos()[1][:, :, 1:2], channels, axis=2)
    for _ in range(6):
        count = draw.randint(8, int(300 / step))
        left, top = (
            draw.uniform(0, 499 - count * step),
            draw.uniform(0, 333 - count * step) if count * step < 333 else 0.3,
        )
        high = min(count, int((333 - top) / step))
        out = resample(
            photo.astype(dtype),
            Axis(top + (step - 1) / 2, step, high),
            Axis(left + (step - 1) / 2, step, count),
        )
        assert out.shape == (high, count, channels)
        assert out.dtype == dtype
        plane = Image.fromarray(photo[:, :, 0]).resize(
            (count, high),
            Image.Resampling.BILINEAR,
            (left, top, left + count * step, top + high * step),
        )
        assert psnr(np.rint(out[:, :, -1]), np.asarray(plane)) >= 38, (left, top, count, high)


def test_one_pixel_can_be_resized() -> None:
    image = np.full((1, 1, 3), 77, np.uint8)
    assert (resize(image, 5, 7) == 77).all()
    assert (resize(picture(), 1, 1) > 0).all()
