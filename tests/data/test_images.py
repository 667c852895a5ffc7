from __future__ import annotations

import io
import resource
import struct
import warnings
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data.material import coded, picture
from loaderd.data import images
from loaderd.data.images import ImageError, codec_of, decode, from_pillow


def reference(image: Image.Image, mode: str) -> np.ndarray:
    pixels = np.asarray(image.convert("RGB") if mode == "rgb" else image.convert("RGB").convert("L"))
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def odd(mode: str) -> Image.Image:
    colour = Image.fromarray(picture())
    if mode in ("RGBA", "LA"):
        alpha = Image.fromarray(np.random.default_rng(1).integers(0, 256, (40, 50), np.uint8))
        colour.putalpha(alpha)
        return colour.convert(mode)
    return colour.quantize(60) if mode == "P" else colour.convert(mode)


@pytest.mark.parametrize("mode", ["rgb", "gray"])
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "GIF", "WEBP", "PPM"])
@pytest.mark.parametrize("stored", ["RGB", "L", "P", "1", "RGBA", "LA"])
def test_every_stored_mode_becomes_what_pillow_makes_of_it(stored: str, kind: str, mode: str) -> None:
    image = odd(stored)
    if kind in ("BMP", "PPM", "GIF") and stored in ("RGBA", "LA"):
        image = image.convert("RGB")
    options: dict[str, Any] = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    if kind == "PPM" and stored == "P":
        image = image.convert("RGB")
    if kind == "GIF" and image.mode == "RGB":
        image = image.quantize(64)
    got = decode(coded(image, kind, **options), mode)
    assert got.dtype == np.uint8
    assert got.shape == (40, 50, 3 if mode == "rgb" else 1)
    assert got.flags.c_contiguous
    assert got.flags.writeable
    np.testing.assert_allclose(got.astype(int), reference(image, mode), atol=1 if mode == "gray" else 0)


@pytest.mark.parametrize("mode", ["rgb", "gray"])
@pytest.mark.parametrize("stored", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpegs_are_decoded_as_pillow_decodes_them(stored: str, mode: str, progressive: bool) -> None:
    data = coded(odd(stored), "JPEG", quality=90, progressive=progressive)
    assert codec_of(data) == "jpeg"
    with Image.open(__import__("io").BytesIO(data)) as image:
        expected = reference(image, mode)
    got = decode(memoryview(data), mode)
    assert got.flags.writeable
    assert np.abs(got.astype(int) - expected).max() <= (3 if mode == "gray" else 1)


def test_orientation_in_exif_is_ignored() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    for kind in ("JPEG", "PNG", "WEBP"):
        assert decode(coded(picture(20, 30), kind, exif=exif)).shape == (20, 30, 3)


def test_sixteen_bits_are_scaled_and_never_clipped() -> None:
    deep = np.random.default_rng(0).integers(0, 65536, (20, 30), np.uint16)
    for kind in ("PNG", "TIFF"):
        data = coded(Image.fromarray(deep), kind)
        np.testing.assert_array_equal(decode(data)[:, :, 1], deep >> 8)
        np.testing.assert_array_equal(decode(data, "gray")[:, :, 0], deep >> 8)


def test_sixteen_bits_of_colour_are_scaled_too() -> None:
    rows = b"".join(b"\0" + struct.pack(">6H", 0, 255, 256, 65535, 32768, 4660) for _ in range(2))
    header = struct.pack(">IIBBBBB", 2, 2, 16, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n"
    for kind, body in ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")):
        data += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    assert decode(data)[0].tolist() == [[0, 0, 1], [255, 128, 18]]


def test_images_without_a_known_range_are_refused() -> None:
    for image in (Image.fromarray(np.ones((4, 4), np.float32)), Image.fromarray(np.ones((4, 4), np.int32))):
        with pytest.raises(ImageError, match="no known range"):
            decode(coded(image, "TIFF"))
        with pytest.raises(ImageError, match="no known range"):
            from_pillow(image)


def test_alpha_is_dropped_and_not_composited() -> None:
    pixels = np.zeros((4, 4, 4), np.uint8)
    pixels[..., 0] = 200
    for kind in ("PNG", "TIFF"):
        assert (decode(coded(Image.fromarray(pixels), kind)) == [200, 0, 0]).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.98])
def test_a_truncated_file_is_an_error_and_never_half_a_picture(kind: str, share: float) -> None:
    data = coded(picture(64, 64), kind)
    with pytest.raises(ImageError):
        decode(data[: int(len(data) * share)])


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"hello", bytes(100), b"%!PS-Adobe-3.0 EPSF-3.0\n"])
def test_bytes_that_are_no_image_are_an_error(data: bytes) -> None:
    with pytest.raises(ImageError):
        decode(data)


def test_a_damaged_middle_of_a_png_is_an_error() -> None:
    data = bytearray(coded(picture()))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(ImageError, match="damaged PNG"):
        decode(bytes(data))


def test_a_png_called_jpg_and_a_jpeg_called_png_are_told_by_their_bytes() -> None:
    assert codec_of(coded(picture(), "PNG")) == "png"
    assert codec_of(coded(picture(), "WEBP")) == "other"


def bomb(kind: str) -> bytes:
    side = 60_000
    if kind == "png":
        body = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
        return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body)) + bytes(20) + b"IEND"
    if kind == "jpeg":
        data = bytearray(coded(picture(), "JPEG"))
        at = data.index(b"\xff\xc0")
        data[at + 5 : at + 9] = struct.pack(">HH", side, side)
        return bytes(data)
    return b"P6\n%d %d\n255\n" % (side, side) + bytes(100)


@pytest.mark.parametrize("kind", ["png", "jpeg", "ppm"])
def test_a_decompression_bomb_is_refused_before_it_takes_memory(kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ImageError, match=r"pixels.*limit"):
            decode(bomb(kind))


def test_no_format_is_allowed_that_runs_a_program() -> None:
    assert "EPS" not in images._formats()
    assert {"JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"} <= set(images._formats())


def test_each_result_is_an_array_of_its_own() -> None:
    data = coded(picture(), "JPEG")
    first, second = decode(data), decode(data)
    first[...] = 0
    assert second.any()


def test_a_png_that_says_a_part_is_gigabytes_long_takes_no_memory() -> None:
    data = io.BytesIO()
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(data, "PNG")
    stored = data.getvalue()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for part in (b"IHDR", b"IDAT", b"IEND"):
        at = stored.index(part) - 4
        for size in (1 << 31, (1 << 32) - 1, (1 << 32) - 12 - at, len(stored)):
            with pytest.raises(ImageError, match="damaged PNG"):
                decode(stored[:at] + size.to_bytes(4, "big") + stored[at + 4 :])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (64 << 10)
