from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from data.ops.op_runs import Given, run
from loaderd.core.rng import CounterRng
from loaderd.data.images.image_error import MAX_PIXELS, ImageError, OpError
from loaderd.data.images.lazy_image import LazyImage
from loaderd.data.images.pixel_source import ArraySource
from loaderd.data.ops.geometry import crop_box
from loaderd.data.ops.levels import as_float
from loaderd.data.ops.table import check
from loaderd.data.ops.table import picture as as_picture
from loaderd_testing.sample_builders import picture

GOLDEN_BOXES = [(0, 1, 372, 420), (0, 38, 288, 359), (119, 308, 196, 149), (47, 35, 286, 222)]
GOLDEN_CROPS = [(6, 2), (3, 7), (1, 8), (8, 1), (2, 3), (3, 7)]
GOLDEN_FLIPS = [False, True, True, True, False, True, True, True, True, True, True, True]


def numbered(height: int, width: int) -> np.ndarray:
    """Each pixel says where it is: channel 0 its row, 1 its column."""
    rows, columns = np.indices((height, width), np.uint8)
    return np.dstack([rows, columns, np.full_like(rows, 9)])


@pytest.mark.parametrize(
    ("shape", "size", "expected"),
    [
        ((40, 50), 20, (20, 25)),
        ((50, 40), 20, (25, 20)),
        ((375, 500), 256, (256, 341)),
        ((500, 333), 256, (384, 256)),
        ((10, 10), 30, (30, 30)),
        ((40, 50), [7, 9], (7, 9)),
        ((300, 1), 2, (600, 2)),
        ((1, 3000), 1, (1, 3000)),
    ],
)
def test_resize_takes_the_shorter_side_and_rounds_the_longer_down(
    shape: tuple[int, int], size: Any, expected: tuple[int, int]
) -> None:
    assert run("resize", np.zeros((*shape, 3), np.uint8), size=size).shape == (*expected, 3)


def test_center_crop_takes_the_middle() -> None:
    out = run("center_crop", numbered(20, 31), size=[10, 11])
    assert out.shape == (10, 11, 3)
    assert out[0, 0].tolist() == [5, 10, 9]


def test_center_crop_rounds_halves_as_torchvision_does() -> None:
    # 1.5 and 2.5 both to the even 2
    assert run("center_crop", numbered(13, 15), size=10)[0, 0].tolist() == [2, 2, 9]


def test_center_crop_pads_what_is_too_small_with_zeros() -> None:
    out = run("center_crop", numbered(4, 30) + 1, size=7)
    assert out.shape == (7, 7, 3)
    assert (out[0] == 0).all()
    assert (out[-2:] == 0).all()
    assert (out[1:5, :, 2] == 10).all()


def test_random_crop_cuts_where_the_draws_say() -> None:
    out = run("random_crop", numbered(20, 30), Given(7, 19), size=[10, 11])
    assert out[0, 0].tolist() == [7, 19, 9]
    assert out.shape == (10, 11, 3)


def test_random_crop_pads_with_zeros_first() -> None:
    out = run("random_crop", numbered(8, 8) + 1, Given(0, 4), size=8, padding=4)
    assert (out[:4] == 0).all()
    assert out[4, 0].tolist() == [1, 1, 10]


def test_random_crop_reaches_every_place_and_no_other() -> None:
    seen = {
        tuple(run("random_crop", numbered(6, 5), CounterRng(0, 0, i), size=4)[0, 0, :2].tolist())
        for i in range(200)
    }
    assert seen == {(row, column) for row in range(3) for column in range(2)}


def test_random_crop_of_a_smaller_image_tells_both_sizes() -> None:
    with pytest.raises(OpError, match="32 x 32 from an image of 24 x 40"):
        run("random_crop", numbered(20, 36), size=32, padding=2)


def test_hflip_mirrors_as_often_as_p_says() -> None:
    image = numbered(3, 4)
    assert run("hflip", image, Given(0.49)).tolist() == image[:, ::-1].tolist()
    assert run("hflip", image, Given(0.5)) is image
    flips = sum(run("hflip", image, CounterRng(0, 0, i), p=0.3)[0, 0, 1] == 3 for i in range(2000))
    assert 500 < flips < 700
    assert run("hflip", image, Given(0.0), p=0) is image
    assert run("hflip", image[:, :, :1], Given(0.0)).shape == (3, 4, 1)


def test_the_box_is_the_area_and_aspect_that_were_drawn() -> None:
    top, left, height, width = crop_box(
        100, 200, (0.08, 1.0), (0.5, 2.0), Given(0.5, 0.75, 3, 5), 0
    )
    area, aspect = 20_000 * 0.54, math.exp(math.log(0.5) + 0.75 * math.log(4))
    assert (width, height) == (round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect)))
    assert (top, left) == (3, 5)


def test_a_box_that_never_fits_is_the_largest_middle_part() -> None:
    full = [1.0, 0.5, 0, 0] * 10  # the whole area as a square: fits neither of these
    assert crop_box(100, 400, (1, 1), (0.75, 1.3333), Given(*full), 0) == (0, 133, 100, 133)
    assert crop_box(400, 100, (1, 1), (0.75, 1.3333), Given(*full), 0) == (133, 0, 133, 100)
    assert crop_box(100, 125, (1, 1), (1.0, 1.3333), Given(*([1.0, 1.0, 0, 0] * 10)), 0) == (
        0,
        0,
        100,
        125,
    )


def test_the_box_takes_the_next_try_when_the_first_does_not_fit() -> None:
    draws = Given(*[1.0, 0.5, 0, 0], *[0.1, 0.5, 2, 1], *[0.0] * 32)
    assert crop_box(100, 400, (0.0001, 1), (1, 1), draws, 0)[:2] == (2, 1)


def test_boxes_spread_over_the_range_of_areas() -> None:
    areas = []
    for index in range(2000):
        top, left, height, width = crop_box(
            300, 400, (0.08, 1.0), (0.75, 1.3333), CounterRng(1, 2, index), 0
        )
        assert 0 <= top <= 300 - height
        assert 0 <= left <= 400 - width
        assert 0.74 < width / height < 1.35
        areas.append(height * width / 120_000)
    assert 0.4 < np.mean(areas) < 0.5
    assert 0.079 < min(areas) < 0.1
    assert max(areas) > 0.9


def test_a_crop_of_one_pixel_is_enough() -> None:
    assert (
        run("random_resized_crop", np.full((1, 1, 3), 5, np.uint8), size=4).tolist()
        == np.full((4, 4, 3), 5).tolist()
    )
    assert run("random_resized_crop", picture(2, 500), size=8).shape == (8, 8, 3)


def test_to_float_is_in_zero_to_one() -> None:
    image = picture()
    for channels in (1, 3, 6):
        every = np.arange(256, dtype=np.uint8).repeat(channels).reshape(16, 16, channels)
        np.testing.assert_array_equal(run("to_float", every), (every / 255).astype(np.float32))
    assert run("to_float", image).dtype == np.float32
    assert as_float(np.array([0, 65535], np.uint16)).tolist() == [0, 1]
    assert as_float(np.array([True, False])).tolist() == [1, 0]
    floats = np.ones((2, 2, 3), np.float32) * 7
    assert run("to_float", floats) is floats


@pytest.mark.parametrize("channels", [1, 3, 4, 5])
def test_normalize_is_mean_and_std_of_the_image_in_zero_to_one(channels: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (9, 7, channels), np.uint8)
    mean, std = [0.1 * c for c in range(channels)], [0.2 + 0.1 * c for c in range(channels)]
    expected = (image / 255 - mean) / std
    for source in (image, image[:, ::-1][:, ::-1], (image / 255).astype(np.float32)):
        out = run("normalize", source, mean=mean, std=std)
        assert out.dtype == np.float32
        np.testing.assert_allclose(out, expected, atol=1e-5)
    np.testing.assert_allclose(
        run("normalize", image, mean=0.5, std=2), (image / 255 - 0.5) / 2, atol=1e-6
    )


def test_normalize_with_the_wrong_number_of_channels_says_so() -> None:
    with pytest.raises(OpError, match="3 values of mean for an image of 1 channels"):
        run("normalize", picture()[:, :, :1], mean=[0.5, 0.5, 0.5], std=[1, 1, 1])


def test_to_chw_is_contiguous_and_planar() -> None:
    image = picture()
    out = run("to_chw", image)
    assert out.flags.c_contiguous
    np.testing.assert_array_equal(out, image.transpose(2, 0, 1))


def test_what_is_no_picture_is_refused_naming_op_and_field() -> None:
    for value in (
        np.zeros(3),
        np.zeros((2, 2), np.uint8),
        np.zeros((2, 2, 3), np.int16),
        np.zeros((0, 2, 3), np.uint8),
    ):
        with pytest.raises(OpError, match="resize cannot work on field 'x'"):
            check(LazyImage(ArraySource(as_picture(value, "resize", "x"))), "resize", "x")


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (4, 64, 48), (3, 224, 224)])
def test_a_picture_with_its_channels_first_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(OpError, match=r"'x': its shape .* looks like channels x height x width"):
        as_picture(np.zeros(shape, np.float32), "hflip", "x")


@pytest.mark.parametrize(
    "shape", [(4, 4, 64), (3, 3, 30), (1, 500, 3), (3, 224, 3), (5, 5, 30), (2, 9, 1)]
)
def test_a_small_picture_with_its_channels_last_is_taken(shape: tuple[int, ...]) -> None:
    assert as_picture(np.zeros(shape, np.float32), "hflip", "x").shape == shape


def test_draws_depend_on_place_and_sample_and_on_nothing_else() -> None:
    image = picture(60, 60)
    first = run("random_resized_crop", image, CounterRng(1, 2, 3), number=4, size=16)
    np.testing.assert_array_equal(
        first, run("random_resized_crop", image, CounterRng(1, 2, 3), number=4, size=16)
    )
    for draws, number in (
        (CounterRng(2, 2, 3), 4),
        (CounterRng(1, 3, 3), 4),
        (CounterRng(1, 2, 4), 4),
        (CounterRng(1, 2, 3), 5),
    ):
        assert not np.array_equal(
            first, run("random_resized_crop", image, draws, number=number, size=16)
        )


def test_golden_draws_do_not_change_between_versions() -> None:
    boxes = [
        crop_box(375, 500, (0.08, 1.0), (0.75, 1.3333), CounterRng(0, 0, index), 0)
        for index in range(4)
    ]
    assert boxes == GOLDEN_BOXES
    crops = [
        tuple(
            run("random_crop", numbered(40, 40), CounterRng(0, 1, index), number=1, size=32)[
                0, 0, :2
            ].tolist()
        )
        for index in range(6)
    ]
    assert crops == GOLDEN_CROPS
    assert [
        run("hflip", numbered(1, 2), CounterRng(5, 1, index), number=2)[0, 0, 1] == 1
        for index in range(12)
    ] == GOLDEN_FLIPS


def test_pillow_agrees_on_what_a_crop_and_resize_is() -> None:
    image = picture(90, 120)
    draws = CounterRng(3, 1, 4)
    top, left, height, width = crop_box(90, 120, (0.3, 1.0), (0.75, 1.3333), draws, 0)
    expected = (
        Image.fromarray(image)
        .crop((left, top, left + width, top + height))
        .resize((32, 32), Image.Resampling.BILINEAR)
    )
    out = run("random_resized_crop", image, draws, size=32, scale=[0.3, 1.0])
    assert np.abs(out.astype(int) - np.asarray(expected)).mean() < 1


@pytest.mark.parametrize(
    ("name", "args", "shape"),
    [
        ("resize", {"size": 224}, (1, 6000)),
        ("resize", {"size": [65535, 65535]}, (10, 10)),
        ("center_crop", {"size": 65535}, (1, 6000)),
        ("random_crop", {"size": 32, "padding": 40000}, (1, 6000)),
        ("random_resized_crop", {"size": 65535}, (100, 100)),
    ],
)
def test_what_would_have_more_pixels_than_an_image_may_takes_no_memory(
    name: str, args: dict[str, Any], shape: tuple[int, int]
) -> None:
    image = np.zeros((*shape, 3), np.uint8)
    tracemalloc.start()
    try:
        with pytest.raises(ImageError, match=f"{MAX_PIXELS}"):
            run(name, image, **args)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_as_many_pixels_as_an_image_may_have_are_made() -> None:
    assert run("resize", np.zeros((1, 1, 1), np.uint8), size=[13000, 13000]).shape == (
        13000,
        13000,
        1,
    )


def test_vflip_mirrors_top_and_bottom() -> None:
    image = numbered(3, 4)
    assert run("vflip", image, Given(0.49)).tolist() == image[::-1].tolist()
    assert run("vflip", image, Given(0.5)) is image


def test_mirrors_before_a_crop_are_those_of_the_whole_picture() -> None:
    view = LazyImage(ArraySource(numbered(7, 9)))
    view.flip()
    view.flip(rows=True)
    view.crop(1, 2, 3, 4)
    view.resize(3, 4)
    expected = numbered(7, 9)[::-1, ::-1][1:4, 2:6]
    assert view.pixels().tolist() == expected.tolist()


@pytest.mark.parametrize("k", range(4))
def test_rotate90_turns_counterclockwise(k: int) -> None:
    image = numbered(3, 4)
    assert run("rotate90", image, k=k).tolist() == np.rot90(image, k).tolist()
    assert run("rotate90", image, Given(0.0, k)).tolist() == np.rot90(image, k).tolist()


def test_rotate90_comes_with_its_probability() -> None:
    image = numbered(3, 4)
    assert run("rotate90", image, Given(0.3, 1), p=0.3) is image


@pytest.mark.parametrize(
    ("padding", "sides"),
    [(2, (2, 2, 2, 2)), ([1, 2], (1, 2, 1, 2)), ([1, 2, 3, 4], (1, 2, 3, 4))],
)
def test_pad_has_pillows_order_of_sides(padding: Any, sides: tuple[int, int, int, int]) -> None:
    image = picture(20, 30)
    expected = ImageOps.expand(Image.fromarray(image), sides, (7, 8, 9))
    out = run("pad", image, padding=padding, fill=[7, 8, 9])
    np.testing.assert_array_equal(out, np.asarray(expected))


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric"])
def test_pad_can_go_on_as_the_edge_does(mode: Any) -> None:
    image = picture(20, 30)
    out = run("pad", image, padding=[3, 5, 7, 9], padding_mode=mode)
    np.testing.assert_array_equal(out, np.pad(image, ((5, 9), (3, 7), (0, 0)), mode))


def test_a_fill_that_the_picture_cannot_hold_is_told() -> None:
    with pytest.raises(OpError, match=r"fill = 0.5.* does not fit a picture of uint8"):
        run("pad", picture(), padding=1, fill=0.5)
    with pytest.raises(OpError, match="2 values of fill for an image of 3 channels"):
        run("pad", picture(), padding=1, fill=[1, 2])


@pytest.mark.parametrize(
    ("shape", "size", "expected"),
    [
        ((40, 50), 25, (20, 25)),
        ((50, 40), 100, (100, 80)),
        ((30, 300), [32, 320], (32, 320)),
        ((30, 600), [32, 320], (16, 320)),
        ((60, 100), [32, 320], (32, 53)),
        ((1, 1000), 10, (1, 10)),
    ],
)
def test_long_side_is_the_largest_that_fits(
    shape: tuple[int, int], size: Any, expected: tuple[int, int]
) -> None:
    assert run("long_side", np.zeros((*shape, 3), np.uint8), size=size).shape == (*expected, 3)


@pytest.mark.parametrize("how", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("op", ["resize", "long_side", "random_resized_crop"])
def test_interpolation_is_pillows(op: str, how: str) -> None:
    image = picture(61, 61)  # no centre lies just between two pixels
    args: dict[str, Any] = {"size": 26, "interpolation": how}
    if op == "random_resized_crop":
        args |= {"scale": [1, 1], "ratio": [1, 1]}
    expected = Image.fromarray(image).resize((26, 26), Image.Resampling[how.upper()])
    assert np.abs(run(op, image, **args).astype(int) - np.asarray(expected)).max() <= 1
