"""What the extension makes of damaged and hostile JPEGs: it stays in its memory, says the same each
time, and leaves the rest to others.
"""

from __future__ import annotations

import ctypes
import mmap
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import simplejpeg

from loaderd.core.rng import CounterRng
from loaderd.data.images.image_error import ImageError
from loaderd.data.images.lazy_image import LazyImage
from loaderd.data.images.pixel_source import open_image
from loaderd.data.jpeg import fused_decode
from loaderd.data.jpeg.rewrite import can_rewrite, rewrite
from loaderd.data.jpeg.tiles import DamagedJpeg
from loaderd.data.ops.table import make_op
from loaderd_testing.sample_builders import picture

pytestmark = pytest.mark.needs("extensions")


def segment(marker: int, payload: bytes) -> bytes:
    return bytes((0xFF, marker)) + (len(payload) + 2).to_bytes(2, "big") + payload


def crafted(
    height: int,
    width: int,
    parts: int,
    dc: tuple[int, int],
    ac: tuple[int, int],
    scan: bytes,
    factor: int = 1,
) -> bytes:
    """A JPEG with one code of zeros for DC and one for AC, each (length, symbol); factor: of its
    quantisation.
    """
    frame = b"\x08" + height.to_bytes(2, "big") + width.to_bytes(2, "big") + bytes((parts,))
    frame += b"".join(
        bytes((i + 1, 0x22 if i == 0 and parts == 3 else 0x11, 0)) for i in range(parts)
    )
    codes = b"".join(
        bytes((kind, *(n == length for n in range(1, 17)), symbol))
        for kind, (length, symbol) in ((0, dc), (16, ac))
    )
    head = (
        b"\xff\xd8"
        + segment(0xDB, b"\x10" + factor.to_bytes(2, "big") * 64)
        + segment(0xC1, frame)
        + segment(0xC4, codes)
    )
    return (
        head
        + segment(0xDA, bytes((parts, *(b for i in range(parts) for b in (i + 1, 0)), 0, 63, 0)))
        + scan
        + b"\xff\xd9"
    )


def packed(bits: str) -> bytes:
    bits += "1" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")


UP, DOWN = "0" + "1" * 15, "0" + "0" * 15
HOSTILE = {
    "codes of 31 bits": crafted(64, 64, 3, (16, 11), (16, 15), bytes(8)),
    "no scan": crafted(64, 64, 3, (16, 11), (16, 15), b""),
    "differences that add up": crafted(
        64, 400, 1, (1, 11), (1, 0), packed(("0" + "1" * 11 + "0") * 400), 65535
    ),
    "the largest coefficients": crafted(
        16,
        32,
        1,
        (1, 11),
        (1, 15),
        packed(("0" + "1" * 11 + UP * 63 + "0" + "0" * 11 + DOWN * 63) * 4),
        255,
    ),
    "a long promise": crafted(4000, 65535, 3, (1, 0), (1, 0), bytes(300)),
}


@pytest.fixture
def outcome() -> Iterator[object]:
    """Calls the library with scratch memory of just the size that it asks for, which ends where the
    process may not read.
    """
    found: Any = fused_decode.library()
    kept = list[tuple[mmap.mmap, int, int]]()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def call(
        data: bytes,
        rows: fused_decode.Span,
        columns: fused_decode.Span,
        eighths: int,
        plain: bool,
        fill: int,
    ) -> tuple[int, bytes]:
        source, out, size = (
            np.frombuffer(data, np.uint8),
            np.full((rows.pixels, columns.pixels, 3), fill, np.uint8),
            0,
        )
        plan = fused_decode.PLAN.pack(*rows, *columns, eighths, 3, fused_decode.BYTES_LAST, plain)
        while True:
            pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            room = mmap.mmap(-1, pages + mmap.PAGESIZE)
            address = ctypes.addressof(ctypes.c_char.from_buffer(room))
            assert libc.mprotect(address + pages, mmap.PAGESIZE, 0) == 0, ctypes.get_errno()
            kept.append((room, address, pages))
            ctypes.memset(address, fill, min(pages, 1 << 20))
            at = address + pages - size
            result = found.loaderd_crop(
                source.ctypes.data, len(source), plan, 0, out.ctypes.data, at, size
            )
            if result <= 0:
                return result, out.tobytes() if result == 0 else b""
            assert result > size
            size = -(-result // 64) * 64

    yield call
    for room, _, _ in kept:
        room.close()


def plans(
    draw: random.Random, height: int, width: int
) -> Iterator[tuple[fused_decode.Span, fused_decode.Span, int]]:
    for eighths in (8, 4, 2, 1):
        top, left = draw.randrange(height), draw.randrange(width)
        yield fused_decode.Span(0, height, 9, 0, 9), fused_decode.Span(0, width, 10, 0, 10), eighths
        yield (
            fused_decode.Span(top, draw.uniform(top + 1, height), 7, 2, 5),
            fused_decode.Span(left, left + 1, 20, 3, 17, True),
            eighths,
        )


def damaged(draw: random.Random, data: bytes) -> bytes:
    """A few bytes changed, a part doubled or gone, or cut short."""
    out = bytearray(data)
    for _ in range(draw.randint(1, 3)):
        at, length = draw.randrange(len(out)), draw.randint(1, 30)
        kind = draw.randrange(6)
        if kind < 3:
            out[at] = draw.choice((0, 0xFF, out[at] ^ 1 << draw.randrange(8), draw.randrange(256)))
        elif kind == 3:
            out[at:at] = out[at : at + length]
        elif kind == 4 and len(out) > 100:
            del out[at : at + length]
        elif len(out) > 100:
            del out[-draw.randint(1, 3) :]
    return bytes(out)


def stored() -> list[bytes]:
    image = picture(52, 75)
    found = [
        simplejpeg.encode_jpeg(image, quality=q, colorsubsampling=s)
        for q, s in ((70, "420"), (95, "422"), (20, "444"))
    ]
    return [*found, *(rewrite(data, growth=9) for data in found if can_rewrite())]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_jpeg_stays_in_its_memory_and_gives_the_same_on_every_machine(
    name: str, outcome
) -> None:
    size = fused_decode.look(HOSTILE[name])
    assert size is not None or name == "no scan"
    for rows, columns, eighths in plans(random.Random(name), *(size or (64, 64))):
        if name == "a long promise":
            rows, columns = (
                rows._replace(end=16.0, begin=0.0),
                columns._replace(end=999.0, begin=0.0),
            )
        seen = {
            outcome(HOSTILE[name], rows, columns, eighths, plain, fill)
            for plain in (False, True)
            for fill in (0, 0xA5)
        }
        assert len(seen) == 1, (rows, columns, eighths)


def test_a_damaged_jpeg_never_shows_what_lay_in_memory_before(outcome) -> None:
    draw, refused = random.Random(7), 0
    for data in stored():
        for _ in range(25):
            worse = damaged(draw, data)
            for rows, columns, eighths in draw.sample(
                list(plans(draw, *(fused_decode.look(worse) or (52, 75)))), 2
            ):
                seen = {
                    outcome(worse, rows, columns, eighths, plain, fill)
                    for plain in (False, True)
                    for fill in (0, 0xA5)
                }
                assert len(seen) == 1, (worse.hex(), rows, columns, eighths)
                refused += seen.pop()[0] < 0
    assert refused > 50


def resized(data: bytes) -> np.ndarray | str:
    try:
        view = LazyImage(open_image(data, "rgb"))
        make_op("resize", {"size": [24, 30]}, 0).run(view, CounterRng(0, 0, 0))
        return view.pixels()
    except (ImageError, DamagedJpeg) as error:
        return type(error).__name__


def test_what_the_extension_refuses_has_the_outcome_that_it_has_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw, refused = random.Random(8), 0
    cases = [damaged(draw, data) for data in stored() for _ in range(25)] + [
        data[: len(data) - n] for data in stored() for n in (1, 2, 400)
    ]
    for data in cases:
        height, width = fused_decode.look(data) or (52, 75)
        rows, columns = (
            fused_decode.Span(0, height, 24, 0, 24),
            fused_decode.Span(0, width, 30, 0, 30),
        )
        if height * width < 1 << 20 and not fused_decode.crop(
            data, rows, columns, 8, None, np.empty((24, 30, 3), np.uint8)
        ):
            refused += 1
            given = resized(data)
            with monkeypatch.context() as patch:
                patch.setattr(fused_decode, "library", lambda: None)
                expected = resized(data)
            assert type(given) is type(expected), data.hex()
            np.testing.assert_array_equal(given, expected, data.hex())
    assert refused > 50


# Symbols of an AC code: zeros to pass over (high digit), bits of the coefficient behind them (low
# digit). A block of nothing else.
@pytest.mark.parametrize("symbol", [0xF1, 0xE1, 0xD1, 0xA1, 0x41, 0xF2, 0xE3, 0xFA, 0xEA, 0xDB])
def test_a_coefficient_beyond_its_block_is_damage(symbol: int) -> None:
    # the scan ends with it: nothing else is wrong
    coded = "0" + ("0" + "1" * (symbol & 15)) * (63 // ((symbol >> 4) + 1) + 1)
    for parts in (1, 3):
        data = crafted(8, 8, parts, (1, 0), (1, symbol), packed(coded * (6 if parts == 3 else 1)))
        for plain in (False, True):
            span = fused_decode.Span(0, 8, 8, 0, 8)
            assert fused_decode.look(data) == (8, 8)
            assert not fused_decode.crop(
                data, span, span, 8, None, np.empty((8, 8, 3), np.uint8), plain=plain
            ), hex(symbol)


@pytest.mark.parametrize("symbol", [0x01, 0x21, 0x61, 0x81, 0x02, 0x23])
def test_a_coefficient_at_the_end_of_its_block_is_none(symbol: int) -> None:
    count = 63 // ((symbol >> 4) + 1)
    data = crafted(
        8, 8, 1, (1, 0), (1, symbol), packed("0" + ("0" + "1" * (symbol & 15)) * count), factor=3
    )
    for plain in (False, True):
        span, out = fused_decode.Span(0, 8, 8, 0, 8), np.empty((8, 8, 1), np.uint8)
        assert fused_decode.crop(data, span, span, 8, None, out, plain=plain)
        np.testing.assert_array_equal(out, simplejpeg.decode_jpeg(data, "GRAY"))


def test_a_picture_of_one_colour_is_read_however_short_its_scan() -> None:
    data = simplejpeg.encode_jpeg(np.full((8, 8, 1), 128, np.uint8), colorspace="GRAY")
    assert fused_decode.look(data) == (8, 8)
