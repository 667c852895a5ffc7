"""`loaderd preview`: the very batch that a trainer gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from loaderd.cli.parser import parser
from loaderd.cli.preview.command import run
from loaderd.cli.preview.contact_sheet import Cell, draw, picture_of
from loaderd.config.decode_modes import DecodeModes
from loaderd.data.sample import Sample
from loaderd_client import Loader
from loaderd_testing.cli_harness import Place
from loaderd_wire.errors import ConfigError

STREAM = "shuffle = true\nseed = 3\n[[streams.train.transforms]]\ncall = 'mine:seeded'"


def shown(place: Place, *args: str) -> dict[str, Any]:
    return json.loads(place.cli("preview", "config.toml", "--json", *args).stdout)


def keys(preview: dict[str, Any]) -> list[str]:
    return [row["key"] for row in preview["rows"]]


@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (1, 3)])
def test_the_batch_is_the_one_that_the_trainer_gets(
    place: Place, rank: int, world_size: int
) -> None:
    place.config(stream=STREAM)
    with Loader(
        str(place.folder / "config.toml"),
        stream="train",
        output="numpy",
        rank=rank,
        world_size=world_size,
    ) as loader:
        loader.set_epoch(2)
        got = [(batch.step, batch.sample_keys) for batch in loader]
    where = ("--epoch", "2", "--rank", str(rank), "--world-size", str(world_size))
    assert [(step, keys(shown(place, *where, "--step", str(step)))) for step, _ in got] == got


def test_a_position_is_the_step_that_begins_there(place: Place) -> None:
    place.config(stream=STREAM)
    assert keys(shown(place, "--position", "16")) == keys(shown(place, "--step", "2"))
    assert keys(shown(place, "--position", "3"))[:5] == keys(shown(place, "--step", "0"))[3:]


def test_another_seed_and_batch_size_are_those_that_the_trainer_asked_for(place: Place) -> None:
    place.config(stream=STREAM)
    with Loader(
        str(place.folder / "config.toml"), stream="train", output="numpy", seed=9, batch_size=5
    ) as loader:
        batch = next(iter(loader))
        assert keys(shown(place, "--seed", "9", "--batch-size", "5")) == batch.sample_keys


def test_bad_samples_are_marked_and_substitutes_shown_as_in_the_batch(place: Place) -> None:
    place.config(args="bad = [3]")
    (bad,) = [row for row in shown(place)["rows"] if "bad" in row]
    assert bad["index"] == 3
    assert "unlucky 3" in bad["bad"]
    place.config(args="bad = [3]", stream="on_error = 'replace'")
    with Loader(str(place.folder / "config.toml"), stream="train", output="numpy") as loader:
        batch = next(iter(loader))
    assert [row["index"] for row in shown(place)["rows"]] == batch.indices.tolist()
    assert 3 not in batch.indices


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--json", "--step", "5"], "an epoch has 5 steps, 0 to 4"),
        (["--json", "--position", "40"], "begins at 39; use a position from 0 to 39"),
        (["--json", "--rank", "2", "--world-size", "2"], "--rank 2 is not below --world-size 2"),
        (["--json", "--stream", "val"], "no stream 'val'; there are: train"),
        ([], "-o OUT.png, or --json"),
    ],
)
def test_a_place_that_is_not_there_is_told(place: Place, args: list[str], said: str) -> None:
    assert said in place.cli("preview", place.config(), *args, code=2).stderr


def test_the_sheet_shows_each_sample_of_the_batch(place: Place) -> None:
    place.pack(place.images(), "photos.lmdb")
    (place.folder / "c.toml").write_text(
        "[streams.train]\nlmdb = 'photos.lmdb'\nbatch_size = 6\n[[streams.train.transforms]]\nop "
        "= 'resize'\nsize = [16, 16]\n"
    )
    place.cli("preview", "c.toml", "-o", "batch.png")
    with Image.open(place.folder / "batch.png") as image:
        pixels = np.asarray(image)
    first = Image.open(place.folder / "photos" / "a" / "000.png")
    assert pixels.shape[2] == 3
    # the first cell: its picture, enlarged, has about the colours of the first file
    cell = pixels[31 : 31 + 160, 8 : 8 + 160].reshape(-1, 3)
    assert abs(cell.mean(0) - np.asarray(first).reshape(-1, 3).mean(0)).max() < 8


def test_a_sheet_that_cannot_be_written_says_so(place: Place) -> None:
    assert (
        "no/where.png: cannot be written"
        in place.cli("preview", place.config(), "-o", "no/where.png", code=3).stderr
    )


def planar(array: np.ndarray) -> Sample:
    sample = Sample({"image": array})
    sample.planar.add("image")
    return sample


@pytest.mark.parametrize(
    "sample",
    [
        Sample({"image": np.zeros((4, 6, 3), np.uint8)}, images=("image",)),
        Sample({"image": np.zeros((4, 6, 1), np.uint8)}, images=("image",)),
        Sample(
            {"image": np.linspace(0, 1, 72, dtype=np.float32).reshape(4, 6, 3)}, images=("image",)
        ),
        Sample(
            {"image": np.linspace(-2, 3, 72, dtype=np.float32).reshape(4, 6, 3)}, images=("image",)
        ),
        Sample({"image": np.full((4, 6, 3), np.nan, np.float32)}, images=("image",)),
        planar(np.zeros((3, 4, 6), np.float32)),
    ],
)
@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_whatever_a_picture_is_made_of_it_can_be_shown(sample: Sample) -> None:
    picture = picture_of(sample, DecodeModes())
    assert picture is not None
    assert (picture.dtype, picture.shape[:2]) == (np.uint8, (4, 6))
    draw("a title", [Cell(picture, ("label", "key \N{SNOWMAN}" * 20)), Cell(None, ("bad",), True)])


def test_a_sample_without_a_picture_is_shown_as_text() -> None:
    assert picture_of(Sample({"y": np.zeros(3)}), DecodeModes()) is None


def test_the_file_is_a_png_whatever_it_is_called(place: Place) -> None:
    place.cli("preview", place.config(), "-o", "batch")
    assert (Path(place.folder) / "batch").read_bytes().startswith(b"\x89PNG")


def test_a_mask_is_shown_beside_its_picture_with_a_colour_for_each_label() -> None:
    labels = np.array([[0, 1], [255, 300]], np.uint16)
    sample = Sample(
        {"image": np.full((2, 2, 3), 9, np.uint8), "mask": labels[:, :, np.newaxis]},
        images=("image", "mask"),
    )
    shown = picture_of(sample, DecodeModes(fields={"mask": "index"}))
    assert shown is not None
    assert shown.shape == (2, 4, 3)
    assert (shown[:, :2] == 9).all()
    assert len({tuple(colour) for colour in shown[:, 2:].reshape(-1, 3).tolist()}) == 4
    assert shown[0, 2].tolist() == [0, 0, 0]
    paired = Sample({"image": sample["image"], "mask": labels.astype(np.int64)}, images=("image",))
    np.testing.assert_array_equal(
        picture_of(paired, DecodeModes(paired=frozenset({"image", "mask"}))), shown
    )
    alone = picture_of(
        Sample({"mask": labels[:, :, np.newaxis]}, images=("mask",)), DecodeModes("index")
    )
    np.testing.assert_array_equal(alone, shown[:, 2:])


PICTURES = """[streams.train]
lmdb = 'photos.lmdb'
batch_size = 6
[[streams.train.transforms]]
op = 'random_crop'
size = 8
[[streams.train.transforms]]
op = 'hflip'
"""


def test_the_page_shows_each_sample_and_what_was_drawn_for_it(place: Place) -> None:
    place.cli("pack", "imagefolder", place.images(), "photos.lmdb")
    (place.folder / "c.toml").write_text(PICTURES)
    said = place.cli("preview", "c.toml", "--html", "batch.html", "--json")
    rows = json.loads(said.stdout)["rows"]
    text = (place.folder / "batch.html").read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert text.count("<article") == text.count('<img class="base') == 6
    for row in rows:
        assert [words.partition(":")[0] for words in row["drawn"]] == ["random_crop", "hflip"]
        assert all(f"<li>{words}</li>" in text for words in row["drawn"])


def test_bad_samples_are_on_the_page_with_their_reason(place: Place) -> None:
    place.config(args="bad = [3]")
    place.cli("preview", "config.toml", "--html", "-o", "page.html")
    text = (place.folder / "page.html").read_text()
    assert text.count('<article class="faulty">') == 1
    assert "unlucky 3" in text


def test_a_page_without_a_name_is_refused(place: Place) -> None:
    said = place.cli("preview", place.config(), "--html", code=2).stderr
    assert "--html: name the page: --html OUT.html" in said
    said = place.cli("preview", place.config(), "--html", "a.png", code=2).stderr
    assert "--html a.png: a page ends in .html; a picture is -o a.png" in said


def test_a_config_that_is_not_there_is_told_before_what_else_lacks() -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: No such file"):
        run(parser("").parse_args(["preview", "none.toml"]))
