"""torchvision's transforms as a `call`: the data page's example, masks and boxes, seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loaderd.config.load import parse
from loaderd.config.stream import StreamConfig, TransformConfig
from loaderd.data.errors import SampleFault, SourceError
from loaderd.data.pipeline import call_styles
from loaderd.data.pipeline.pipeline import SamplePipeline
from loaderd.data.pipeline.request import SampleRequest
from loaderd.data.sample import Sample
from loaderd.data.sources.source import Source
from loaderd.worker.seeding import seed_sample
from loaderd_testing.pages import block
from loaderd_testing.sample_builders import Fixed, picture, silent
from loaderd_testing.torchvision_import import declare_operators

declare_operators()
from torchvision import transforms as v1  # noqa: E402 - its operators are declared before
from torchvision import tv_tensors  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

DATA = "loaderd/data/README.md"


class Detection(Fixed):
    """A picture, its mask, boxes of things in it, and a name."""

    VALUES = tuple(
        {
            "image": picture(30, 40, seed=n),
            "mask": np.arange(1200).reshape(30, 40),
            "boxes": np.array([[1, 2, 11, 22], [20, 5, 40, 30]], np.float32),
            "labels": np.array([n, n + 1]),
            "name": f"sample {n}",
        }
        for n in range(4)
    )


class Classes(Fixed):
    VALUES = tuple({"image": picture(30, 40, seed=n), "label": n} for n in range(4))


flipped = v2.RandomHorizontalFlip(p=1)
as_sequence = torch.nn.Sequential(flipped)
older = v1.Compose([v1.RandomHorizontalFlip(p=1), v1.ToTensor()])
to_float = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.5])])


class Checks:
    """A transform that sees what v2 gives it."""

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        kinds = {name: type(value).__name__ for name, value in sample.items()}
        assert kinds == {
            "image": "Image",
            "mask": "Mask",
            "boxes": "BoundingBoxes",
            "labels": "Tensor",
            "name": "str",
        }
        return sample


def plan(dataset: str, call: str, args: Any = None, **options: Any) -> StreamConfig:
    step = TransformConfig(None, call, args or {}, options)
    return StreamConfig("t", dataset=f"{__name__}:{dataset}", transforms=(step,))


def made(stream: StreamConfig, index: int = 1, epoch: int = 0) -> Sample:
    """As a worker makes it: with the global generators seeded."""
    with Source(stream) as source:
        pipeline = SamplePipeline(stream, source)
        seed_sample(stream.seed, epoch, index)
        return pipeline.make(SampleRequest(stream.seed, epoch, index), silent)


def test_the_example_of_the_data_page_gives_pictures_of_the_size_in_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tv.py").write_text(block(DATA, "python", "class Train(v2.Compose)"))
    monkeypatch.syspath_prepend(str(tmp_path))
    text = f'[streams.train]\ndataset = "{__name__}:Classes"\n' + block(DATA, "toml", "tv:Train")
    (stream,) = parse(text, str(tmp_path / "c.toml"), {}, 0).streams
    first, again, later = made(stream), made(stream), made(stream, epoch=1)
    assert first["image"].shape == (24, 24, 3)
    assert (first["image"].dtype, first.images, int(first["label"])) == (np.uint8, {"image"}, 1)
    np.testing.assert_array_equal(first["image"], again["image"])
    assert (first["image"] != later["image"]).any()


def test_masks_and_boxes_follow_the_picture_and_the_rest_stays() -> None:
    before = Detection.VALUES[1]
    sample = made(plan("Detection", f"{__name__}:flipped", boxes="boxes"))
    np.testing.assert_array_equal(sample["image"], before["image"][:, ::-1])
    np.testing.assert_array_equal(sample["mask"], before["mask"][:, ::-1])
    assert sample["boxes"].tolist() == [[29, 2, 39, 22], [0, 5, 20, 30]]
    assert (sample["labels"].tolist(), sample["name"]) == ([1, 2], "sample 1")


def test_a_function_of_ones_own_gets_tv_tensors_where_the_config_says_so() -> None:
    sample = made(plan("Detection", f"{__name__}:Checks", takes="tv_tensors", boxes="boxes"))
    np.testing.assert_array_equal(sample["image"], Detection.VALUES[1]["image"])


def test_boxes_that_are_not_named_would_stay_where_they_are() -> None:
    with pytest.raises(SampleFault, match='add boxes = "boxes"'):
        made(plan("Detection", f"{__name__}:flipped"))


@pytest.mark.parametrize("name", ["as_sequence", "older"])
def test_a_sequence_of_modules_and_the_older_transforms_work_too(name: str) -> None:
    sample = made(plan("Classes", f"{__name__}:{name}"))
    expected = Classes.VALUES[1]["image"][:, ::-1]
    got = sample["image"] * 255 if name == "older" else sample["image"]
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert sample.images == {"image"}


def test_a_class_of_torchvisions_own_is_built_with_args() -> None:
    sample = made(plan("Classes", "torchvision.transforms.v2:CenterCrop", {"size": [10, 12]}))
    np.testing.assert_array_equal(sample["image"], Classes.VALUES[1]["image"][10:20, 14:26])


def test_floats_are_delivered_as_floats() -> None:
    sample = made(plan("Classes", f"{__name__}:to_float"))
    expected = Classes.VALUES[1]["image"] / np.float32(127.5) - 1
    np.testing.assert_allclose(sample["image"], expected, atol=1e-6)


def test_a_picture_with_its_channels_first_stays_one() -> None:
    sample = Sample({"x": np.arange(24, dtype=np.float32).reshape(3, 2, 4)})
    sample.planar.add("x")
    style = call_styles.TvTensors(StreamConfig("t", lmdb="/d").modes(), None)
    back = style(sample, flipped)
    assert isinstance(back["x"], tv_tensors.Image)
    np.testing.assert_array_equal(back["x"].numpy(), sample["x"][:, :, ::-1])


def test_without_torchvision_the_config_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(name: str) -> Any:
        raise ImportError(f"no {name}")

    monkeypatch.setattr(call_styles.importlib, "import_module", absent)
    with pytest.raises(SourceError, match="needs torchvision"):
        call_styles.TvTensors(StreamConfig("t", lmdb="/d").modes(), None)
