"""The contact sheet: which pixels of a sample are shown, and where."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from loaderd.cli.preview.contact_sheet import (
    ALARM,
    CELL,
    LINE,
    PAD,
    PALE,
    PAPER,
    Cell,
    _fitting,
    _font,
    draw,
    picture_of,
)
from loaderd.config.decode_modes import DecodeModes
from loaderd.data.sample import Sample

TOP = PAD + LINE + PAD  # of the first row of cells, below the title


def shown(value: np.ndarray, *, planar: bool = False) -> np.ndarray:
    sample = Sample({"x": value}, images=() if planar else ("x",))
    if planar:
        sample.planar.add("x")
    found = picture_of(sample, DecodeModes())
    assert found is not None
    return found


def test_pixels_between_0_and_1_are_shown_as_they_are_and_others_spread() -> None:
    line = np.array([[[0.0], [0.5], [1.0]]], np.float32)
    assert shown(line).reshape(-1).tolist() == [0, 127, 255]
    assert shown(line * 0.5).reshape(-1).tolist() == [0, 63, 127]
    assert shown(line * 4 - 2).reshape(-1).tolist() == [0, 127, 255]
    assert shown(line + 1).reshape(-1).tolist() == [0, 127, 255]
    assert shown(line - 1).reshape(-1).tolist() == [0, 127, 255]
    assert shown(np.full((1, 2, 1), 7.0)).reshape(-1).tolist() == [0, 0]
    gap = np.array([[[0.0], [np.nan], [1.0]]])
    assert shown(gap).reshape(-1).tolist() == [0, 0, 255]


@pytest.mark.parametrize(("channels", "kept"), [(1, 1), (2, 1), (3, 3), (4, 3), (5, 1)])
def test_of_many_channels_those_that_have_a_colour_are_shown(channels: int, kept: int) -> None:
    value = np.arange(2 * 3 * channels, dtype=np.uint8).reshape(2, 3, channels)
    np.testing.assert_array_equal(shown(value), value[..., :kept])
    np.testing.assert_array_equal(shown(value.transpose(2, 0, 1), planar=True), value[..., :kept])


def test_a_mask_of_another_size_is_not_put_beside_the_picture() -> None:
    sample = Sample(
        {"x": np.zeros((2, 2, 3), np.uint8), "m": np.ones((3, 2, 1), np.uint8)}, images=("x", "m")
    )
    found = picture_of(sample, DecodeModes(fields={"m": "index"}))
    assert found is not None
    assert found.shape == (2, 2, 3)


@pytest.mark.parametrize(
    ("value", "mask"),
    [
        (np.ones((2, 2), np.int64), True),
        (np.ones((2, 2, 1), bool), True),
        (np.ones((2, 2, 3), np.int64), False),
        (np.ones((2, 2), np.float32), False),
        ("text", False),
    ],
)
def test_a_field_that_shares_the_geometry_is_a_mask_if_it_has_one_whole_number_a_pixel(
    value: object, mask: bool
) -> None:
    sample = Sample({"m": value})
    found = picture_of(sample, DecodeModes(paired=frozenset({"m"})))
    assert (found is not None) == mask
    assert picture_of(sample, DecodeModes()) is None


@pytest.mark.parametrize(
    ("cells", "columns", "rows"), [(0, 1, 0), (1, 1, 1), (2, 2, 1), (5, 3, 2), (100, 10, 10)]
)
def test_the_sheet_is_about_as_wide_as_a_screen(cells: int, columns: int, rows: int) -> None:
    sheet = draw("title", [Cell(None, ("a", "b"))] * cells)
    high = CELL + PAD + 2 * LINE + PAD if cells else 0
    assert sheet.size == (columns * (CELL + PAD) + PAD, TOP + rows * high)


def area(sheet: Image.Image, left: int, top: int) -> np.ndarray:
    """The cell's square."""
    return np.asarray(sheet)[top : top + CELL, left : left + CELL]


def test_pictures_fill_their_cell_by_the_longer_side_and_stand_in_its_middle() -> None:
    red = np.full((2, 4, 3), (200, 0, 0), np.uint8)
    gray = np.full((800, 400, 1), 90, np.uint8)
    sheet = draw("", [Cell(red, ()), Cell(gray, ())])
    expected = np.full((CELL, CELL, 3), PAPER, np.uint8)
    expected[CELL // 4 : 3 * CELL // 4] = (200, 0, 0)
    np.testing.assert_array_equal(area(sheet, PAD, TOP), expected)
    expected = np.full((CELL, CELL, 3), PAPER, np.uint8)
    expected[:, CELL // 4 : 3 * CELL // 4] = 90
    np.testing.assert_array_equal(area(sheet, PAD + CELL + PAD, TOP), expected)


def test_a_small_picture_keeps_its_pixels_and_a_thin_one_is_seen() -> None:
    board = np.array([[0, 255], [255, 0]], np.uint8)[:, :, None]
    cell = area(draw("", [Cell(board, ())]), PAD, TOP)
    assert set(np.unique(cell)) == {0, 255}
    thin = np.zeros((1, 5000, 3), np.uint8)
    assert (area(draw("", [Cell(thin, ())]), PAD, TOP) == 0).any()


@pytest.mark.parametrize(("alarm", "colour"), [(False, PALE), (True, ALARM)])
def test_a_cell_without_a_picture_has_a_frame_in_the_colour_of_its_text(
    alarm: bool, colour: tuple[int, int, int]
) -> None:
    sheet = draw("", [Cell(None, ("a",)), Cell(None, ("first", "second"), alarm)])
    expected = np.full((CELL, CELL, 3), PAPER, np.uint8)
    expected[[0, -1], :] = expected[:, [0, -1]] = colour
    np.testing.assert_array_equal(area(sheet, PAD + CELL + PAD, TOP), expected)
    text = np.asarray(sheet)[TOP + CELL + LINE + PAD // 2 :, PAD + CELL + PAD :]
    darkest = text.reshape(-1, 3)[text.reshape(-1, 3).sum(1).argmin()]
    assert np.abs(darkest.astype(int) - colour).max() < 60


def test_of_a_long_text_its_end_is_shown_and_what_cannot_be_drawn_is_a_question_mark() -> None:
    font = _font()
    assert _fitting("short", 100, font) == "short"
    assert _fitting("a\N{SNOWMAN}\n", 100, font) == "a??"
    long = "".join(map(str, range(60)))
    cut = _fitting(long, 100, font)
    assert cut.startswith("..")
    assert long.endswith(cut[2:])
    assert font.getlength(cut) <= 100 < font.getlength(".." + long[-len(cut) + 1 :])
    assert _fitting("wide", 0, font) == ".."
