"""mode = "rgba" and "unchanged", exif and max_pixels: what of a stored image is kept."""

from __future__ import annotations

import io
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from loaderd.data.images.decode import decode
from loaderd.data.images.image_error import ImageError
from loaderd.data.images.lazy_image import LazyImage
from loaderd.data.images.orientation import orientation_of, upright, upright_pixels
from loaderd.data.images.pixel_source import ArraySource, open_image
from loaderd_testing.sample_builders import picture


def stored(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def clear() -> Image.Image:
    return Image.fromarray(np.dstack([picture(), picture()[:, :, 1]]))


@pytest.mark.parametrize("mode", ["rgba", "unchanged"])
@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("WEBP", {"lossless": True})])
def test_alpha_is_kept(mode: str, kind: str, options: dict[str, Any]) -> None:
    data = stored(clear(), kind, exact=True, **options) if kind == "WEBP" else stored(clear())
    np.testing.assert_array_equal(decode(data, mode), np.asarray(clear()))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP"])
def test_what_has_no_alpha_is_opaque(kind: str) -> None:
    data = stored(Image.fromarray(picture()), kind)
    out = decode(data, "rgba")
    np.testing.assert_array_equal(out[:, :, :3], decode(data, "rgb"))
    assert (out[:, :, 3] == 255).all()
    gray = stored(Image.fromarray(picture()[:, :, 0]), kind)
    assert decode(gray, "rgba").shape == (40, 50, 4)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "TIFF"])
def test_unchanged_has_the_channels_that_are_stored(kind: str) -> None:
    colours, gray = Image.fromarray(picture()), Image.fromarray(picture()[:, :, 0])
    for image, channels in ((colours, 3), (gray, 1)):
        data = stored(image, kind)
        view = LazyImage(open_image(data, "unchanged"))
        assert view.channels == channels
        expected = decode(data, "rgb" if channels == 3 else "gray")
        np.testing.assert_array_equal(view.pixels(), expected)


def test_sixteen_bits_are_kept_in_colour_and_in_gray() -> None:
    deep = np.random.default_rng(0).integers(0, 65536, (9, 7, 3), np.uint16)
    _, data = cv2.imencode(".png", deep[:, :, ::-1])
    np.testing.assert_array_equal(decode(data.tobytes(), "unchanged"), deep)
    np.testing.assert_array_equal(decode(data.tobytes(), "rgba")[:, :, :3], deep >> 8)
    for kind in ("PNG", "TIFF"):
        gray = stored(Image.fromarray(deep[:, :, 0]), kind)
        np.testing.assert_array_equal(decode(gray, "unchanged"), deep[:, :, :1])


def test_palettes_become_colours_with_alpha_where_they_have_it() -> None:
    palette = Image.fromarray(picture()).quantize(16)
    for kind in ("PNG", "GIF"):
        assert decode(stored(palette, kind), "unchanged").shape[2] in (3, 4)
        assert decode(stored(palette, kind), "rgba").shape[2] == 4
    np.testing.assert_array_equal(
        decode(stored(palette), "unchanged"), np.asarray(palette.convert("RGB"))
    )


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_exif_turns_as_pillow_does(orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = stored(Image.fromarray(picture()), kind, exif=exif)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    assert orientation_of(data) == orientation
    view = LazyImage(ArraySource(decode(data)))
    upright(view, orientation)
    np.testing.assert_array_equal(view.pixels(), expected)
    np.testing.assert_array_equal(upright_pixels(decode(data), orientation), expected)


def test_without_exif_or_with_nonsense_nothing_is_turned() -> None:
    assert orientation_of(stored(Image.fromarray(picture()), "JPEG")) == 1
    assert orientation_of(b"\xff\xd8\xffExif\0\0 nonsense") == 1
    exif = Image.Exif()
    exif[0x0112] = 77
    assert orientation_of(stored(Image.fromarray(picture()), "JPEG", exif=exif)) == 1


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_more_pixels_than_the_stream_allows_are_refused_by_name(kind: str) -> None:
    data = stored(Image.fromarray(picture()), kind)
    assert LazyImage(open_image(data, "rgb", 2000)).pixels().shape == (40, 50, 3)
    with pytest.raises(ImageError, match="2000 pixels, more than the limit of 1999: raise max_pix"):
        open_image(data, "rgb", 1999)


def test_a_size_beyond_the_limit_is_refused_before_memory_is_taken() -> None:
    view = LazyImage(ArraySource(picture()), limit=3000)
    view.resize(50, 60)
    with pytest.raises(ImageError, match="more than the limit of 3000"):
        view.resize(51, 60)
    with pytest.raises(ImageError, match="would be padded to 50 x 61"):
        view.pad(0, 0, 0, 1)
