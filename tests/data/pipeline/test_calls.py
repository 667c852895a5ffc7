"""`call`: functions, objects and classes of a user's, what they get, and the epoch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from loaderd.cli.local_stream import NullStatusLine
from loaderd.config.decode_modes import DecodeModes
from loaderd.config.stream import StreamConfig, TransformConfig
from loaderd.core.jobs import Job, JobKind
from loaderd.data.errors import SampleFault, SourceError
from loaderd.data.pipeline.call_styles import KeywordCall, OnePicture
from loaderd.data.pipeline.collate import Collate
from loaderd.data.pipeline.pipeline import SamplePipeline
from loaderd.data.pipeline.request import SampleRequest
from loaderd.data.sample import BadValue, Sample
from loaderd.data.sources.source import Source
from loaderd.worker.sample_runner import SampleRunner
from loaderd.worker.stage_timer import Stopwatch
from loaderd.worker.streams import OpenStreams, WorkerStream
from loaderd_testing.sample_builders import Fixed, picture, silent


class Pictures(Fixed):
    VALUES = tuple({"image": picture(seed=n), "label": n} for n in range(8))


def one_argument(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "label": sample["label"] + 10}


def with_epoch(sample: dict[str, Any], rng: Any, epoch: int) -> dict[str, Any]:
    return {"label": epoch, "draw": rng.random()}


def epoch_of_its_own(sample: dict[str, Any], rng: Any, *, epoch: int = 0) -> dict[str, Any]:
    return {"label": epoch}


def rng_by_name(sample: dict[str, Any], *, rng: Any) -> dict[str, Any]:
    return {"draw": rng.random()}


class Adds:
    """Built once, with args of the config."""

    built = 0

    def __init__(self, amount: int = 1) -> None:
        type(self).built += 1
        self.amount = amount

    def __call__(self, sample: dict[str, Any], epoch: int = -1) -> dict[str, Any]:
        return {"label": sample["label"] + self.amount, "epoch": epoch}

    def by_method(self, sample: dict[str, Any], epoch: int) -> dict[str, Any]:
        return {"label": epoch}


adds = Adds(5)


def make_adds(amount: int) -> Adds:
    return Adds(amount)


class Fails:
    def __init__(self) -> None:
        raise OSError("no weights")


class Mirror:
    """As people write for torchvision's first transforms."""

    def __call__(self, img: Image.Image) -> Image.Image:
        return img.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def brighter(image: np.ndarray, by: int) -> np.ndarray:
    return np.clip(image.astype(int) + by, 0, 255).astype(np.uint8)


def as_tensor(image: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(image).permute(2, 0, 1).float() / 255


def nothing(sample: dict[str, Any]) -> None: ...


def plan(name: str, args: Mapping[str, Any] | None = None, **options: Any) -> StreamConfig:
    step = TransformConfig(None, f"{__name__}:{name}", dict(args or {}), options)
    return StreamConfig("t", dataset=f"{__name__}:Pictures", transforms=(step,))


def made(name: str, args: Mapping[str, Any] | None = None, **options: Any) -> Sample:
    """Sample 3 of epoch 2 through this call."""
    with Source(plan(name, args, **options)) as source:
        return SamplePipeline(source.plan, source).make(SampleRequest(0, 2, 3), silent)


@pytest.mark.parametrize(
    ("name", "args", "label"),
    [
        ("one_argument", {}, 13),
        ("with_epoch", {}, 2),
        ("epoch_of_its_own", {"epoch": 7}, 7),
        ("Adds", {"amount": 20}, 23),
        ("Adds", {}, 4),
        ("adds", {}, 8),
        ("adds.by_method", {}, 2),
        ("make_adds", {"amount": 30}, 33),
    ],
)
def test_functions_objects_and_classes_are_called_as_they_are_written(
    name: str, args: dict[str, Any], label: int
) -> None:
    assert made(name, args)["label"] == label


def test_an_object_of_a_class_is_built_once_and_told_the_epoch_of_each_sample() -> None:
    Adds.built = 0
    with Source(plan("Adds", {"amount": 1})) as source:
        pipeline = SamplePipeline(source.plan, source)
        epochs = [
            int(pipeline.make(SampleRequest(0, epoch, 1), silent)["epoch"]) for epoch in (4, 2, 4)
        ]
        counted = pipeline.make(SampleRequest(0, 4, 1, trainer_epoch=9), silent)["epoch"]
    assert (epochs, int(counted), Adds.built) == ([4, 2, 4], 9, 1)


def test_the_rng_is_the_samples_own_however_it_is_taken() -> None:
    assert made("rng_by_name")["draw"] == made("with_epoch")["draw"]


def test_a_callable_whose_one_argument_is_a_picture_gets_a_pillow_image() -> None:
    sample = made("Mirror")
    np.testing.assert_array_equal(sample["image"], picture(seed=3)[:, ::-1])
    assert sample.images == {"image"}
    assert sample["label"] == 3


def test_takes_says_what_a_callable_gets() -> None:
    sample = made("brighter", {"by": 300}, takes="array")
    assert (sample["image"] == 255).all()
    sample = made("as_tensor", takes="array", field="image")
    np.testing.assert_allclose(sample["image"], picture(seed=3) / np.float32(255))
    assert (sample["image"].dtype, sample.images) == (np.float32, {"image"})


@pytest.mark.parametrize(
    ("name", "args", "options", "said"),
    [
        ("nothing", {}, {}, "returned None: a transform returns a dict of fields"),
        ("make_adds", {}, {}, "returned a Adds.*give all of its parameters in args"),
        ("brighter", {"by": 1}, {"takes": "array", "field": "label"}, "'label'.*no picture"),
        ("as_tensor", {}, {"takes": "array", "field": "x"}, "'x'.*no picture"),
    ],
)
def test_a_call_that_gives_no_sample_is_told(
    name: str, args: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(SampleFault, match=said):
        made(name, args, **options)


def test_a_class_that_cannot_be_built_names_itself_and_the_error() -> None:
    with pytest.raises(SourceError, match=r"Fails\(\) failed: OSError: no weights"):
        made("Fails")


def test_a_picture_of_floats_is_no_pillow_image() -> None:
    sample = Sample({"x": np.zeros((2, 2, 3), np.float32)}, images=("x",))
    with pytest.raises(BadValue, match="before to_float"):
        OnePicture(None, as_pillow=True)(sample, lambda image: image)


def test_keywords_are_called_as_albumentations_has_them_and_come_back_as_the_fields_were() -> None:
    def mirrored(**fields: Any) -> dict[str, Any]:
        assert set(fields) == {"image", "mask", "bboxes", "name"}
        return {
            name: value[:, ::-1] if name in ("image", "mask") else value
            for name, value in fields.items()
        }

    image, mask = picture(4, 6), np.arange(24).reshape(4, 6)
    sample = Sample({"0": image, "1": mask, "boxes": np.zeros((1, 4)), "name": "a"}, images=("0",))
    back = KeywordCall(DecodeModes(), mirrored, None, "boxes")(sample, mirrored)
    assert list(back) == ["0", "1", "boxes", "name"]
    np.testing.assert_array_equal(back["0"], image[:, ::-1])
    np.testing.assert_array_equal(back["1"], mask[:, ::-1])


@pytest.mark.parametrize(
    ("fields", "boxes", "said"),
    [
        ({"boxes": np.zeros((1, 4))}, None, 'add boxes = "boxes"'),
        ({"boxes": np.zeros(4)}, "boxes", r"of shape \(4,\); it is to be n x 4"),
        ({"a": np.zeros((4, 6), int), "b": np.zeros((4, 6), int)}, None, "additional_targets"),
    ],
)
def test_what_would_not_follow_the_picture_is_a_bad_sample(
    fields: dict[str, Any], boxes: str | None, said: str
) -> None:
    sample = Sample({"image": picture(4, 6), **fields}, images=("image",))
    with pytest.raises(BadValue, match=said):
        KeywordCall(DecodeModes(), None, None, boxes)(sample, lambda **given: given)


class Scheduled(Fixed):
    """Says which epoch it was told, and what its generators gave when it was told."""

    VALUES = tuple(range(6))

    def __init__(self, fails: int = -1) -> None:
        self.epoch, self.fails, self.told = -1, fails, 0

    def set_epoch(self, epoch: int) -> None:
        self.told += 1
        if epoch == self.fails:
            raise ValueError("no such epoch")
        self.epoch, self.drawn = epoch, random.random()

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"epoch": self.epoch, "drawn": self.drawn, "own": random.random()}


class ManyScheduled(Scheduled):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


Rows = Callable[[int, int, int], list[Any]]


def rows_of(stream: WorkerStream, epoch: int, first: int, last: int, policy: str = "skip") -> Any:
    job = Job(1, JobKind.TRIAL, "t", 0, 0, 7, epoch, 0, 6, first, last)
    runner = SampleRunner(stream, job, NullStatusLine(), Stopwatch(), policy=policy)
    return [sample for _, sample in runner.each()], runner.bad


@pytest.fixture(params=["Scheduled", "ManyScheduled"])
def stream(request: pytest.FixtureRequest) -> Iterator[WorkerStream]:
    streams = OpenStreams([StreamConfig("t", dataset=f"{__name__}:{request.param}")], 0, 1)
    yield streams.get("t")
    streams.get("t").source.close()


def values(samples: list[Any], name: str) -> list[float]:
    return [float(sample[name]) for sample in samples]


def test_a_dataset_is_told_each_epoch_before_its_rows_also_where_two_are_under_way(
    stream: WorkerStream,
) -> None:
    order = [(3, 0, 2), (4, 0, 1), (3, 2, 4), (4, 1, 3), (4, 3, 6)]
    seen = [values(rows_of(stream, *part)[0], "epoch") for part in order]
    assert seen == [[epoch] * (last - first) for epoch, first, last in order]
    dataset: Any = stream.source.dataset
    assert dataset.told == 4


def test_what_set_epoch_draws_depends_on_the_epoch_and_not_on_the_row_that_comes_first(
    stream: WorkerStream,
) -> None:
    whole, _ = rows_of(stream, 3, 0, 6)
    rows_of(stream, 4, 0, 1)
    later, _ = rows_of(stream, 3, 4, 6)
    assert set(values(whole, "drawn")) == set(values(later, "drawn"))
    other, _ = rows_of(stream, 4, 0, 6)
    assert set(values(other, "drawn")).isdisjoint(values(whole, "drawn"))


def test_a_samples_own_draws_are_the_same_whether_or_not_set_epoch_came_before() -> None:
    streams = OpenStreams([StreamConfig("t", dataset=f"{__name__}:Scheduled")], 0, 1)
    stream = streams.get("t")
    first, _ = rows_of(stream, 3, 4, 6)
    again, _ = rows_of(stream, 3, 4, 6)
    assert values(first, "own") == values(again, "own")
    streams.get("t").source.close()


def test_a_set_epoch_that_fails_makes_its_rows_bad_and_no_others() -> None:
    plan = StreamConfig("t", dataset=f"{__name__}:Scheduled", dataset_args={"fails": 1})
    streams = OpenStreams([plan], 0, 1)
    stream = streams.get("t")
    assert rows_of(stream, 0, 0, 2)[1] == []
    samples, bad = rows_of(stream, 1, 0, 2)
    assert samples == [None, None]
    assert "set_epoch(1) failed: no such epoch" in bad[0].sample.line()
    assert values(rows_of(stream, 2, 0, 1)[0], "epoch") == [2]
    streams.get("t").source.close()


def collates(samples: list[Any], epoch: int) -> int:
    return epoch


def collates_all(samples: list[Any], rng: Any, epoch: int) -> tuple[int, float]:
    return epoch, rng.random()


def test_a_collate_function_gets_the_epoch_where_it_asks_for_it() -> None:
    rng = np.random.default_rng(0)
    one = Collate(StreamConfig("t", lmdb="/d", collate=f"{__name__}:collates"))
    assert one([], rng, 5) == 5
    both = Collate(StreamConfig("t", lmdb="/d", collate=f"{__name__}:collates_all"))
    assert both([], np.random.default_rng(0), 6) == (6, rng.random())


def test_the_words_of_a_call_are_read_from_the_config(tmp_path: Path) -> None:
    from loaderd.config.load import parse

    text = '[streams.t]\nlmdb = "d"\n[[streams.t.transforms]]\ncall = "a:b"\n'
    (bare,) = parse(text, str(tmp_path / "c.toml"), {}, 0).streams[0].transforms
    assert bare.facts() == {"op": None, "call": "a:b", "args": {}}
    more = f'{text}takes = "pil"\nfield = "x"\nboxes = "y"\n'
    (step,) = parse(more, str(tmp_path / "c.toml"), {}, 0).streams[0].transforms
    assert step.options == {"takes": "pil", "field": "x", "boxes": "y"}
