from __future__ import annotations

import math
import random

import numpy as np
import pytest
from PIL import Image

from loaderd.data.images import resize as resizing
from loaderd.data.images.resize import Axis, _native, resample, resize, whole
from loaderd_testing.sample_builders import picture, real_photo


def photos() -> list[np.ndarray]:
    found = []
    for name in ("china", "flower"):
        image = real_photo(name)
        smaller = Image.fromarray(image).resize((500, 334), Image.Resampling.LANCZOS)
        found += [image, np.asarray(smaller)]
    return found


def pillow(image: np.ndarray, height: int, width: int) -> np.ndarray:
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))


def off(a: np.ndarray, b: np.ndarray) -> int:
    """The largest difference, in levels."""
    return int(np.abs(np.rint(a).astype(int) - b).max())


def numbers(height: int, width: int) -> np.ndarray:
    """Noise, which shows every fault of a filter."""
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8)


def test_the_training_recipe_on_photos_is_pillows_antialiased_bilinear() -> None:
    rng = random.Random(7)
    for image in photos():
        height, width, _ = image.shape
        for _ in range(8):
            area, aspect = (
                height * width * rng.uniform(0.08, 1),
                math.exp(rng.uniform(math.log(0.75), math.log(1.3333))),
            )
            h, w = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
            if h <= height and w <= width:
                top, left = rng.randint(0, height - h), rng.randint(0, width - w)
                crop = image[top : top + h, left : left + w]
                expected = pillow(np.ascontiguousarray(crop), 224, 224)
                assert off(resize(crop, 224, 224), expected) <= 1


@pytest.mark.parametrize("how", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(64, 96), (100, 20), (200, 300), (5, 400), (400, 5), (1, 1)])
def test_any_size_is_pillows_and_numpys_bytes_are_those_of_native_code(
    how: str, size: tuple[int, int]
) -> None:
    for image in (numbers(97, 131), numbers(30, 500)):
        height, width, _ = image.shape
        filter_ = Image.Resampling[how.upper()]
        expected = np.asarray(Image.fromarray(image).resize((size[1], size[0]), filter_))
        # Pillow 13 goes down first where that is less work: clipped overshoots differ then
        assert off(resize(image, *size, how), expected) <= (1 if how == "bilinear" else 13)
        axes = whole(height, size[0]), whole(width, size[1])
        ways = [_native(image, *axes, how, plain=plain) for plain in (False, True)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(resizing, "library", lambda: None)
            made = resample(image, *axes, how)
        for way in ways:
            if way is not None:
                np.testing.assert_array_equal(way, made)


def test_sixteen_bits_are_resized_as_such() -> None:
    image = numbers(60, 80).astype(np.uint16) * 257
    out = resize(image, 25, 31)
    assert out.dtype == np.uint16
    exact = resize(image.astype(np.float32), 25, 31)
    assert np.abs(out - exact).max() <= 1.01
    assert off(out / 257, resize(numbers(60, 80), 25, 31)) <= 1


def test_nearest_is_pillows() -> None:
    image = numbers(97, 131)
    for size in ((40, 50), (300, 200), (97, 10)):
        expected = Image.fromarray(image).resize((size[1], size[0]), Image.Resampling.NEAREST)
        np.testing.assert_array_equal(resize(image, *size, "nearest"), np.asarray(expected))


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
        assert off(out[:, :, -1], np.asarray(plane)) <= 1, (left, top, count, high)


def test_one_pixel_can_be_resized() -> None:
    image = np.full((1, 1, 3), 77, np.uint8)
    assert (resize(image, 5, 7) == 77).all()
    assert (resize(picture(), 1, 1) > 0).all()
