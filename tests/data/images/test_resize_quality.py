"""How near a resized JPEG comes to Pillow's own result, whatever it was decoded at."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from PIL import Image, ImageDraw

from loaderd.data.images.lazy_image import LazyImage
from loaderd.data.images.pixel_source import open_image
from loaderd.data.jpeg import fused_decode
from loaderd_testing.sample_builders import real_photo

TEXT_DB, PHOTO_DB = 38.0, 46.0


def text() -> Image.Image:
    page = Image.new("RGB", (1000, 800), "white")
    draw = ImageDraw.Draw(page)
    rng = np.random.default_rng(0)
    for y in range(0, 800, 15):
        draw.text((5, y), "".join(map(chr, rng.integers(33, 127, 160))), "black")
    return page


def photo() -> Image.Image:
    return Image.fromarray(real_photo("china")).resize((1280, 854))


def stored(image: Image.Image, kind: str, **options: int) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **({"quality": 90} if kind == "JPEG" else {"lossless": True}), **options)
    return out.getvalue()


def sides(data: bytes, share: float, *, exact: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """(our pixels, Pillow's) at this share of the size."""
    with Image.open(io.BytesIO(data)) as image:
        width, height = round(image.width * share), round(image.height * share)
        expected = image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
    view = LazyImage(open_image(data, "rgb"))
    view.resize(height, width, exact=exact)
    return view.pixels().astype(int), np.asarray(expected).astype(int)


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    error = float(((a - b) ** 2).mean())
    return 99.0 if error == 0 else 10 * math.log10(255**2 / error)


@pytest.mark.parametrize("share", [0.49, 0.25, 0.2, 0.13, 0.1, 0.05])
def test_a_jpeg_decoded_at_any_scale_stays_close(share: float) -> None:
    for image, least in ((text(), TEXT_DB), (photo(), PHOTO_DB)):
        assert psnr(*sides(stored(image, "JPEG"), share)) >= least


@pytest.mark.parametrize("share", [0.7, 0.49, 0.1])
@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_other_containers_are_within_one_level(kind: str, share: float) -> None:
    ours, pillows = sides(stored(text(), kind), share)
    assert np.abs(ours - pillows).max() <= 1


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("share", [1.7, 0.7, 0.49, 0.21])
def test_a_jpeg_decoded_at_full_scale_is_within_one_level(share: float, subsampling: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (150, 203, 3), np.uint8)
    for image in (text(), photo(), Image.fromarray(noise)):
        ours, pillows = sides(stored(image, "JPEG", subsampling=subsampling), share)
        assert np.abs(ours - pillows).max() <= 1


@pytest.mark.parametrize("share", [0.49, 0.2, 0.1, 0.05])
def test_the_extension_changes_no_pixel_by_more_than_a_level(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for image in (text(), photo()):
        with_it, _ = sides(stored(image, "JPEG"), share)
        with monkeypatch.context() as patch:
            patch.setattr(fused_decode, "library", lambda: None)
            without, _ = sides(stored(image, "JPEG"), share)
        assert np.abs(with_it - without).max() <= 1


def test_a_part_of_a_jpeg_is_within_one_level() -> None:
    data = stored(photo(), "JPEG")
    with Image.open(io.BytesIO(data)) as image:
        for left, top, width, height in (
            (0, 0, 301, 333),
            (401, 203, 222, 161),
            (1001, 600, 279, 254),
        ):
            part = image.crop((left, top, left + width, top + height))
            expected = np.asarray(part.resize((224, 224), Image.Resampling.BILINEAR)).astype(int)
            view = LazyImage(open_image(data, "rgb"))
            view.crop(top, left, height, width)
            view.resize(224, 224)
            view.flip()
            assert np.abs(view.pixels()[:, ::-1].astype(int) - expected).max() <= 1


@pytest.mark.parametrize("share", [0.7, 0.1])
def test_exact_is_within_one_level_for_a_jpeg_too(share: float) -> None:
    for image in (text(), photo()):
        ours, pillows = sides(stored(image, "JPEG"), share, exact=True)
        assert np.abs(ours - pillows).max() <= 1
