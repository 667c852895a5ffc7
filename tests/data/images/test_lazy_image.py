"""Pictures planned first and made once are those that Pillow makes step by step, from whatever the
plan is carried out on.
"""

from __future__ import annotations

import functools
import io
import math
import random
from statistics import mean
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg
from PIL import Image

from loaderd.core.rng import CounterRng
from loaderd.data.images.decode import decode
from loaderd.data.images.image_error import ImageError
from loaderd.data.images.lazy_image import LazyImage
from loaderd.data.images.pixel_source import ArraySource, ImagePart, JpegSource, open_image
from loaderd.data.jpeg import fused_decode, tiles
from loaderd.data.jpeg.rewrite import can_rewrite, indexed, rewrite
from loaderd.data.ops.geometry import crop_box
from loaderd.data.ops.table import make_op
from loaderd_testing.sample_builders import coded, picture, real_photo

TRAIN = (("random_resized_crop", {"size": 224}), ("hflip", {}))
EVAL = (("resize", {"size": 256}), ("center_crop", {"size": 224}))
Steps = tuple[tuple[str, dict[str, Any]], ...]


@functools.cache
def photos(height: int, width: int, count: int = 4) -> tuple[bytes, ...]:
    """Parts of real photos with a little sensor noise, as JPEGs."""
    rng = np.random.default_rng(5)
    out = []
    for at in range(count):
        photo = real_photo(("china", "flower")[at % 2])
        factor = max(height / photo.shape[0], width / photo.shape[1]) * (1.02 + 0.2 * at)
        photo = cv2.resize(
            photo,
            None,
            fx=factor,
            fy=factor,
            interpolation=cv2.INTER_CUBIC if factor > 1 else cv2.INTER_AREA,
        )
        top, left = (
            rng.integers(0, photo.shape[0] - height + 1),
            rng.integers(0, photo.shape[1] - width + 1),
        )
        part = photo[top : top + height, left : left + width] + rng.normal(0, 4, (height, width, 3))
        out.append(
            simplejpeg.encode_jpeg(
                np.clip(part, 0, 255).astype(np.uint8), quality=92, colorsubsampling="420"
            )
        )
    return tuple(out)


@functools.cache
def tiled(data: bytes) -> bytes:
    """The same image with an index of tiles; whole rows of them where there is nothing that can
    rewrite.
    """
    if can_rewrite():
        return rewrite(data)
    return indexed(
        coded(
            Image.open(io.BytesIO(data)),
            "JPEG",
            quality="keep",
            subsampling="keep",
            restart_marker_rows=1,
        )
    )


def made(
    source: ArraySource | JpegSource, steps: Steps, draws: CounterRng | None = None
) -> np.ndarray:
    view = LazyImage(source)
    for number, (name, args) in enumerate(steps):
        make_op(name, args, number).run(view, draws or CounterRng(0, 0, 0))
    return view.pixels()


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    error = float(((a.astype(float) - b) ** 2).mean())
    return 99.0 if error == 0 else 10 * math.log10(255**2 / error)


def trained(data: bytes, draws: CounterRng) -> np.ndarray:
    """The training recipe as torchvision has it, by Pillow, with the same draws."""
    image = Image.fromarray(decode(data))
    top, left, height, width = crop_box(
        image.height, image.width, (0.08, 1.0), (0.75, 1.3333), draws, 0
    )
    out = image.crop((left, top, left + width, top + height)).resize(
        (224, 224), Image.Resampling.BILINEAR
    )
    return np.asarray(out)[:, ::-1] if draws.uniform(1, 0) < 0.5 else np.asarray(out)


def evaluated(data: bytes) -> np.ndarray:
    """Resize(256) and CenterCrop(224) as torchvision has them, by Pillow."""
    image = Image.fromarray(decode(data))
    short, long = sorted((image.height, image.width))
    longer = int(256 * long / short)
    image = image.resize(
        (256, longer) if image.height > image.width else (longer, 256), Image.Resampling.BILINEAR
    )
    top, left = round((image.height - 224) / 2.0), round((image.width - 224) / 2.0)
    return np.asarray(image.crop((left, top, left + 224, top + 224)))


@pytest.fixture(params=["swift", "without"])
def means(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extension, where it has been built, and without."""
    if request.param == "without":
        monkeypatch.setattr(fused_decode, "library", lambda: None)


@pytest.mark.usefixtures("means")
@pytest.mark.parametrize(
    ("height", "width", "draws"), [(375, 500, 25), (1200, 1600, 12), (500, 333, 12)]
)
def test_the_training_recipe_is_close_to_pillows(height: int, width: int, draws: int) -> None:
    figures = []
    for number, data in enumerate(photos(height, width)):
        for index in range(draws):
            chosen = CounterRng(1, number, index)
            figures.append(
                psnr(made(open_image(tiled(data), "rgb"), TRAIN, chosen), trained(data, chosen))
            )
    assert mean(figures) >= 48
    assert min(figures) >= 38


@pytest.mark.usefixtures("means")
@pytest.mark.parametrize(
    ("height", "width"), [(375, 500), (500, 375), (333, 500), (1200, 1600), (257, 300), (768, 1024)]
)
def test_the_evaluation_recipe_is_close_to_torchvisions(height: int, width: int) -> None:
    figures = [
        psnr(made(open_image(data, "rgb"), EVAL), evaluated(data)) for data in photos(height, width)
    ]
    assert mean(figures) >= 45


def seeder(draw: random.Random, height: int, width: int) -> Steps:
    """A few ops with sizes that an image of this size may have."""
    side = draw.choice((16, 20, 33, 64))
    return draw.choice(
        (
            (("random_resized_crop", {"size": side, "scale": [0.02, 1.0]}), ("hflip", {})),
            (("resize", {"size": side + 7}), ("center_crop", {"size": side})),
            (
                ("resize", {"size": [side, side // 2 + 9]}),
                ("hflip", {}),
                ("random_crop", {"size": 16}),
            ),
            (("random_crop", {"size": min(height, width, 40)}), ("resize", {"size": 24})),
            (
                ("center_crop", {"size": [height - 5, width // 3]}),
                ("hflip", {"p": 1}),
                ("resize", {"size": side}),
            ),
            (("hflip", {}), ("random_crop", {"size": min(height, width, 30)})),
            (("center_crop", {"size": max(height, width) + 3}), ("resize", {"size": side})),
            (("resize", {"size": 99}), ("resize", {"size": 31})),
            (),
        )
    )


@pytest.mark.usefixtures("means")
@pytest.mark.parametrize("mode", ["rgb", "gray"])
@pytest.mark.parametrize(("height", "width"), [(75, 118), (61, 205), (240, 256), (700, 500)])
def test_a_result_does_not_depend_on_whether_the_jpeg_has_tiles(
    height: int, width: int, mode: str
) -> None:
    draw = random.Random(f"{height} {mode}")
    plain = photos(height, width, 1)[0]
    partly = 0
    for index in range(60):
        steps, draws = seeder(draw, height, width), CounterRng(2, 0, index)
        with_tiles = open_image(memoryview(tiled(plain)), mode)
        np.testing.assert_array_equal(
            made(with_tiles, steps, draws), made(open_image(plain, mode), steps, draws), str(steps)
        )
        partly += isinstance(with_tiles, JpegSource)
    assert partly == 60


@pytest.mark.parametrize("kind", ["gray", "444", "422", "progressive"])
def test_other_kinds_of_jpeg_are_the_same_with_tiles_too(kind: str) -> None:
    image = Image.fromarray(decode(photos(240, 256, 1)[0]))
    options = {
        "444": {"subsampling": 0},
        "422": {"subsampling": 1},
        "progressive": {"progressive": True},
    }.get(kind, {})
    plain = coded(image.convert("L") if kind == "gray" else image, "JPEG", quality=90, **options)
    if kind == "progressive" and not can_rewrite():
        plain = coded(image, "JPEG", quality=90)
    draw = random.Random(kind)
    for index in range(30):
        steps, draws = seeder(draw, 240, 256), CounterRng(4, 0, index)
        with_tiles, without = (
            made(open_image(tiled(plain), "rgb"), steps, draws),
            made(open_image(plain, "rgb"), steps, draws),
        )
        if kind == "progressive" and fused_decode.library():  # reads only what is sequential
            assert psnr(with_tiles, without) > 40, steps
        else:
            np.testing.assert_array_equal(with_tiles, without, str(steps))


def test_a_plan_carried_out_at_once_is_the_plan_carried_out_step_by_step() -> None:
    draw = random.Random(3)
    image = decode(photos(240, 256, 1)[0])
    for index in range(80):
        steps, draws = seeder(draw, 240, 256), CounterRng(3, 0, index)
        view = LazyImage(ArraySource(image))
        for number, (name, args) in enumerate(steps):
            make_op(name, args, number).run(view, draws)
            view.settled()
        assert psnr(made(ArraySource(image), steps, draws), view.pixels()) > 38, steps


def test_without_a_resize_a_crop_of_a_jpeg_is_the_crop_of_its_pixels() -> None:
    data = tiled(photos(240, 256, 1)[0])
    image = decode(data)
    for top, left, height, width in (
        (0, 0, 1, 1),
        (239, 255, 1, 1),
        (100, 31, 60, 80),
        (0, 0, 240, 256),
    ):
        view = LazyImage(open_image(data, "rgb"))
        view.crop(top, left, height, width)
        view.flip()
        np.testing.assert_array_equal(
            view.pixels(), image[top : top + height, left : left + width][:, ::-1]
        )


def test_crops_add_up_also_in_a_mirror() -> None:
    image = picture(50, 60)
    view = LazyImage(ArraySource(image))
    view.crop(5, 10, 40, 45)
    view.flip()
    view.crop(3, 4, 30, 20)
    view.flip()
    np.testing.assert_array_equal(view.pixels(), image[5:45, 10:55][:, ::-1][3:33, 4:24][:, ::-1])


@pytest.mark.parametrize("channels", [1, 3, 4, 5])
def test_levels_and_channels_first_are_what_each_op_does_by_itself(channels: int) -> None:
    image = np.random.default_rng(1).integers(0, 256, (20, 30, channels), np.uint8)
    mean_, std = [0.1 * c for c in range(channels)], [0.3 + 0.1 * c for c in range(channels)]
    expected = ((image / 255 - mean_) / std).astype(np.float32)
    for steps in (
        (("normalize", {"mean": mean_, "std": std}),),
        (("to_float", {}), ("normalize", {"mean": mean_, "std": std})),
    ):
        np.testing.assert_allclose(made(ArraySource(image), steps), expected, atol=1e-5)
        planar = made(ArraySource(image), (*steps, ("to_chw", {})))
        assert planar.flags.c_contiguous
        np.testing.assert_array_equal(planar, made(ArraySource(image), steps).transpose(2, 0, 1))
        crop = made(ArraySource(image), (*steps, ("center_crop", {"size": 10}), ("to_chw", {})))
        np.testing.assert_array_equal(crop, planar[:, 5:15, 10:20])
    np.testing.assert_array_equal(
        made(ArraySource(image), (("to_chw", {}),)), image.transpose(2, 0, 1)
    )


def test_a_picture_that_nothing_was_done_to_is_the_array_itself() -> None:
    image = picture()
    assert made(ArraySource(image), ()) is image
    assert (
        made(
            ArraySource(image),
            (("resize", {"size": [40, 50]}), ("center_crop", {"size": [40, 50]})),
        )
        is image
    )


def test_an_index_of_another_file_is_not_believed() -> None:
    first, second = (tiled(data) for data in photos(240, 256, 2))
    at = first.index(b"loaderd\0")
    end = at + int.from_bytes(first[at - 2 : at], "big") - 2
    other = second.index(b"loaderd\0")
    other_end = other + int.from_bytes(second[other - 2 : other], "big") - 2
    mixed = first[: at - 4] + second[other - 4 : other_end] + first[end:]
    for data in (mixed, first[:end] + first[end:].replace(b"\xff\xd3", b"\xff\xd5", 1)):
        source = open_image(data, "rgb")
        view = LazyImage(source)
        view.crop(100, 100, 64, 64)
        try:
            expected = decode(data)
        except ImageError:
            with pytest.raises(ImageError):
                view.pixels()
        else:
            np.testing.assert_array_equal(view.pixels(), expected[100:164, 100:164])


def test_a_jpeg_that_ends_early_is_an_error_for_the_parts_that_are_missing() -> None:
    data = photos(240, 256, 1)[0]
    view = LazyImage(open_image(data[: len(data) // 2], "rgb"))
    view.crop(200, 200, 20, 20)
    with pytest.raises(ImageError, match="damaged"):
        view.pixels()


@pytest.mark.parametrize("kind", ["420", "422", "444", "gray", "restarts", "progressive"])
@pytest.mark.parametrize("eighths", [8, 4, 2, 1])
def test_the_rows_below_a_part_are_not_decoded_and_the_others_are_as_they_were(
    kind: str, eighths: int
) -> None:
    image = Image.fromarray(decode(photos(240, 256, 1)[0]))
    options = {
        "422": {"subsampling": 1},
        "444": {"subsampling": 0},
        "restarts": {"restart_marker_rows": 2},
    }.get(kind, {})
    data = coded(
        image.convert("L") if kind == "gray" else image,
        "JPEG",
        quality=90,
        progressive=kind == "progressive",
        **options,
    )
    source = open_image(data, "rgb")
    assert isinstance(source, JpegSource)
    expected = simplejpeg.decode_jpeg(
        data, min_height=240 * eighths // 8, min_width=256 * eighths // 8
    )
    decoded: list[int] = []
    source._room = lambda height, width, eighths: (
        decoded.append(height) or JpegSource._room(source, height, width, eighths)
    )  # to see how much is decoded
    for bottom in range(1, 240 * eighths // 8 + 1, 1 if eighths < 4 else 7):
        part = source.read(ImagePart(bottom - 1, 0, bottom, 256 * eighths // 8, eighths))
        np.testing.assert_array_equal(part, expected[bottom - 1 : bottom])
        below = (bottom + 1) * 8 // eighths
        assert decoded.pop() <= (240 if kind == "progressive" or below > 200 else below + 16)


def test_damage_above_the_end_of_a_part_is_noticed_as_in_the_whole() -> None:
    data = photos(240, 256, 1)[0]
    broken = data[:4000] + b"\xff\xd9" * 20 + data[4040:]
    view = LazyImage(open_image(broken, "rgb"))
    view.crop(0, 0, 150, 256)
    # which is Pillow's: it makes something of it
    np.testing.assert_array_equal(view.pixels(), decode(broken)[:150])
    view = LazyImage(open_image(data[:-500], "rgb"))
    view.crop(0, 0, 150, 256)
    with pytest.raises(ImageError, match="damaged"):
        view.pixels()


def test_only_the_tiles_under_a_crop_are_decoded() -> None:
    data = tiled(photos(700, 500, 1)[0])
    source = open_image(data, "rgb")
    assert isinstance(source, JpegSource)
    decoded: list[tuple[int, int]] = []

    class Watched(JpegSource):
        def _decode(self, data: Any, height: int, width: int, eighths: int) -> np.ndarray:
            decoded.append((height, width))
            return super()._decode(data, height, width, eighths)

    watched = Watched(data, "rgb", source.height, source.width, tiles.read(data))
    part = watched.read(ImagePart(300, 200, 340, 260))
    np.testing.assert_array_equal(part, decode(data)[300:340, 200:260])
    assert decoded[0][0] <= 40 + 4 * 16
    assert not can_rewrite() or decoded[0][1] < 250
