"""Pieces of a JPEG show the very pixels of the whole; an index that doesn't fit is found out, never
believed.
"""

from __future__ import annotations

import io
import math
import random
import struct
import warnings
from itertools import pairwise

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from loaderd.data.jpeg import tiles as restart
from loaderd.data.jpeg.rewrite import indexed
from loaderd.data.jpeg.tiles import DamagedJpeg, Tiles
from loaderd_testing.sample_builders import coded

SAMPLINGS = {"444": 0, "422": 1, "420": 2, "gray": 0}
# height, width, MCUs of a tile: odd, whole MCUs, a prime number of MCUs in rows of one tile and of
# tiles of one MCU, a last tile so narrow that a decoder wouldn't interpolate its chroma, one MCU, a
# single column of them
SHAPES = [
    (75, 118, 2),
    (96, 128, 4),
    (50, 205, 13),
    (61, 13 * 16 - 3, 1),
    (40, 16 * 7 + 3, 1),
    (5, 7, 1),
    (100, 9, 1),
    (40, 1, 1),
]
REDUCED = {
    8: cv2.IMREAD_COLOR,
    4: cv2.IMREAD_REDUCED_COLOR_2,
    2: cv2.IMREAD_REDUCED_COLOR_4,
    1: cv2.IMREAD_REDUCED_COLOR_8,
}


def patchwork(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Small patches of wild colours: what chroma loses at an edge shows."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (height // 5 + 2, width // 5 + 2, 3))
    return np.clip(
        coarse.repeat(5, 0).repeat(5, 1)[:height, :width]
        + rng.integers(-9, 10, (height, width, 3)),
        0,
        255,
    ).astype(np.uint8)


def restarting(height: int, width: int, sampling: str, interval: int, seed: int = 0) -> bytes:
    image = Image.fromarray(patchwork(height, width, seed))
    if sampling == "gray":
        image = image.convert("L")
    return coded(
        image, "JPEG", quality=85, subsampling=SAMPLINGS[sampling], restart_marker_blocks=interval
    )


def tiled(height: int, width: int, sampling: str = "420", interval: int = 2) -> bytes:
    """A JPEG with an index; the interval is made to fit the MCUs of a row."""
    mcus = -(-width // (16 if sampling in ("420", "422") else 8))
    return indexed(restarting(height, width, sampling, math.gcd(interval, mcus)))


def opened(data: restart.Data) -> Tiles:
    tiles = restart.read(data)
    assert tiles is not None
    return tiles


def pixels(data: restart.Data, eighths: int) -> np.ndarray:
    if eighths == 8:
        return simplejpeg.decode_jpeg(data)
    made = cv2.imdecode(
        np.frombuffer(data, np.uint8), REDUCED[eighths] | cv2.IMREAD_IGNORE_ORIENTATION
    )
    assert made is not None
    return made


def boxes(
    height: int, width: int, tile_height: int, tile_width: int
) -> list[tuple[float, float, float, float]]:
    """Crops at all borders, one pixel in each corner and on tile edges, the whole, halves of
    pixels, and chance.
    """
    draw = random.Random(f"{height} {width}")
    corners = [(x, y, x + 1, y + 1) for x in (0, width - 1) for y in (0, height - 1)]
    edges = [
        (x, y, x + 1, y + 1)
        for x in range(tile_width - 1, width, tile_width)
        for y in range(tile_height - 1, height, tile_height)
    ]
    exact = [
        (x - 1, y - 1, min(x + tile_width, width), min(y + tile_height, height))
        for x, y, _, _ in edges
        if x and y
    ]
    seeder = []
    for _ in range(25):
        x, y = (
            sorted(draw.uniform(0, width) for _ in range(2)),
            sorted(draw.uniform(0, height) for _ in range(2)),
        )
        seeder.append((x[0], y[0], x[1], y[1]))
    bands = [
        (0, 0, width, 1),
        (0, height - 1, width, height),
        (0, 0, 1, height),
        (width - 1, 0, width, height),
    ]
    narrow = [(x, 0, x + 1, height) for x in range(0, width, 4)]
    return [(0, 0, width, height), *corners, *narrow, *edges[:6], *exact[:6], *bands, *seeder]


def same_pixels(
    tiles: Tiles, box: tuple[float, float, float, float], eighths: int, whole: np.ndarray
) -> bool:
    piece = tiles.splice(*box, eighths)
    part = pixels(piece.data, eighths)
    assert part.shape[:2] == (-(-piece.height * eighths // 8), -(-piece.width * eighths // 8))
    assert piece.left * eighths % 8 == piece.top * eighths % 8 == 0
    x, y = piece.left * eighths // 8, piece.top * eighths // 8
    left, top = (math.floor(v * eighths / 8) for v in box[:2])
    right, bottom = (math.ceil(v * eighths / 8) for v in box[2:])
    return np.array_equal(
        part[top - y : bottom - y, left - x : right - x], whole[top:bottom, left:right]
    )


@pytest.mark.parametrize("eighths", restart.SCALES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_pixels_of_a_crop_are_those_of_the_whole_image(
    sampling: str, shape: tuple[int, int, int], eighths: int
) -> None:
    height, width, interval = shape
    data = tiled(height, width, sampling, interval)
    tiles, whole = opened(data), pixels(data, eighths)
    assert (tiles.height, tiles.width) == (height, width)
    wrong = [
        box
        for box in boxes(height, width, tiles.tile_height, tiles.tile_width)
        if not same_pixels(tiles, box, eighths, whole)
    ]
    assert wrong == []


def test_a_crop_of_all_tiles_is_the_stored_file_itself() -> None:
    data = memoryview(tiled(75, 118))
    tiles = opened(data)
    for box in ((0, 0, 118, 75), (1, 1, 117, 74), (31.5, 15.9, 96.1, 64.1)):
        piece = tiles.splice(*box)
        assert piece.data is data
        assert piece[1:] == (0, 0, 118, 75)


def test_no_more_tiles_are_taken_than_a_crop_and_its_margin_touch() -> None:
    tiles = opened(tiled(160, 320, "420", 2))  # tiles of 16 x 32
    assert tiles.splice(33, 17, 63, 31)[1:] == (32, 16, 32, 16)
    assert tiles.splice(32, 16, 64, 32)[1:] == (0, 0, 96, 48)
    # two pixels are one of the scaled image, and its neighbour
    assert tiles.splice(33.5, 17.5, 60.5, 30.5, 4)[1:] == (0, 0, 64, 48)
    assert tiles.splice(319, 159, 320, 160)[1:] == (288, 144, 32, 16)
    plain = opened(tiled(160, 320, "444", 4))  # tiles of 8 x 32; no pixel depends on its neighbours
    assert plain.splice(32, 16, 64, 32)[1:] == (32, 16, 32, 16)


def test_a_piece_is_a_faultless_jpeg_for_other_decoders() -> None:
    tiles = opened(tiled(200, 320, "420", 1))
    piece = tiles.splice(40, 20, 300, 190)  # 13 rows of 18 tiles, numbered anew modulo 8
    markers = [b for a, b in pairwise(piece.data[len(tiles.header) :]) if a == 0xFF and b]
    assert markers == [0xD0 + i % 8 for i in range(len(markers) - 1)] + [0xD9]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        image = Image.open(io.BytesIO(piece.data))
        image.load()
    assert image.size == (piece.width, piece.height)
    assert np.array_equal(np.asarray(image), simplejpeg.decode_jpeg(piece.data))


def test_the_index_takes_two_bytes_a_tile_and_the_file_stays_an_ordinary_jpeg() -> None:
    plain = restarting(160, 320, "420", 2)
    data = indexed(plain)
    assert len(data) - len(plain) <= 2 * 100 + 44  # segments that were several may become one
    assert np.array_equal(simplejpeg.decode_jpeg(data), simplejpeg.decode_jpeg(plain))
    assert indexed(data) == data


@pytest.mark.parametrize(
    "box",
    [
        (0, 0, 0, 5),
        (5, 5, 4, 9),
        (-0.1, 0, 5, 5),
        (0, 0, 118.5, 5),
        (0, 0, 5, 76),
        (0, math.nan, 5, 5),
    ],
)
def test_a_box_that_is_empty_or_not_inside_the_image_is_refused(
    box: tuple[float, float, float, float],
) -> None:
    with pytest.raises(ValueError, match="of 118 x 75 pixels"):
        opened(tiled(75, 118)).splice(*box)


def test_a_scale_that_decoders_do_slowly_is_refused() -> None:
    with pytest.raises(ValueError, match="at 5/8"):
        opened(tiled(75, 118)).splice(0, 0, 9, 9, 5)


def test_markers_are_found_by_looking_as_the_index_has_them() -> None:
    data = tiled(160, 320)
    tiles = opened(data)
    assert np.array_equal(
        restart.tile_lengths(data, tiles.scan, len(data) - 2), tiles.lengths.ravel()
    )
    assert restart.scan_bytes(data, tiles.scan) == len(data) - 2 - tiles.scan


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"\xff\xd8\xff",
        b"\xff\xd8\xff\xd9",
        b"\x89PNG\r\n\x1a\n",
        bytes(300),
        b"\xff\xd8" + b"\xff\xe0" * 20,
    ],
)
def test_bytes_of_any_kind_have_no_index(data: bytes) -> None:
    assert restart.read(data) is None


def test_a_jpeg_without_an_index_has_none() -> None:
    assert restart.read(restarting(75, 118, "420", 2)) is None


def test_a_file_that_another_program_changed_loses_its_index() -> None:
    data = tiled(75, 118)
    assert restart.read(data[:-2] + b"\0\0") is None
    assert restart.read(data[:-5]) is None
    assert restart.read(data[:-700] + data[-650:]) is None
    frame = data.index(b"\xff\xc0")
    # another height
    assert restart.read(data[: frame + 5] + b"\x00\x99" + data[frame + 7 :]) is None


def test_an_index_whose_tiles_do_not_end_at_markers_is_found_out() -> None:
    data = bytearray(tiled(160, 320))
    at = data.index(restart.IDENTIFIER) + len(restart.IDENTIFIER) + restart.HEAD.size
    lengths = list(struct.unpack_from("<100H", data, at))
    lengths[11], lengths[12] = lengths[11] + 1, lengths[12] - 1
    struct.pack_into("<100H", data, at, *lengths)
    tiles = opened(data)
    with pytest.raises(DamagedJpeg, match="doesn't end at a marker"):
        tiles.splice(33, 17, 63, 31)
    assert tiles.splice(100, 100, 120, 110).width == 32  # others are as they were


BASE = tiled(75, 118)
SMALL_HEADER = BASE.index(b"\xff\xda") + 20


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, SMALL_HEADER), st.integers(0, 255)), max_size=6),
    st.integers(0, len(BASE)),
    st.data(),
)
def test_damaged_bytes_give_no_index_or_a_declared_error(
    changes: list[tuple[int, int]], length: int, data: st.DataObject
) -> None:
    bytes_ = bytearray(BASE)
    for place, value in changes:
        bytes_[place] = value
    if data.draw(st.booleans()):
        del bytes_[length:]
    tiles = restart.read(bytes_)
    if tiles is None:
        return
    left = data.draw(st.floats(0, tiles.width, exclude_max=True))
    top = data.draw(st.floats(0, tiles.height, exclude_max=True))
    try:
        piece = tiles.splice(left, top, tiles.width, tiles.height)
    except DamagedJpeg:
        return
    assert len(piece.data) <= len(bytes_)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80), st.integers(0, 60))
def test_walking_over_any_bytes_ends(tail: bytes, keep: int) -> None:
    try:
        found = list(restart.segments(BASE[:keep] + tail))
    except DamagedJpeg:
        return
    assert found[-1][0] in (restart.SOS, restart.EOI)
