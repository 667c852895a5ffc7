"""What the rewriter and the index of tiles make of damaged files: they stay in their memory, and
end in an image or a declared error.
"""

from __future__ import annotations

import ctypes
import mmap
import random
from collections.abc import Iterator

import numpy as np
import pytest
import simplejpeg

from data.jpeg.test_fused_decode_damage import damaged
from loaderd.data.jpeg import rewrite
from loaderd.data.jpeg import tiles as restart
from loaderd.data.jpeg.headers import NotRewritable
from loaderd_testing.sample_builders import coded, picture

pytestmark = pytest.mark.needs("extensions")
LARGE = {"growth": 9.0, "progressive_growth": 9.0}
KINDS = (
    {"subsampling": 2},
    {"subsampling": 0, "restart_marker_blocks": 3},
    {"subsampling": 2, "progressive": True},
    {"subsampling": 1, "progressive": True, "restart_marker_blocks": 2},
)


def stored() -> list[bytes]:
    pictures = [
        picture(33, 47),
        picture(16, 131),
        np.random.default_rng(0).integers(0, 256, (70, 17, 3), np.uint8),
    ]
    return [
        coded(shown, "JPEG", **kind)
        for image in pictures
        for kind in KINDS
        for shown in (image, image[:, :, 0])
    ]


@pytest.fixture
def guarded() -> Iterator[object]:
    """Bytes behind which the process may not read."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    room = mmap.mmap(-1, 1 << 20)
    last = len(room) - mmap.PAGESIZE
    hold = ctypes.c_char.from_buffer(room)
    assert libc.mprotect(ctypes.addressof(hold) + last, mmap.PAGESIZE, 0) == 0, ctypes.get_errno()

    def put(data: bytes) -> memoryview:
        room[last - len(data) : last] = data
        return memoryview(room)[last - len(data) : last]

    yield put
    del hold


def test_a_damaged_jpeg_is_refused_or_rewritten_to_the_same_pixels(guarded) -> None:
    draw, refused, rewritten = random.Random(5), 0, 0
    for data in stored():
        for _ in range(60):
            worse = damaged(draw, data)
            try:
                new = rewrite.rewrite(guarded(worse), **LARGE)
            except NotRewritable:
                refused += 1
                continue
            rewritten += 1
            assert restart.read(new) is not None, worse.hex()
            np.testing.assert_array_equal(
                simplejpeg.decode_jpeg(new), simplejpeg.decode_jpeg(worse), worse.hex()
            )
    assert refused > 500
    assert rewritten > 50


def misled(draw: random.Random, data: bytes) -> bytes:
    """The same file with a few bytes of its index changed."""
    out = bytearray(data)
    at = data.index(restart.IDENTIFIER) - 2
    for _ in range(draw.randint(1, 3)):
        place = draw.randrange(at, at + 2 + int.from_bytes(data[at : at + 2], "big"))
        out[place] = draw.choice(
            (0, 0xFF, out[place] ^ 1 << draw.randrange(8), out[place] + 1 & 0xFF)
        )
    return bytes(out)


def test_an_index_that_misleads_ends_in_a_piece_or_a_declared_error(guarded) -> None:
    draw, pieces, refused = random.Random(6), 0, 0
    for data in (rewrite.rewrite(data, **LARGE) for data in stored()):
        for change in (misled, damaged):
            for _ in range(40):
                worse = guarded(change(draw, data))
                tiles = restart.read(worse)
                if tiles is None:
                    continue
                left, top = draw.uniform(0, tiles.width - 1), draw.uniform(0, tiles.height - 1)
                right, bottom = (
                    draw.uniform(left + 0.5, tiles.width),
                    draw.uniform(top + 0.5, tiles.height),
                )
                try:
                    piece = tiles.splice(left, top, right, bottom, draw.choice(restart.SCALES))
                    shown = simplejpeg.decode_jpeg(piece.data)
                except ValueError:
                    refused += 1
                    continue
                pieces += 1
                assert shown.shape[:2] == (piece.height, piece.width), bytes(worse).hex()
                del tiles, piece
    assert refused > 20
    assert pieces > 100
