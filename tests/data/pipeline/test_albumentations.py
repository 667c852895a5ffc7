"""albumentations' pipelines as a `call`: the data page's example, and draws that are seeded."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # else its import asks the network
import albumentations

from loaderd.config.load import parse
from loaderd.config.stream import StreamConfig, TransformConfig
from loaderd.data.errors import SourceError
from loaderd.data.pipeline.pipeline import SamplePipeline
from loaderd.data.pipeline.request import SampleRequest
from loaderd.data.sample import Sample
from loaderd.data.sources.source import Source
from loaderd_testing.pages import block
from loaderd_testing.sample_builders import Fixed, picture, silent

DATA = "loaderd/data/README.md"


class Detection(Fixed):
    VALUES = tuple(
        {
            "image": picture(30, 40, seed=n),
            "boxes": np.array([[1, 2, 11, 22], [20, 5, 40, 30]], np.float32),
            "labels": np.array([n, n + 1]),
            "name": f"sample {n}",
        }
        for n in range(8)
    )


class Pairs(Fixed):
    VALUES = tuple(
        (picture(30, 40, seed=n), np.arange(1200, dtype=np.uint8).reshape(30, 40)) for n in range(4)
    )


noise = albumentations.GaussNoise(p=1)
flipped = albumentations.Compose([albumentations.HorizontalFlip(p=1)])


def made(stream: StreamConfig, index: int, epoch: int = 0) -> Sample:
    """In a pipeline of its own, as in another worker; nobody seeds anything else."""
    with Source(stream) as source:
        return SamplePipeline(stream, source).make(SampleRequest(3, epoch, index), silent)


def test_the_example_of_the_data_page_draws_by_sample_and_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "alb.py").write_text(block(DATA, "python", "import albumentations"))
    monkeypatch.syspath_prepend(str(tmp_path))
    text = f'[streams.train]\ndataset = "{__name__}:Detection"\n' + block(DATA, "toml", "alb:train")
    (stream,) = parse(text, str(tmp_path / "c.toml"), {}, 0).streams
    first = [made(stream, index) for index in range(8)]
    again = [made(stream, index) for index in reversed(range(8))][::-1]
    later = [made(stream, index, epoch=1) for index in range(8)]
    for one, other, third in zip(first, again, later, strict=True):
        assert one["image"].shape == (24, 24, 3)
        assert set(one) == {"image", "boxes", "labels", "name"}
        assert len(one["boxes"]) == len(one["labels"])
        np.testing.assert_array_equal(one["image"], other["image"])
        np.testing.assert_array_equal(one["boxes"], other["boxes"])
        assert (one["image"] != third["image"]).any()


def test_a_transform_alone_is_seeded_too() -> None:
    step = TransformConfig(None, f"{__name__}:noise", {})
    stream = StreamConfig("t", dataset=f"{__name__}:Pairs", transforms=(step,))
    np.testing.assert_array_equal(made(stream, 1)["0"], made(stream, 1)["0"])
    assert (made(stream, 1)["0"] != made(stream, 1, epoch=1)["0"]).any()


def test_the_picture_and_the_mask_of_a_tuple_find_their_names() -> None:
    step = TransformConfig(None, f"{__name__}:flipped", {})
    stream = StreamConfig("t", dataset=f"{__name__}:Pairs", transforms=(step,))
    sample = made(stream, 2)
    for name, before in zip("01", Pairs.VALUES[2], strict=True):
        np.testing.assert_array_equal(sample[name], before[:, ::-1])


def test_a_pipeline_that_cannot_be_seeded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(albumentations.BasicTransform, "set_random_seed")
    step = TransformConfig(None, f"{__name__}:noise", {})
    with pytest.raises(SourceError, match="has no set_random_seed"):
        made(StreamConfig("t", dataset=f"{__name__}:Pairs", transforms=(step,)), 0)
