"""Rewriting changes no pixel, keeps what is beside them, and refuses what it can't do with the one
declared error.
"""

from __future__ import annotations

import ctypes
import io
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from loaderd.data.jpeg import rewrite as transcode
from loaderd.data.jpeg import tiles as restart
from loaderd.data.jpeg.headers import NotRewritable
from loaderd.data.jpeg.rewrite import rewrite
from loaderd_testing.sample_builders import coded, picture

EXTENSION, PROGRAM = transcode._library(), transcode._jpegtran()
ENGINES = [
    pytest.param("extension", marks=pytest.mark.needs("extensions")),
    pytest.param("jpegtran", marks=pytest.mark.needs("jpegtran")),
]
# small images are allowed to grow here, so that they are rewritten at all
LARGE = {"growth": 9.0, "progressive_growth": 9.0}


def use(monkeypatch: pytest.MonkeyPatch, library: ctypes.CDLL | None, program: str) -> None:
    monkeypatch.setattr(transcode, "_library", lambda: library)
    monkeypatch.setattr(transcode, "_jpegtran", lambda: program)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    use(
        monkeypatch,
        EXTENSION if request.param == "extension" else None,
        PROGRAM if request.param == "jpegtran" else "",
    )
    return request.param


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def same_pixels(old: bytes, new: bytes) -> bool:
    return np.array_equal(simplejpeg.decode_jpeg(old), simplejpeg.decode_jpeg(new))


@pytest.mark.parametrize(
    "shape", [(40, 56), (17, 33), (1, 1), (16, 16), (33, 16 * 13), (100, 3)], ids=str
)
@pytest.mark.parametrize("sampling", ["444", "422", "420", "440", "411", "gray"])
def test_baseline_pixels_stay_the_same(engine: str, sampling: str, shape: tuple[int, int]) -> None:
    image = picture(*shape)
    if sampling == "gray":
        old = simplejpeg.encode_jpeg(
            np.ascontiguousarray(image[:, :, :1]), quality=90, colorspace="gray"
        )
    else:
        old = simplejpeg.encode_jpeg(image, quality=90, colorsubsampling=sampling)
    new = rewrite(old, **LARGE)
    tiles = restart.read(new)
    assert same_pixels(old, new)
    assert tiles is not None
    assert (tiles.height, tiles.width) == shape
    assert np.array_equal(
        restart.tile_lengths(new, tiles.scan, len(new) - 2), tiles.lengths.ravel()
    )


@pytest.mark.parametrize("shape", [(40, 56), (17, 33), (1, 1), (100, 70)], ids=str)
@pytest.mark.parametrize("sampling", [0, 1, 2, "L"])
@pytest.mark.parametrize("quality", [30, 100])
def test_a_progressive_image_becomes_baseline_with_the_same_pixels(
    engine: str, quality: int, sampling: int | str, shape: tuple[int, int]
) -> None:
    image = Image.fromarray(noise(*shape))
    if sampling == "L":
        old = coded(image.convert("L"), "JPEG", quality=quality, progressive=True)
    else:
        old = coded(image, "JPEG", quality=quality, progressive=True, subsampling=sampling)
    new = rewrite(old, **LARGE)
    assert b"\xff\xc2" in old
    assert b"\xff\xc0" in new
    assert b"\xff\xc2" not in new
    assert same_pixels(old, new)


@pytest.mark.parametrize(
    "options",
    [
        {"restart_marker_blocks": 3},
        {"restart_marker_rows": 1},
        {"restart_marker_rows": 1, "progressive": True},
    ],
    ids=str,
)
def test_restart_markers_that_are_there_already_give_way(
    engine: str, options: dict[str, int]
) -> None:
    old = coded(picture(75, 118), "JPEG", quality=90, **options)
    assert same_pixels(old, rewrite(old, **LARGE))


@pytest.mark.parametrize(
    "image",
    [np.zeros((64, 64, 3), np.uint8), np.full((200, 300, 3), 255, np.uint8), noise(64, 64)],
    ids=["black", "white", "noise"],
)
def test_extremes_of_content_are_coded(engine: str, image: np.ndarray) -> None:
    for quality in (1, 100):
        old = simplejpeg.encode_jpeg(image, quality=quality)
        assert same_pixels(old, rewrite(old, **LARGE))


@pytest.mark.parametrize("sampling", ["440", "411"])
def test_pieces_of_rarer_samplings_show_the_same_pixels(engine: str, sampling: str) -> None:
    old = simplejpeg.encode_jpeg(noise(75, 200), quality=90, colorsubsampling=sampling)
    tiles = restart.read(rewrite(old, **LARGE))
    assert tiles is not None
    whole = simplejpeg.decode_jpeg(old)
    for left, top in ((0, 0), (32, 16), (63, 31), (95, 47), (150, 60)):
        piece = tiles.splice(left, top, left + 33, top + 15)
        assert piece.width < 200
        part = simplejpeg.decode_jpeg(piece.data)[top - piece.top :, left - piece.left :]
        assert np.array_equal(part[:15, :33], whole[top : top + 15, left : left + 33])


def test_an_image_of_rgb_components_keeps_its_colours_whole_and_in_pieces(engine: str) -> None:
    old = coded(picture(75, 118), "JPEG", quality=95, keep_rgb=True)
    new = rewrite(old, **LARGE)
    tiles = restart.read(new)
    assert tiles is not None
    whole = simplejpeg.decode_jpeg(old)
    assert np.array_equal(simplejpeg.decode_jpeg(new), whole)
    piece = tiles.splice(40, 30, 50, 40)
    part = simplejpeg.decode_jpeg(piece.data)
    assert np.array_equal(
        part, whole[piece.top : piece.top + piece.height, piece.left : piece.left + piece.width]
    )


@pytest.mark.parametrize("wide", [False, True])
def test_a_frame_is_baseline_only_where_its_quantisation_has_eight_bits(
    engine: str, wide: bool
) -> None:
    old = coded(picture(75, 118), "JPEG", quality=60)
    if wide:
        old = with_wide_quantisation(old)
    if wide and engine == "jpegtran":  # warns, and what it warns of is left alone
        with pytest.raises(NotRewritable):
            rewrite(old, **LARGE)
        return
    new = rewrite(old, **LARGE)
    frames = [marker for marker, _, _ in restart.segments(new) if 0xC0 <= marker <= 0xC2]
    assert frames == [0xC1 if wide else 0xC0]
    assert same_pixels(old, new)


def with_wide_quantisation(data: bytes) -> bytes:
    """The same JPEG with the numbers of its quantisation in 16 bits, 256 more each, as an extended
    sequential one may have them.
    """
    out = bytearray(data[:2])
    for marker, begin, end in restart.segments(data):
        payload = data[begin:end]
        if marker == 0xDB:
            tables = [payload[at : at + 65] for at in range(0, len(payload), 65)]
            payload = b"".join(
                bytes((0x10 | table[0],)) + b"".join(bytes((1, value)) for value in table[1:])
                for table in tables
            )
        marker = 0xC1 if marker == 0xC0 else marker
        out += bytes((0xFF, marker)) + (len(payload) + 2).to_bytes(2, "big") + payload
        if marker == restart.SOS:
            return bytes(out) + data[end:]
    raise AssertionError("no scan")


def test_exif_profiles_and_comments_are_kept(engine: str) -> None:
    exif = Image.Exif()
    exif[0x010E] = "a description"
    old = coded(
        picture(75, 118),
        "JPEG",
        quality=90,
        exif=exif,
        icc_profile=bytes(range(256)) * 300,
        comment=b"a comment",
        dpi=(300, 300),
    )
    before, after = (Image.open(io.BytesIO(data)) for data in (old, rewrite(old)))
    assert after.info["exif"] == before.info["exif"]
    assert after.info["icc_profile"] == bytes(range(256)) * 300
    assert after.info["comment"] == b"a comment"
    assert after.info["dpi"] == (300, 300)


def test_a_photo_grows_by_less_than_two_hundredths(engine: str) -> None:
    image = np.clip(
        picture(375, 500).astype(int) + np.random.default_rng(1).normal(0, 9, (375, 500, 3)), 0, 255
    ).astype(np.uint8)
    for quality in (80, 90, 95):
        old = simplejpeg.encode_jpeg(image, quality=quality)
        assert len(rewrite(old)) <= 1.02 * len(old)


def test_what_would_grow_by_more_than_allowed_stays_as_it_is(engine: str) -> None:
    old = coded(picture(75, 118), "JPEG", quality=50, optimize=True)
    with pytest.raises(NotRewritable, match="much longer"):
        rewrite(old)


def test_wider_tiles_are_taken_where_narrow_ones_are_too_dear(engine: str) -> None:
    image = np.clip(
        picture(256, 1024).astype(int) + np.random.default_rng(1).normal(0, 3, (256, 1024, 3)),
        0,
        255,
    ).astype(np.uint8)
    old = simplejpeg.encode_jpeg(image, quality=60)
    narrow, wide = restart.read(rewrite(old, growth=0.5)), restart.read(rewrite(old, growth=0.0))
    assert narrow is not None
    assert wide is not None
    assert wide.tile_width > narrow.tile_width
    assert wide.width == narrow.width == 1024


def test_what_has_an_index_is_not_rewritten_again(engine: str) -> None:
    new = rewrite(simplejpeg.encode_jpeg(picture(75, 118)), **LARGE)
    assert rewrite(memoryview(new)) == new


def test_a_view_of_read_only_memory_is_as_good_as_bytes(engine: str) -> None:
    old = simplejpeg.encode_jpeg(picture(75, 118))
    assert rewrite(memoryview(b"?" + old)[1:], **LARGE) == rewrite(old, **LARGE)


def test_bytes_behind_the_image_are_kept(engine: str) -> None:
    old = simplejpeg.encode_jpeg(picture(75, 118))
    for behind in (b"and a film of 3 s", b"\0", b"\xff\xd9", old):
        new = rewrite(old + behind, **LARGE)
        assert new == rewrite(old, **LARGE) + behind
        tiles = restart.read(new)
        assert tiles is not None
        piece = tiles.splice(70, 33, 90, 40)
        part = simplejpeg.decode_jpeg(piece.data)
        assert np.array_equal(
            part,
            simplejpeg.decode_jpeg(old)[piece.top :, piece.left :][: piece.height, : piece.width],
        )


def test_a_file_that_tells_where_further_pictures_lie_is_left_as_it_is(engine: str) -> None:
    first, second = Image.fromarray(picture(40, 50)), Image.fromarray(picture(40, 50, seed=1))
    with pytest.raises(NotRewritable, match="it holds more pictures"):
        rewrite(coded(first, "MPO", save_all=True, append_images=[second]), **LARGE)


def test_an_image_cut_off_anywhere_is_refused(engine: str) -> None:
    for options in ({}, {"progressive": True}):
        old = coded(picture(40, 56), "JPEG", quality=80, **options)
        step = 1 if engine == "extension" else 97
        for length in range(0, len(old), step):
            with pytest.raises(NotRewritable):
                rewrite(old[:length], **LARGE)


def patched(data: bytes, marker: int, place: int, value: int) -> bytes:
    """With one byte of the segment changed; place 1 is the marker itself."""
    at = next(begin - 4 for found, begin, _ in restart.segments(data) if found == marker)
    return data[: at + place] + bytes((value,)) + data[at + place + 1 :]


KINDS = [
    (0xC9, "arithmetic"),
    (0xC3, "lossless"),
    (0xC5, "hierarchical"),
    (0xCC, "arithmetic"),
    (0xDC, "DNL"),
    (0xC8, "unknown kind"),
]


@pytest.mark.parametrize(("marker", "reason"), KINDS)
def test_kinds_of_jpeg_that_are_not_huffman_coded_blocks_are_refused(
    engine: str, marker: int, reason: str
) -> None:
    with pytest.raises(NotRewritable, match=reason):
        rewrite(patched(simplejpeg.encode_jpeg(picture()), 0xC0, 1, marker))


def test_twelve_bits_are_refused(engine: str) -> None:
    with pytest.raises(NotRewritable, match="12 bits"):
        rewrite(patched(simplejpeg.encode_jpeg(picture()), 0xC0, 4, 12))


def test_cmyk_is_refused(engine: str) -> None:
    with pytest.raises(NotRewritable, match="4 components"):
        rewrite(coded(Image.fromarray(picture()).convert("CMYK"), "JPEG"))


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xd8", b"\xff\xd8\xff\xd9", b"\x89PNG\r\n\x1a\n and more", bytes(1000)]
)
def test_what_is_no_jpeg_is_refused(engine: str, data: bytes) -> None:
    with pytest.raises(NotRewritable):
        rewrite(data)


def apart(image: np.ndarray) -> bytes:
    """A sequential JPEG with a scan for each colour, of 4:4:4."""
    grays = [
        simplejpeg.encode_jpeg(np.ascontiguousarray(image[:, :, i : i + 1]), colorspace="gray")
        for i in range(3)
    ]
    found = {marker: (begin, end) for marker, begin, end in restart.segments(grays[0])}
    begin, end = found[0xC0]
    frame = (
        b"\xff\xc0\x00\x11"
        + grays[0][begin : begin + 5]
        + b"\x03\x01\x11\x00\x02\x11\x00\x03\x11\x00"
    )
    start = found[restart.SOS][1]
    scans = [
        b"\xff\xda\x00\x08\x01" + bytes((i + 1, 0, 0, 63, 0)) + gray[start:-2]
        for i, gray in enumerate(grays)
    ]
    return (
        grays[0][: begin - 4]
        + frame
        + grays[0][end : found[restart.SOS][0] - 4]
        + b"".join(scans)
        + b"\xff\xd9"
    )


@pytest.mark.needs("extensions")
def test_a_scan_that_ends_early_is_called_truncated() -> None:
    data = coded(picture(75, 118), "JPEG", quality=90)
    with pytest.raises(NotRewritable, match="truncated: the scan ends early"):
        rewrite(data[: (data.rindex(b"\xff\xda") + len(data)) // 2] + b"\xff\xd9", **LARGE)


def test_several_sequential_scans_are_refused(engine: str) -> None:
    data = apart(picture())
    assert simplejpeg.decode_jpeg(data).shape == (40, 50, 3)
    with pytest.raises(NotRewritable, match="several sequential scans"):
        rewrite(data, **LARGE)


def test_a_second_scan_of_all_components_is_refused_where_nothing_is_coded_anew() -> None:
    data = coded(picture(75, 118), "JPEG", quality=90)
    scan = data[data.rindex(b"\xff\xda") : -2]
    with pytest.raises(NotRewritable, match="several sequential scans"):
        transcode.indexed(data[:-2] + scan + b"\xff\xd9")


def test_a_progressive_image_without_its_last_scan_is_refused(engine: str) -> None:
    old = coded(picture(75, 118), "JPEG", quality=90, progressive=True)
    last = old.rindex(b"\xff\xda")
    # decoders smooth what is missing
    assert simplejpeg.decode_jpeg(old[:last] + b"\xff\xd9").shape == (75, 118, 3)
    with pytest.raises(NotRewritable, match="are incomplete"):
        rewrite(old[:last] + b"\xff\xd9", **LARGE)


def rare_symbols() -> bytes:
    """A gray image in which symbols come as often as Fibonacci's numbers say: their best code would
    have lengths up to 21.
    """
    often = [1, 1]
    while len(often) < 22:
        often.append(often[-1] + often[-2])
    symbols = [run << 4 | 1 for run in range(16)] + [run << 4 | 2 for run in range(6)]
    order = np.random.default_rng(0).permutation(np.repeat(symbols, often))
    width, height = 8 * 211, 8 * -(-len(order) // 211)
    # One code of 8 bits for each symbol, its number: a block is DC 0, the symbol, its bits, and the
    # end of the block.
    listed = [0, *symbols]
    words = [f"0{listed.index(s):08b}{'1' * (s & 15)}{0:08b}" for s in order] + [f"0{0:08b}"] * (
        width * height // 64 - len(order)
    )
    bits = "".join(words)
    bits += "1" * (-len(bits) % 8)
    scan = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\x00")
    tables = b"\xff\xdb\x00\x43\x00" + bytes([1] * 64)
    tables += b"\xff\xc0\x00\x0b\x08" + restart.SIZE.pack(height, width) + b"\x01\x01\x11\x00"
    tables += b"\xff\xc4\x00\x14\x00\x01" + bytes(16)
    tables += (
        b"\xff\xc4"
        + (19 + len(listed)).to_bytes(2, "big")
        + b"\x10"
        + bytes([0] * 7 + [len(listed)] + [0] * 8)
        + bytes(listed)
    )
    return b"\xff\xd8" + tables + b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00" + scan + b"\xff\xd9"


def test_no_code_becomes_longer_than_sixteen_bits(engine: str) -> None:
    old = rare_symbols()
    new = rewrite(old, **LARGE)
    assert same_pixels(old, new)
    codes = next(new[begin:end] for marker, begin, end in restart.segments(new) if marker == 0xC4)
    counts = codes[codes.index(0x10) + 1 :][:16]  # of the AC codes
    assert sum(counts) == 23
    assert counts[15] > 0 or engine != "extension"  # without the limit there would be longer ones


def test_without_means_it_is_said_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, None, "")
    assert not transcode.can_rewrite()
    assert "C compiler" in transcode.available()
    assert "jpegtran" in transcode.available()
    with pytest.raises(NotRewritable, match="C compiler"):
        rewrite(simplejpeg.encode_jpeg(picture()))


def test_without_means_fitting_restart_markers_are_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, None, "")
    old = coded(picture(75, 118), "JPEG", quality=90, restart_marker_blocks=2)
    new = rewrite(old)
    tiles = restart.read(new)
    assert tiles is not None
    assert tiles.tile_width == 32
    assert same_pixels(old, new)


def test_an_image_has_as_many_tiles_as_its_index_takes_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = coded(picture(75, 118), "JPEG", quality=90, restart_marker_blocks=2)
    many = 4 * 5  # of 118 pixels in pieces of 32, of 75 in pieces of 16
    monkeypatch.setattr(restart, "MAX_TILES", many)
    assert same_pixels(old, transcode.indexed(old))
    monkeypatch.setattr(restart, "MAX_TILES", many - 1)
    with pytest.raises(NotRewritable, match="too many or too long tiles"):
        transcode.indexed(old)


def test_what_is_there_is_named(engine: str) -> None:
    assert transcode.can_rewrite()
    assert transcode.available().startswith("extension _jpeg" if engine == "extension" else PROGRAM)


STAND_IN = """#!{python}
import io, sys
from PIL import Image
image = Image.open(io.BytesIO(sys.stdin.buffer.read()))
if {fails}:
    sys.exit("it does not want to")
blocks = int(sys.argv[sys.argv.index("-restart") + 1].rstrip("B"))
image.save(sys.stdout.buffer, "JPEG", quality="keep", optimize=True, restart_marker_blocks=blocks{wrong})
"""


def stand_in(folder: Path, fails: bool = False, wrong: str = "") -> str:
    """A program that takes jpegtran's arguments; it codes anew what it was given."""
    path = folder / "jpegtran"
    path.write_text(STAND_IN.format(python=sys.executable, fails=fails, wrong=wrong))
    os.chmod(path, 0o755)
    return str(path)


def test_the_program_is_told_where_markers_go(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, None, stand_in(tmp_path))
    new = rewrite(simplejpeg.encode_jpeg(picture(75, 320)), **LARGE)
    tiles = restart.read(new)
    assert tiles is not None
    assert (tiles.tile_height, tiles.tile_width) == (8, 32)


@pytest.mark.parametrize(
    ("fails", "wrong", "reason"), [(True, "", "does not want to"), (False, " + 2", "tile borders")]
)
def test_a_program_that_fails_or_does_something_else_is_an_error_of_this_image(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: bool, wrong: str, reason: str
) -> None:
    use(monkeypatch, None, stand_in(tmp_path, fails, wrong))
    with pytest.raises(NotRewritable, match=reason):
        rewrite(simplejpeg.encode_jpeg(picture(75, 320)), **LARGE)


SOURCES = [
    coded(picture(40, 56), "JPEG", quality=80, **options)
    for options in ({}, {"progressive": True}, {"restart_marker_blocks": 2})
]
SOURCES.append(coded(picture(40, 56)[:, :, 0], "JPEG", quality=100, progressive=True))


@settings(max_examples=600, deadline=None)
@given(
    st.sampled_from(SOURCES),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=5),
    st.floats(0, 1),
)
def test_damaged_bytes_are_refused_or_decode_alike(
    source: bytes, changes: list[tuple[float, int]], keep: float
) -> None:
    data = bytearray(source)
    for place, value in changes:
        data[int(place * len(data))] = value
    if keep < 0.5:
        del data[int(2 * keep * len(data)) :]
    try:
        new = rewrite(data, **LARGE)
    except NotRewritable:
        return
    assert restart.read(new) is not None
    assert same_pixels(bytes(data), new)


def test_the_help_for_what_is_missing_takes_no_wheel_that_was_built_without_a_compiler() -> None:
    assert (
        "pip install --force-reinstall --no-deps --no-cache-dir --no-binary loaderd loaderd"
        in transcode.HELP
    )
