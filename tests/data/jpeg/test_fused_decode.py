"""What the extension makes in one call is what libjpeg and the plan's steps make, and damaged files
can't hurt it.
"""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from loaderd.config.stream import StreamConfig, TransformConfig
from loaderd.core.rng import CounterRng
from loaderd.data.images.decode import decode
from loaderd.data.images.lazy_image import LazyImage
from loaderd.data.images.pixel_source import JpegSource, open_image
from loaderd.data.jpeg import fused_decode
from loaderd.data.jpeg.fused_decode import Span, crop
from loaderd.data.jpeg.rewrite import rewrite
from loaderd.data.ops.table import make_op
from loaderd.data.pipeline.pipeline import SamplePipeline
from loaderd.data.pipeline.request import SampleRequest
from loaderd.data.sample import Sample
from loaderd.data.sources.source import Source
from loaderd_testing.sample_builders import coded, picture

pytestmark = pytest.mark.needs("extensions")
KINDS = {
    "420": {"subsampling": 2},
    "422": {"subsampling": 1},
    "444": {"subsampling": 0},
    "restarts": {"subsampling": 2, "restart_marker_blocks": 3},
    "optimised": {"optimize": True},
    "gray": {},
}


def jpeg(kind: str, height: int, width: int, quality: int = 90, noise: bool = False) -> bytes:
    image = (
        np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
        if noise
        else picture(height, width)
    )
    return coded(
        image[:, :, 0] if kind == "gray" else image, "JPEG", quality=quality, **KINDS[kind]
    )


def whole(
    data: bytes, height: int, width: int, eighths: int, channels: int, *, plain: bool = False
) -> np.ndarray:
    """All of a JPEG at a scale, through `crop`."""
    high, wide = -(-height * eighths // 8), -(-width * eighths // 8)
    out = np.empty((high, wide, channels), np.uint8)
    rows, columns = (
        Span(0, high * 8 / eighths, high, 0, high),
        Span(0, wide * 8 / eighths, wide, 0, wide),
    )
    assert crop(data, rows, columns, eighths, None, out, plain=plain)
    return out


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("eighths", [8, 4, 2, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_libjpegs_at_every_scale(kind: str, eighths: int, noise: bool) -> None:
    for height, width in ((150, 203), (33, 47), (16, 160), (130, 17)):
        for quality in (50, 90, 100):
            data = jpeg(kind, height, width, quality, noise)
            size: dict[str, Any] = {
                "min_height": -(-height * eighths // 8),
                "min_width": -(-width * eighths // 8),
            }
            luma, colour = (
                simplejpeg.decode_jpeg(data, "GRAY", **size),
                simplejpeg.decode_jpeg(data, "RGB", **size),
            )
            for plain in (False, True):
                np.testing.assert_array_equal(
                    whole(data, height, width, eighths, 1, plain=plain), luma
                )
                np.testing.assert_array_equal(
                    whole(data, height, width, eighths, 3, plain=plain), colour
                )


@pytest.mark.parametrize("eighths", [8, 4, 2, 1])
@pytest.mark.parametrize("kind", ["420", "422", "444"])
def test_narrow_images_are_libjpegs_whose_chroma_is_not_interpolated(
    kind: str, eighths: int
) -> None:
    draw = np.random.default_rng(0)
    for width in range(1, 12 * 8 // eighths, 1 if eighths > 2 else 3):
        for height in (1, 2, 3, 17) if eighths == 8 else (160,):
            data = coded(
                draw.integers(0, 256, (height, width, 3), np.uint8),
                "JPEG",
                quality=95,
                **KINDS[kind],
            )
            size: dict[str, Any] = {
                "min_height": -(-height * eighths // 8),
                "min_width": -(-width * eighths // 8),
            }
            wanted = simplejpeg.decode_jpeg(data, "RGB", **(size if eighths < 8 else {}))
            for plain in (False, True):
                found = whole(data, height, width, eighths, 3, plain=plain)
                np.testing.assert_array_equal(found, wanted, f"{height} x {width}")


def made(
    data: bytes, *steps: tuple[str, dict[str, Any]], out: np.ndarray | None = None
) -> np.ndarray:
    view = LazyImage(open_image(data, "rgb"))
    for number, (name, args) in enumerate(steps):
        make_op(name, args, number).run(view, CounterRng(0, 0, 0))
    return view.pixels(out)


def test_a_mirror_levels_and_the_order_of_channels_come_with_the_rest() -> None:
    data = jpeg("420", 150, 203)
    steps = (("resize", {"size": [70, 90]}), ("center_crop", {"size": [61, 43]}))
    plain = made(data, *steps)
    np.testing.assert_array_equal(made(data, *steps, ("hflip", {"p": 1})), plain[:, ::-1])
    np.testing.assert_array_equal(made(data, *steps, ("to_chw", {})), plain.transpose(2, 0, 1))
    spread = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]}
    expected = ((plain / 255 - spread["mean"]) / spread["std"]).astype(np.float32)
    np.testing.assert_allclose(made(data, *steps, ("normalize", spread)), expected, atol=1e-6)
    np.testing.assert_allclose(
        made(data, *steps, ("normalize", spread), ("to_chw", {})),
        expected.transpose(2, 0, 1),
        atol=1e-6,
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_a_picture_is_made_in_the_row_that_it_is_for_and_nowhere_else(dtype: type) -> None:
    data = jpeg("420", 150, 203)
    batch = np.full((3, 37, 41, 3), 7, dtype)
    last = (("to_float", {}),) if dtype is np.float32 else ()
    row = batch[1]
    assert made(data, ("resize", {"size": [37, 41]}), *last, out=row) is row
    np.testing.assert_array_equal(batch[1], made(data, ("resize", {"size": [37, 41]}), *last))
    assert (batch[0] == 7).all()
    assert (batch[2] == 7).all()
    assert made(data, ("resize", {"size": [37, 40]}), *last, out=row) is not row


class Held(Source):
    def __init__(self, data: bytes, user_code: bool) -> None:
        self._jpeg = data
        self.user_code = user_code

    def read(self, index: int) -> Sample:
        return Sample({"image": memoryview(self._jpeg)}, encoded=("image",))


@pytest.mark.parametrize("user_code", [False, True])
def test_a_users_code_is_never_given_the_slot(user_code: bool) -> None:
    sample_pipeline = SamplePipeline(
        StreamConfig(
            "t", lmdb="-", transforms=(TransformConfig("resize", None, {"size": [37, 41]}),)
        ),
        Held(jpeg("420", 90, 90), user_code),
    )
    out = {"image": np.zeros((37, 41, 3), np.uint8)}
    sample = sample_pipeline.make(SampleRequest(0, 0, 0, out), lambda stage: None)
    assert (sample["image"] is out["image"]) is not user_code


def test_what_it_does_not_read_is_left_to_others() -> None:
    image = Image.fromarray(picture(90, 120))
    for data in (
        coded(image, "JPEG", progressive=True),
        coded(image.convert("CMYK"), "JPEG"),
        coded(image, "PNG"),
        b"",
        b"\xff\xd8\xff",
        jpeg("420", 90, 120)[:-2],
    ):
        assert fused_decode.look(data) is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "behind",
    [b"\0", bytes(5000), b"\xd9\xd9", b"MakerNote" * 99, b"\xff\xd8\xff", b"\xff"],
    ids=lambda b: str(len(b)),
)
def test_bytes_behind_the_image_change_nothing(kind: str, behind: bytes) -> None:
    data = jpeg(kind, 150, 203)
    for stored in (data, rewrite(data, growth=9.0)):
        assert fused_decode.look(stored + behind) == (150, 203)
        np.testing.assert_array_equal(
            whole(stored + behind, 150, 203, 8, 3), whole(stored, 150, 203, 8, 3)
        )
    for stored in (data, rewrite(data, growth=9.0)):
        # no end of image at all, or not where the tiles end
        assert fused_decode.look(stored[:-2] + b"\0" + behind) is None


@pytest.mark.parametrize(
    ("width", "outs"), [(2000, (1, 2, 16)), (18000, (1, 2, 16)), (60000, (1, 2, 8, 64))]
)
@pytest.mark.parametrize("pattern", ["alternating", "noise"])
def test_extreme_shrinks_are_pillows_to_a_level_or_two(
    pattern: str, width: int, outs: tuple[int, ...]
) -> None:
    row = (
        np.arange(width) % 2 * 255
        if pattern == "alternating"
        else np.random.default_rng(0).integers(0, 256, width)
    )
    data = coded(np.repeat(row.astype(np.uint8)[np.newaxis, :], 32, 0), "JPEG", quality=95)
    for out in outs:
        found = made(data, ("resize", {"size": [4, out]})).astype(int)[:, :, 0]
        with Image.open(io.BytesIO(data)) as image:
            wanted = np.asarray(image.resize((out, 4), Image.Resampling.BILINEAR)).astype(int)
        assert np.abs(found - wanted).max() <= 2, (out, found, wanted)


def test_a_file_that_is_damaged_is_as_without_the_extension(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = jpeg("420", 150, 203)
    broken = data[:1500] + b"\xff\xd9" + data[1502:]
    steps = (("resize", {"size": [70, 90]}),)
    results = []
    for _ in range(2):
        try:
            results.append(made(broken, *steps))
        except ValueError as error:
            results.append(str(error))
        monkeypatch.setattr(fused_decode, "library", lambda: None)
    assert isinstance(results[0], str) == isinstance(results[1], str)
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize("tiles", [False, True])
@pytest.mark.parametrize("kind", ["420", "444", "restarts", "gray"])
def test_damaged_bytes_never_lead_outside_of_what_was_given(kind: str, tiles: bool) -> None:
    draw = random.Random(f"{kind} {tiles}")
    data = jpeg(kind, 100, 180, 95)
    if tiles:
        data = rewrite(data, growth=9.0)
    refused = 0
    for _ in range(400):
        changed = bytearray(data)
        for _ in range(draw.randint(1, 12)):
            changed[draw.randrange(2, len(data) if draw.random() < 0.6 else 700)] = draw.choice(
                (0, 255, draw.randrange(256))
            )
        guarded = np.full((30, 40, 3), 9, np.uint8)
        rows, columns = Span(3, 97, 28, 0, 28), Span(20.5, 171, 40, 0, 40)
        size = fused_decode.look(bytes(changed))
        refused += size is None or not crop(
            bytes(changed), rows, columns, draw.choice((8, 4, 2, 1)), None, guarded[1:29]
        )
        assert (guarded[0] == 9).all()
        assert (guarded[29] == 9).all()
    assert 0 < refused < 400


def test_a_part_may_be_a_pixel_a_line_or_all_of_the_picture() -> None:
    data = jpeg("420", 150, 203)
    image = decode(data)
    for top, left, height, width in (
        (0, 0, 150, 203),
        (149, 202, 1, 1),
        (10, 3, 2, 190),
        (31, 17, 64, 64),
    ):
        source = open_image(data, "rgb")
        assert isinstance(source, JpegSource)
        assert source.fusable
        view = LazyImage(source)
        view.crop(top, left, height, width)
        view.resize(16, 16)
        assert (
            abs(
                view.pixels().astype(float).mean()
                - image[top : top + height, left : left + width].mean()
            )
            < 4
        )
