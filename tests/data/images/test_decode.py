from __future__ import annotations

import io
import resource
import struct
import subprocess
import sys
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from loaderd.data.images import decode as images
from loaderd.data.images.decode import codec_of, decode, from_pillow, jpeg_head
from loaderd.data.images.image_error import ImageError
from loaderd.data.images.pixel_source import ImagePart, open_image
from loaderd.data.jpeg import tiles
from loaderd.data.jpeg.headers import NotRewritable
from loaderd.data.jpeg.rewrite import rewrite
from loaderd_testing.sample_builders import QUARTER_ROWS, by_pillow, coded, picture, sampled


def reference(image: Image.Image, mode: str) -> np.ndarray:
    pixels = np.asarray(
        image.convert("RGB") if mode == "rgb" else image.convert("RGB").convert("L")
    )
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
def test_every_stored_mode_becomes_what_pillow_makes_of_it(
    stored: str, kind: str, mode: str
) -> None:
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
    np.testing.assert_allclose(
        got.astype(int), reference(image, mode), atol=1 if mode == "gray" else 0
    )


@pytest.mark.parametrize("mode", ["rgb", "gray"])
@pytest.mark.parametrize("stored", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpegs_are_decoded_as_pillow_decodes_them(
    stored: str, mode: str, progressive: bool
) -> None:
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
        data += (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )
    assert decode(data)[0].tolist() == [[0, 0, 1], [255, 128, 18]]


def test_images_without_a_known_range_are_refused() -> None:
    for image in (
        Image.fromarray(np.ones((4, 4), np.float32)),
        Image.fromarray(np.ones((4, 4), np.int32)),
    ):
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


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n",
        b"hello",
        bytes(100),
        b"%!PS-Adobe-3.0 EPSF-3.0\n",
    ],
)
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
        return (
            b"\x89PNG\r\n\x1a\n"
            + struct.pack(">I", 13)
            + body
            + struct.pack(">I", zlib.crc32(body))
            + bytes(20)
            + b"IEND"
        )
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


SAMPLINGS = [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4)]


@pytest.mark.parametrize("mode", ["rgb", "gray"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_every_sampling_is_decoded_as_pillow_decodes_it(
    sampling: tuple[int, int], mode: str
) -> None:
    stored = sampled(*sampling, 75, 118)
    wanted = by_pillow(stored)
    if mode == "rgb":
        np.testing.assert_array_equal(decode(stored), wanted)
    else:
        assert decode(stored, "gray").shape == (75, 118, 1)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_parts_of_every_sampling_are_those_of_the_whole_image(sampling: tuple[int, int]) -> None:
    stored = sampled(*sampling, 75, 118)
    rewritten = rewrite(stored, growth=9.0)
    for eighths in tiles.SCALES:
        whole = open_image(stored, "rgb").read(
            ImagePart(0, 0, -(-75 * eighths // 8), -(-118 * eighths // 8), eighths)
        )
        for top, left, bottom, right in (
            (0, 0, 9, 9),
            (33, 17, 60, 100),
            (31, 60, 75, 118),
            (50, 100, 51, 101),
        ):
            box = (
                top * eighths // 8,
                left * eighths // 8,
                -(-bottom * eighths // 8),
                -(-right * eighths // 8),
            )
            for data in (stored, rewritten):
                part = open_image(data, "rgb").read(ImagePart(*box, eighths))
                np.testing.assert_array_equal(part, whole[box[0] : box[2], box[1] : box[3]])


def test_chroma_of_a_quarter_of_the_rows_is_read() -> None:
    assert jpeg_head(QUARTER_ROWS) == (16, 16, True)
    np.testing.assert_array_equal(decode(QUARTER_ROWS), by_pillow(QUARTER_ROWS))
    np.testing.assert_array_equal(
        open_image(QUARTER_ROWS, "rgb").read(ImagePart(3, 5, 9, 14)),
        by_pillow(QUARTER_ROWS)[3:9, 5:14],
    )


def with_segment(data: bytes, marker: int, payload: bytes) -> bytes:
    return (
        data[:2]
        + bytes((0xFF, marker))
        + (len(payload) + 2).to_bytes(2, "big")
        + payload
        + data[2:]
    )


def test_an_adobe_segment_of_64_kilobytes_makes_no_good_picture_bad() -> None:
    stored = with_segment(coded(picture(), "JPEG"), 0xEE, b"Adobe\0\x64\0\0\0\0\1" + bytes(65521))
    np.testing.assert_array_equal(decode(stored), by_pillow(stored))
    np.testing.assert_array_equal(
        open_image(stored, "rgb").read(ImagePart(3, 5, 9, 14)), by_pillow(stored)[3:9, 5:14]
    )
    with pytest.raises(NotRewritable, match="too long"):
        rewrite(stored, growth=9.0)


SHORT_OF_MEMORY = """
import resource, sys
from loaderd.data.images.decode import decode
from loaderd.data.images.image_error import ImageError
from loaderd.data.jpeg.headers import NotRewritable
from loaderd.data.images.pixel_source import ImagePart as Part, open_image as look
from loaderd.data.jpeg.rewrite import rewrite
stored = open(sys.argv[1], "rb").read()
look(stored, "rgb")
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (24 << 20),) * 2)
for name, run in (
    ("decode", lambda: decode(stored)),
    ("part", lambda: look(stored, "rgb").read(Part(0, 0, 3000, 3000))),
    ("rewrite", lambda: rewrite(stored, growth=9.0)),
):
    try:
        run()
        print(name, "worked")
    except (ImageError, NotRewritable) as error:
        print(name, type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("kind", "options"),
    [("JPEG", {}), ("PNG", {"compress_level": 1}), ("WEBP", {"lossless": True, "method": 0})],
)
def test_a_picture_that_memory_is_too_short_for_is_an_error_of_that_picture(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "large"
    path.write_bytes(
        coded(np.random.default_rng(0).integers(0, 256, (3000, 3000, 3), np.uint8), kind, **options)
    )
    done = subprocess.run(
        [sys.executable, "-c", SHORT_OF_MEMORY, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert said["decode"].startswith(("ImageError", "NoMemory"))
    assert said["part"].startswith(("ImageError", "NoMemory"))
    if kind != "WEBP":  # whose decoder doesn't say what it was short of
        assert "raise the memory limit" in said["decode"]
        assert "raise the memory limit" in said["part"]
    assert said["rewrite"].startswith("NotRewritable")
