"""What a page shows of a sample, and that it needs nothing else."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from loaderd.cli.preview.drawing import curve, envelope
from loaderd.cli.preview.page import page
from loaderd.cli.preview.panels import PanelMaker, Panels
from loaderd.cli.preview.sheet_cells import marks, picture
from loaderd.config.decode_modes import DecodeModes
from loaderd.config.stream import StreamConfig, TransformConfig
from loaderd.data.sample import Sample

PLAN = StreamConfig(
    "t",
    lmdb="/d",
    transforms=(
        TransformConfig(
            "hflip",
            None,
            {"fields": ["image", "mask"], "boxes": "places", "keypoints": "joints"},
        ),
    ),
)


def panels(sample: Sample, plan: StreamConfig = PLAN) -> Panels:
    return PanelMaker(plan, ("cat", "dog")).of(sample)


def image(**more: Any) -> Sample:
    return Sample({"image": np.zeros((20, 30, 3), np.uint8), **more}, images=("image",))


def test_mask_boxes_and_points_lie_over_the_picture_that_they_belong_to() -> None:
    boxes = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)
    mask = np.ones((20, 30), np.int64)
    found = panels(
        image(mask=mask, places=boxes, labels=np.array([1, 7]), joints=np.ones((2, 4, 3)))
    )
    (shown,) = found.pictures
    assert shown.mask is not None
    np.testing.assert_array_equal(shown.mask, mask)
    assert shown.boxes.tolist() == boxes.tolist()
    assert (shown.names, shown.points.shape) == (("dog", "7"), (8, 2))


def test_boxes_are_known_by_the_config_or_by_their_name_alone() -> None:
    four = np.ones((2, 4), np.float32)
    plain = StreamConfig("t", lmdb="/d")
    assert len(panels(image(boxes=four), plain).pictures[0].boxes) == 2
    assert len(panels(image(places=four), plain).pictures[0].boxes) == 0
    step = TransformConfig(None, "a:b", {}, {"boxes": "places"})
    called = StreamConfig("t", lmdb="/d", transforms=(step,))
    assert len(panels(image(places=four), called).pictures[0].boxes) == 2


def test_a_mask_alone_is_shown_in_colours() -> None:
    labels = np.ones((20, 30, 1), np.uint8)
    modes = TransformConfig("decode", None, {"field": "m", "mode": "index"})
    sample = Sample({"m": labels}, images=("m",))
    (shown,) = panels(sample, StreamConfig("t", lmdb="/d", transforms=(modes,))).pictures
    assert shown.mask is not None
    assert shown.mask.shape == (20, 30)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        ("a text", "text, 6 characters", "a text"),
        ("x" * 700, "text, 700 characters", "x" * 600 + " ..."),
        (b"\x00\xff", "bytes, 2", "00 ff"),
        (np.arange(4), "int64[4]", "0 1 2 3"),
        (np.arange(40), "int64[40]", " ".join(map(str, range(24))) + " ... (0 to 39)"),
        (np.array([[1.5, 2], [3, 4]]), "float64[2,2]", "1.5 2\n3 4"),
        (np.zeros((0, 4)), "float64[0,4]", "empty"),
        (np.array(0.25), "float64", "0.25"),
        (np.full(4, np.nan), "float64[4]", "nan nan nan nan"),
    ],
)
def test_texts_tokens_and_small_arrays_are_written(value: Any, kind: str, text: str) -> None:
    (words,) = panels(Sample({"x": value})).words
    assert (words.kind, words.text) == (kind, text)


def test_a_label_has_the_name_of_its_class() -> None:
    assert panels(Sample({"label": np.array(1)})).words[0].text == "1 (dog)"
    assert panels(Sample({"label": np.array(5)})).words[0].text == "5"
    assert panels(Sample({"other": np.array(1)})).words[0].text == "1"


@pytest.mark.parametrize(
    ("value", "sound"),
    [
        (np.linspace(0, 1, 64), False),
        (np.zeros(16000, np.float32), True),
        (np.zeros(16000, np.int16), True),
        (np.zeros((2, 16000), np.float32), True),
        (np.zeros((16000, 1), np.float32), True),
        (np.array([np.nan, np.inf] * 8), False),
    ],
)
def test_numbers_in_a_row_are_a_curve_and_many_of_them_a_waveform(
    value: np.ndarray, sound: bool
) -> None:
    (found,) = panels(Sample({"x": value})).curves
    assert (found.sound, found.values.ndim) == (sound, 1)
    drawn = curve(found, "sample a")
    assert ("waveform" if sound else "values") + " of x of sample a" in drawn
    assert "nan" not in drawn.partition("<path")[2]


def test_the_envelope_keeps_the_extremes_of_each_column() -> None:
    values = np.zeros(1000)
    values[[0, 995]] = 3, -2
    columns = envelope(values, 10)
    assert columns.shape == (10, 2)
    assert columns[0].tolist() == [0, 3]
    assert columns[-1].tolist() == [-2, 0]
    assert envelope(np.arange(3.0), 10).tolist() == [[0, 0], [1, 1], [2, 2]]


def test_other_arrays_are_shown_as_their_first_plane() -> None:
    (shown,) = panels(Sample({"x": np.arange(256.0).reshape(1, 16, 16)})).pictures
    assert shown.matrix
    assert (shown.pixels.min(), shown.pixels.max()) == (0, 255)
    (flat,) = panels(Sample({"x": np.full((16, 16), np.nan)})).pictures
    assert (flat.pixels == 0).all()


def test_a_sheets_cell_has_a_picture_a_curve_or_text() -> None:
    sound = Sample({"x": np.sin(np.arange(16000.0))})
    drawn = picture(sound, panels(sound), DecodeModes())
    assert drawn is not None
    assert len(np.unique(drawn)) == 2
    text = Sample({"x": "words"})
    assert picture(text, panels(text), DecodeModes()) is None
    assert marks(panels(text))[2] == "x: words"
    assert marks(None) == (None, None, "")


class Seen(HTMLParser):
    """Collects what a page refers to, and pictures without words."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.unsaid: list[str] = []
        self.texts: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        has = dict(attrs)
        for word in ("src", "href"):
            if word in has and not (has[word] or "").startswith("data:image/"):
                self.outside.append(f"{tag} {has[word]}")
        if (tag == "img" and not has.get("alt")) or (tag == "svg" and not has.get("aria-label")):
            self.unsaid.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_needs_nothing_else_and_says_what_its_pictures_are() -> None:
    samples = [
        image(mask=np.ones((20, 30), np.int64), boxes=np.ones((1, 4)), x=np.linspace(0, 1, 64)),
        Sample({"text": "<b>not bold</b> & so on " * 4}),
        None,
    ]
    rows: list[dict[str, Any]] = [
        {"position": n, "index": n, "key": f"<{n}>", "drawn": ["hflip: yes"]} for n in range(3)
    ]
    rows[0]["label"], rows[1]["label"] = "cat", "<dog>"
    rows[2]["bad"] = "sample 2: <broken>"
    facts = {"stream": "t", "seed": 0, "epoch": 1, "step": 2, "position": 3, "rank": 0}
    made = page(
        {**facts, "world_size": 1, "rows": rows},
        [None if sample is None else panels(sample) for sample in samples],
    )
    seen = Seen()
    seen.feed(made)
    assert (seen.outside, seen.unsaid) == ([], [])
    assert not {"script", "link", "iframe", "b>not"} & set(seen.tags)
    assert not re.search(r"url\(|@import|https?:", made.replace("http-equiv", ""))
    for text in ("<dog>", "sample 2: <broken>", "<b>not bold</b> & so on " * 4, "hflip: yes"):
        assert text in seen.texts, text
    assert "1 of 3 samples are bad" in seen.texts
    assert "prefers-color-scheme: dark" in made
    assert 'id="masks"' in made
    assert 'id="marks"' in made
