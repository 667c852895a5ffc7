from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from loaderd.config.stream import StreamConfig, TransformConfig
from loaderd.core.jobs import Stage
from loaderd.data.errors import SampleFault, SourceError
from loaderd.data.jpeg import fused_decode
from loaderd.data.pipeline.pipeline import SamplePipeline
from loaderd.data.pipeline.request import SampleRequest
from loaderd.data.sample import Sample
from loaderd.data.sources.source import Source
from loaderd_testing.sample_builders import (
    CAME,
    HELD,
    call,
    coded,
    dataset_plan,
    image_samples,
    op,
    picture,
    silent,
    write_own,
)

TRAIN = (
    op("random_resized_crop", size=24),
    op("hflip"),
    call("noisy"),
    op("normalize", mean=0.5, std=0.5),
    op("to_chw"),
)


OPENED: list[Source] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


class Stream:
    """A database of a few samples and the recipe of a plan on it."""

    def __init__(self, folder: Path, samples: list[Sample] | None = None, **plan: Any) -> None:
        path = folder / "db"
        if not path.exists():
            write_own(path, samples if samples is not None else image_samples())
        self.source = Source(StreamConfig("t", lmdb=str(path), **plan))
        OPENED.append(self.source)
        self.sample_pipeline = SamplePipeline(self.source.plan, self.source)

    def make(self, index: int = 0, seed: int = 0, epoch: int = 0) -> Sample:
        return self.sample_pipeline.make(SampleRequest(seed, epoch, index), silent)

    def fault(self, index: int = 0) -> SampleFault:
        with pytest.raises(SampleFault) as caught:
            self.make(index)
        return caught.value


def same(a: Sample, b: Sample) -> bool:
    return list(a) == list(b) and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_the_decoder_is_told_where_stored_images_may_be_resized_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    resized, cropped, bytes_alone = (
        (op("resize", size=20),),
        (op("random_crop", size=20),),
        {"decode": False},
    )
    for plan, used in (
        ({"transforms": resized}, True),
        ({"transforms": TRAIN}, True),
        ({"transforms": cropped}, False),
        (bytes_alone, False),
    ):
        for there in (True, False):
            with monkeypatch.context() as patch:
                if not there:
                    patch.setattr(fused_decode, "library", lambda: None)
                stream = Stream(tmp_path, image_samples(kind=kind), **plan)
                stream.make()
                assert stream.sample_pipeline.jpeg_extension == (
                    fused_decode.version() if used else "not used"
                )
                assert there or not used or stream.sample_pipeline.jpeg_extension == "missing"


def test_the_decoder_has_no_share_in_arrays_that_are_resized(tmp_path: Path) -> None:
    arrays = [Sample({"image": picture()}, images=("image",))]
    stream = Stream(tmp_path, arrays, transforms=(op("resize", size=20),))
    assert stream.make()["image"].shape == (20, 25, 3)
    assert stream.sample_pipeline.jpeg_extension == "not used"


def test_a_stored_image_is_decoded_and_its_label_comes_along(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    sample = stream.make(2)
    np.testing.assert_array_equal(sample["image"], picture(seed=2))
    assert sample["label"].dtype == np.int64
    assert [(s.name, s.dtype, s.shape, s.image) for s in stream.sample_pipeline.specs(sample)] == [
        ("image", "|u1", (40, 50, 3), True),
        ("label", "<i8", (), False),
    ]
    assert stream.sample_pipeline.form == "dict"
    assert not stream.sample_pipeline.user_code


def test_each_stage_is_noted_before_it_begins(tmp_path: Path) -> None:
    stages: list[Stage] = []
    Stream(tmp_path, transforms=TRAIN).sample_pipeline.make(SampleRequest(0, 0, 0), stages.append)
    assert stages == [Stage.READ, Stage.DECODE, Stage.TRANSFORM]
    stages.clear()
    Stream(tmp_path).sample_pipeline.make(SampleRequest(0, 0, 0), stages.append)
    assert stages == [Stage.READ, Stage.DECODE]
    stages.clear()
    Stream(tmp_path, decode=False).sample_pipeline.make(SampleRequest(0, 0, 0), stages.append)
    assert stages == [Stage.READ]


def test_a_sample_depends_on_seed_epoch_and_index_and_on_nothing_else(tmp_path: Path) -> None:
    stream, other = Stream(tmp_path, transforms=TRAIN), Stream(tmp_path, transforms=TRAIN)
    first = stream.make(1, 5, 3)
    for index in range(4):
        other.make(index, 9, 9)
    assert same(first, other.make(1, 5, 3))
    assert not same(first, other.make(1, 5, 4))
    assert not same(first, other.make(1, 6, 3))
    assert first["image"].shape == (3, 24, 24)
    assert first["image"].dtype == np.float32
    assert not any(spec.image for spec in stream.sample_pipeline.specs(first))


def test_the_rng_of_user_code_is_numpys_of_the_draws_key(tmp_path: Path) -> None:
    from loaderd.core.rng import CounterRng

    stream = Stream(tmp_path, transforms=(call("noisy"), call("noisy", strength=2)))
    rng = np.random.Generator(np.random.PCG64(CounterRng(3, 4, 1).key()))
    rng.random(3)
    assert stream.make(1, 3, 4)["noise"].tolist() == (rng.random(3) * 2).tolist()


def test_without_decode_the_stored_bytes_are_delivered(tmp_path: Path) -> None:
    stream = Stream(tmp_path, decode=False)
    sample = stream.make(1)
    assert sample["image"] == coded(picture(seed=1))
    assert type(sample["image"]) is bytes
    assert stream.sample_pipeline.specs(sample)[0].kind == "bytes"


def test_an_op_decodes_what_it_needs_even_without_decode(tmp_path: Path) -> None:
    assert Stream(tmp_path, decode=False, transforms=(op("resize", size=[8, 9]),)).make()[
        "image"
    ].shape == (8, 9, 3)


def test_a_callable_gets_pixels_with_decode_and_bytes_without(tmp_path: Path) -> None:
    assert Stream(tmp_path, transforms=(call("noisy"),)).make()["image"].shape == (40, 50, 3)
    assert Stream(tmp_path, decode=False, transforms=(call("noisy"),)).make()["image"] == coded(
        picture()
    )


@pytest.mark.parametrize(
    ("mode", "step", "channels"),
    [("gray", None, 1), ("rgb", "gray", 1), ("gray", "rgb", 3), ("gray", "", 1)],
)
def test_the_mode_is_the_streams_unless_decode_has_its_own(
    tmp_path: Path, mode: str, step: str | None, channels: int
) -> None:
    steps = (
        ()
        if step is None
        else (op("decode", **({"mode": step} if step else {})), op("resize", size=[8, 8]))
    )
    sample = Stream(tmp_path, mode=mode, transforms=steps).make()
    assert sample["image"].shape[2] == channels
    assert sample["image"].flags.writeable


def test_decode_of_an_image_that_is_decoded_already_does_nothing(tmp_path: Path) -> None:
    np.testing.assert_array_equal(
        Stream(tmp_path, transforms=(op("decode"), op("decode"))).make()["image"], picture()
    )


def test_user_code_may_scribble_over_its_sample_and_harms_nobody(tmp_path: Path) -> None:
    raw = [Sample({"x": np.arange(400, dtype=np.float32), "image": picture()}, images=("image",))]
    stream = Stream(tmp_path, raw, transforms=(call("scribble"),))
    assert not stream.make()["x"].any()
    assert Stream(tmp_path).make()["x"].sum() == 399 * 200
    np.testing.assert_array_equal(Stream(tmp_path).make()["image"], picture())


def test_what_a_callable_returns_is_taken_like_a_datasets_sample(tmp_path: Path) -> None:
    stream = Stream(tmp_path, transforms=(call("as_pillow"), op("resize", size=[10, 12])))
    sample = stream.make()
    assert sample["image"].shape == (10, 12, 3)
    assert {spec.name: spec.dtype for spec in stream.sample_pipeline.specs(sample)} == {
        "image": "|u1", "label": "<i8", "ratio": "<f8", "ok": "|b1", "word": "",
    }  # fmt: skip


def test_a_picture_that_comes_back_planar_is_a_picture_no_longer(tmp_path: Path) -> None:
    stream = Stream(tmp_path, transforms=(call("as_planar"),))
    sample = stream.make()
    assert sample["image"].shape == (3, 40, 50)
    assert not stream.sample_pipeline.specs(sample)[0].image


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("nothing", "BadValue", "loaderd_testing.sample_builders:nothing returned None"),
        ("failing", "KeyError", "'mask'"),
        ("leaving", "SystemExit", "3"),
    ],
)
def test_a_callable_that_fails_is_a_fault_of_the_transform(
    tmp_path: Path, name: str, error: str, message: str
) -> None:
    fault = Stream(tmp_path, transforms=(call(name),)).fault()
    assert (fault.stage, fault.error) == ("transform", error)
    assert message in fault.message
    assert ("sample_builders.py" in fault.traceback) == (name != "nothing")
    assert "pipeline.py" not in fault.traceback


def test_a_callable_gets_its_arguments_or_fails_naming_them(tmp_path: Path) -> None:
    assert (
        "unexpected keyword argument 'strong'"
        in Stream(tmp_path, transforms=(call("noisy", strong=1),)).fault().message
    )
    with pytest.raises(SourceError, match=r"loaderd_testing\.sample_builders has no 'missing'"):
        Stream(tmp_path, transforms=(call("missing"),))


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (TransformConfig("rotate", None), "transform 0: unknown op 'rotate'"),
        (TransformConfig("resize", None), "transform 0: op 'resize': size: missing"),
        (TransformConfig(None, None), "transform 0: set one of op and call"),
        (TransformConfig("decode", None, {"mode": "x"}), "mode: wrong"),
    ],
)
def test_a_transform_that_cannot_be_is_a_source_error(
    tmp_path: Path, step: TransformConfig, words: str
) -> None:
    with pytest.raises(SourceError, match=words):
        Stream(tmp_path, transforms=(step,))


def two_images() -> list[Sample]:
    return [
        Sample(
            {
                "left": coded(picture()),
                "right": coded(picture(seed=1)),
                "word": "x",
                "n": np.array(1),
            },
            encoded=("left", "right"),
        )
    ]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (op("resize", size=8), "2 images, 'left', 'right': choose one with field"),
        (op("resize", size=8, field="up"), "no field 'up'; it has 'left', 'right', 'word', 'n'"),
        (op("resize", size=8, field="word"), "'word': it is text"),
        (op("resize", size=8, field="n"), "int64 of shape ()"),
        (op("decode", field="n"), "not a stored image"),
    ],
)
def test_an_op_that_has_nothing_to_work_on_says_so(
    tmp_path: Path, step: TransformConfig, words: str
) -> None:
    fault = Stream(tmp_path, two_images(), transforms=(step,)).fault()
    assert fault.stage == "transform"
    assert words in fault.message
    assert fault.traceback == ""


def test_an_op_on_one_field_leaves_the_other(tmp_path: Path) -> None:
    sample = Stream(
        tmp_path, two_images(), transforms=(op("resize", size=[8, 8], field="right"),)
    ).make()
    assert (sample["left"].shape, sample["right"].shape) == ((40, 50, 3), (8, 8, 3))


def test_a_sample_without_an_image_says_which_fields_it_has(tmp_path: Path) -> None:
    fault = Stream(tmp_path, [Sample({"x": np.zeros(3)})], transforms=(op("hflip"),)).fault()
    assert "no image; set field to one of 'x'" in fault.message


def test_the_only_bytes_of_a_sample_are_its_image_for_an_op(tmp_path: Path) -> None:
    stored = [
        Sample({"data": coded(picture(), "BMP"), "n": np.array(1)}),
        Sample({"data": b"no image", "n": np.array(1)}),
    ]
    stream = Stream(tmp_path, stored, transforms=(op("resize", size=[8, 8]),))
    assert stream.make(0)["data"].shape == (8, 8, 3)
    fault = stream.fault(1)
    assert (fault.stage, fault.error) == ("decode", "ImageError")


def test_after_to_chw_floats_work_and_crops_do_not(tmp_path: Path) -> None:
    mean = [0.1, 0.2, 0.3]
    late = Stream(tmp_path, transforms=(op("to_chw"), op("normalize", mean=mean, std=1))).make()[
        "image"
    ]
    early = Stream(tmp_path, transforms=(op("normalize", mean=mean, std=1), op("to_chw"))).make()[
        "image"
    ]
    np.testing.assert_array_equal(late, early)
    assert late.flags.c_contiguous
    assert (
        "after to_chw: put to_chw last"
        in Stream(tmp_path, transforms=(op("to_chw"), op("hflip"))).fault().message
    )


def test_an_undecodable_image_is_a_fault_of_decode(tmp_path: Path) -> None:
    bad = [Sample({"image": coded(picture(), "JPEG")[:200]}, encoded=("image",))]
    for transforms in ((), (op("resize", size=8),), (call("noisy"),)):
        fault = Stream(tmp_path, bad, transforms=transforms).fault()
        assert (fault.stage, fault.error, fault.traceback) == ("decode", "ImageError", "")


def test_nonfinite_values_are_bad_only_if_the_stream_says_so(tmp_path: Path) -> None:
    assert np.isnan(Stream(tmp_path, transforms=(call("as_infinite"),)).make()["x"]).any()
    fault = Stream(tmp_path, transforms=(call("as_infinite"),), nonfinite="error").fault()
    assert (fault.stage, fault.error) == ("check", "NonFinite")
    assert "field 'x' has 2 values that are not finite, the first at (1,)" in fault.message


def test_complex_numbers_that_are_not_finite_are_bad_too(tmp_path: Path) -> None:
    assert np.isnan(Stream(tmp_path, transforms=(call("as_complex_infinite"),)).make()["x"]).any()
    fault = Stream(tmp_path, transforms=(call("as_complex_infinite"),), nonfinite="error").fault()
    assert "field 'x' has 2 values that are not finite, the first at (1,)" in fault.message


def test_whole_numbers_and_finite_floats_pass_the_nonfinite_check(tmp_path: Path) -> None:
    assert (
        Stream(tmp_path, transforms=(op("to_float"),), nonfinite="error").make()["image"].dtype
        == np.float32
    )


def test_a_later_sample_that_differs_names_field_both_sides_and_the_database(
    tmp_path: Path,
) -> None:
    samples = [
        Sample({"x": np.zeros(3, np.float32), "t": "a"}),
        Sample({"x": np.zeros(4, np.float32), "t": "a"}),
        Sample({"x": np.zeros(3), "t": "a"}),
        Sample({"x": np.zeros(3, np.float32)}),
        Sample({"x": np.zeros(3, np.float32), "t": "a", "y": np.zeros(1)}),
        Sample({"x": np.zeros(3, np.float32), "z": "a"}),
        Sample({"x": np.zeros(3, np.float32), "t": np.zeros(1)}),
        Sample({"t": "longer", "x": np.ones(3, np.float32)}),
    ]
    stream = Stream(tmp_path, samples)
    stream.sample_pipeline.fix(stream.sample_pipeline.specs(stream.make(0)))
    words = ["", "'x' is float32 of shape (4,), in the stream's first sample it is float32 of shape (3,)", "'x' is float64", "the sample has no field 't', which the stream's first one has",
             "the sample has a field 'y' more than the stream's first one", "the sample has no field 't', which the stream's first one has, and has a field 'z' more than the stream's first one", "'t' is float64 of shape (1,), in the stream's first sample it is text", ""]  # fmt: skip
    for index, expected in enumerate(words):
        if not expected:
            stream.make(index)
            continue
        with pytest.raises(SampleFault) as caught:
            stream.make(index)
        assert caught.value.stage == "check"
        assert expected in caught.value.message
        assert str(tmp_path / "db") in caught.value.message


def test_pictures_of_different_sizes_get_a_hint(tmp_path: Path) -> None:
    samples = [Sample({"image": coded(picture(8 + i, 8))}, encoded=("image",)) for i in range(2)]
    stream = Stream(tmp_path, samples)
    stream.sample_pipeline.fix(stream.sample_pipeline.specs(stream.make(0)))
    with pytest.raises(SampleFault, match="bring all to one size"):
        stream.make(1)


def collated(function: str, **plan: Any) -> tuple[SamplePipeline, Source]:
    source = Source(
        dataset_plan("Numbers", collate=f"loaderd_testing.sample_builders:{function}", **plan)
    )
    return SamplePipeline(source.plan, source), source


def test_a_collate_function_makes_the_batch() -> None:
    sample_pipeline, source = collated("padded")
    assert sample_pipeline.collated
    samples = [sample_pipeline.make(SampleRequest(0, 0, index), silent) for index in (3, 4)]
    batch = sample_pipeline.batcher.make(samples, 0, 0, 0)
    assert batch["x"].tolist() == [[3] * 4, [4] * 4]
    assert batch["lengths"].tolist() == [4, 4]
    assert batch["lengths"].dtype == np.int64
    assert batch["names"] == ["1", "0"]
    assert sample_pipeline.form == "dict"
    assert [(s.name, s.dtype, s.shape, s.kind) for s in sample_pipeline.batcher.specs(batch)] == [
        ("x", "<f4", (4,), "array"), ("lengths", "<i8", (), "array"), ("names", "", (), "text"), ("draw", "<f8", (), "array"),
    ]  # fmt: skip
    source.close()


def test_a_collate_function_of_one_argument_is_called_with_the_samples_alone() -> None:
    sample_pipeline, source = collated("as_dataloader_calls_it")
    samples = [sample_pipeline.make(SampleRequest(0, 0, index), silent) for index in (3, 4)]
    assert sample_pipeline.batcher.make(samples, 0, 0, 0)["x"].tolist() == [[3] * 4, [4] * 4]
    source.close()


def came(*held: Any, **plan: Any) -> list[Any]:
    """What a collate function gets of a dataset with these samples."""
    HELD[:] = held
    plan = {"collate": "loaderd_testing.sample_builders:as_it_came", **plan}
    with Source(dataset_plan("Holding", **plan)) as source:
        sample_pipeline = SamplePipeline(source.plan, source)
        requests = [SampleRequest(0, 0, index) for index in range(len(held))]
        sample_pipeline.batcher.make(
            [sample_pipeline.make(each, silent) for each in requests], 0, 0, 0
        )
    return CAME


def test_a_collate_function_gets_each_sample_as_the_dataset_returned_it() -> None:
    held = (
        {"ids": [1, 2], "boxes": [{"x": 1}, None], "deep": {"a": ()}},
        None,
        [1, [2]],
        TransformConfig("a dataclass", None),
        Image.new("P", (4, 3)),
        torch.ones(2, requires_grad=True),
        object(),
        "text",
        SampleFault("read", "an exception", "as a value"),
    )
    assert all(one is other for one, other in zip(came(*held), held, strict=True))


def test_after_transforms_a_collate_function_gets_the_sample_in_its_own_form() -> None:
    white = Image.new("RGB", (8, 6), "white")
    flip = op("hflip", p=0.0)
    ((image, label, ids),) = came((white, 3, [1, 2, 3]), transforms=(flip,))
    assert (image.shape, int(label), ids) == ((6, 8, 3), 3, [1, 2, 3])
    (single,) = came(white, transforms=(flip,))
    assert single.shape == (6, 8, 3)
    (fields,) = came(
        {"image": white, "ids": [1], "none": None}, transforms=(flip, call("with_box"))
    )
    assert list(fields) == ["image", "ids", "none", "boxes"]
    assert (fields["none"], fields["boxes"]) == (None, [(0, 0, 1, 1)] * 2)


def test_an_op_on_a_value_that_is_no_picture_says_what_it_is() -> None:
    with pytest.raises(SampleFault, match="hflip cannot work on field 'ids': it is a list"):
        came({"ids": [1]}, transforms=(op("hflip", field="ids"),))


@pytest.mark.parametrize(
    "value", [{"a": [1.0, [np.inf]]}, (torch.tensor([1.0, torch.nan]),), float("nan")]
)
def test_a_number_that_is_not_finite_is_found_however_deep_it_is(value: Any) -> None:
    came(value)
    with pytest.raises(SampleFault, match="not finite"):
        came(value, nonfinite="error")


def test_a_database_of_tuples_is_collated_as_tuples(tmp_path: Path) -> None:
    samples = [Sample({"0": np.arange(3), "1": np.array(7)})]
    plan = StreamConfig(
        "t",
        lmdb=write_own(tmp_path / "db", samples, form="tuple"),
        collate="loaderd_testing.sample_builders:as_it_came",
    )
    with Source(plan) as source:
        sample_pipeline = SamplePipeline(plan, source)
        sample_pipeline.batcher.make(
            [sample_pipeline.make(SampleRequest(0, 0, 0), silent)], 0, 0, 0
        )
    ((x, y),) = CAME
    assert (x.tolist(), int(y)) == ([0, 1, 2], 7)


def test_the_rng_of_collate_depends_on_the_batchs_first_position_alone() -> None:
    sample_pipeline, source = collated("padded")
    samples = [sample_pipeline.make(SampleRequest(0, 0, index), silent) for index in (3, 4)]
    draws = {
        (e, p): float(sample_pipeline.batcher.make(samples, 0, e, p)["draw"])
        for e in (0, 1)
        for p in (0, 32)
    }
    assert len(set(draws.values())) == 4
    assert float(sample_pipeline.batcher.make(samples[:1], 0, 1, 32)["draw"]) == draws[1, 32]
    source.close()


def test_a_collate_function_that_returns_a_tuple_makes_a_tuple_batch() -> None:
    sample_pipeline, source = collated("tupled")
    batch = sample_pipeline.batcher.make(
        [sample_pipeline.make(SampleRequest(0, 0, index), silent) for index in (3, 4)], 0, 0, 0
    )
    assert list(batch) == ["0", "1.y"]
    assert batch["1.y"].tolist() == [1, 0]
    assert sample_pipeline.form == "tuple"
    source.close()


def test_a_function_of_too_few_arguments_is_told_how_it_is_called() -> None:
    sample_pipeline, source = collated("without_arguments")
    with pytest.raises(
        SampleFault,
        match=r"1 was given; it is called as loaderd_testing\.sample_builders:without_arguments\(samples\)$",
    ) as caught:
        sample_pipeline.batcher.make(
            [sample_pipeline.make(SampleRequest(0, 0, 3), silent)], 0, 0, 0
        )
    assert caught.value.traceback == ""
    source.close()
    with Source(
        dataset_plan(
            "Numbers",
            transforms=(
                TransformConfig(
                    None, "loaderd_testing.sample_builders:as_dataloader_calls_it", {"p": 1}
                ),
            ),
        )
    ) as source:
        sample_pipeline = SamplePipeline(source.plan, source)
        with pytest.raises(
            SampleFault,
            match=r"it is called as loaderd_testing\.sample_builders:as_dataloader_calls_it\(sample, p=\.\.\.\)$",
        ):
            sample_pipeline.make(SampleRequest(0, 0, 0), silent)


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        ("ragged", "BadValue", "pad or concatenate"),
        ("broken_collate", "RuntimeError", "cannot stack"),
    ],
)
def test_a_collate_function_that_fails_is_a_fault_of_collate(
    function: str, error: str, words: str
) -> None:
    sample_pipeline, source = collated(function)
    with pytest.raises(SampleFault) as caught:
        sample_pipeline.batcher.make(
            [sample_pipeline.make(SampleRequest(0, 0, 0), silent)], 0, 0, 0
        )
    assert (caught.value.stage, caught.value.error) == ("collate", error)
    assert words in caught.value.message
    source.close()


def test_with_collate_samples_may_differ_in_everything() -> None:
    HELD[:] = [{"x": np.zeros(2)}, {"x": np.zeros(3, np.int64), "y": 1}, "text"]
    plan = dataset_plan("Holding", collate="loaderd_testing.sample_builders:as_it_came")
    with Source(plan) as source:
        sample_pipeline = SamplePipeline(plan, source)
        first = sample_pipeline.make(SampleRequest(0, 0, 0), silent)
        sample_pipeline.fix(sample_pipeline.specs(first))
        for index in (1, 2):
            sample_pipeline.make(SampleRequest(0, 0, index), silent)


@pytest.mark.parametrize(
    ("function", "form"), [("scribble", "tuple"), ("noisy", "dict"), ("by_index", "dict")]
)
def test_a_tuple_stays_one_while_a_callable_keeps_its_numbers(function: str, form: str) -> None:
    plan = dataset_plan("Numbers", transforms=(call(function),))
    with Source(plan) as source:
        sample_pipeline = SamplePipeline(plan, source)
        sample_pipeline.make(SampleRequest(0, 0, 1), silent)
        assert sample_pipeline.form == form


def test_user_code_is_known_to_be_there() -> None:
    for plan, expected in (
        (dataset_plan("Numbers"), True),
        (dataset_plan("Numbers", collate="loaderd_testing.sample_builders:padded"), True),
    ):
        with Source(plan) as source:
            assert SamplePipeline(plan, source).user_code is expected


def test_a_plan_travels_as_json() -> None:
    plan = dataset_plan("Numbers", args={"n": 3}, transforms=TRAIN, shuffle=4096)
    assert StreamConfig.from_json(plan.to_json()) == plan


def test_boxes_follow_the_image_and_lose_those_outside(tmp_path: Path) -> None:
    samples = [
        Sample(
            {
                "image": coded(picture(40, 50), "PNG"),
                "boxes": np.array([[10, 10, 20, 20], [0, 0, 5, 5]], np.float32),
                "labels": np.array([7, 8]),
            },
            encoded=("image",),
        )
    ]
    crop = op("center_crop", size=20, boxes="boxes")
    made = Stream(tmp_path, samples, transforms=(crop, op("resize", size=40, boxes="boxes"))).make()
    assert made["image"].shape == (40, 40, 3)
    # the crop begins at x = 15, y = 10
    assert made["boxes"].tolist() == [[0, 0, 10, 20]]
    assert made["labels"].tolist() == [7]


def test_a_stream_keeps_sixteen_bits_and_turns_pictures_upright(tmp_path: Path) -> None:
    deep = np.arange(12, dtype=np.uint16).reshape(3, 4) * 5000
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    Image.fromarray(deep).save(file, "PNG", exif=exif)
    samples = [Sample({"image": file.getvalue()}, encoded=("image",))]
    made = Stream(tmp_path, samples, mode="unchanged", exif=True).make()
    assert made["image"].tolist() == np.rot90(deep, 3)[:, :, np.newaxis].tolist()
    flipped = Stream(tmp_path, mode="unchanged", transforms=(op("vflip", p=1),)).make()
    assert flipped["image"].tolist() == deep[::-1, :, np.newaxis].tolist()


def test_max_pixels_is_the_streams_own(tmp_path: Path) -> None:
    assert Stream(tmp_path, max_pixels=2000).make()["image"].shape == (40, 50, 3)
    fault = Stream(tmp_path, max_pixels=1999).fault()
    assert "more than the limit of 1999" in fault.message
    asked = Stream(tmp_path, max_pixels=2000, transforms=(op("resize", size=[45, 50]),)).fault()
    assert "would be resized to 45 x 50 = 2250 pixels" in asked.message


def test_rows_are_mixed_by_the_draws_of_their_batch(tmp_path: Path) -> None:
    steps = (op("to_chw"), op("cutmix", num_classes=4))
    stream = Stream(tmp_path, transforms=steps)
    assert stream.sample_pipeline.collated
    samples = [stream.make(index) for index in range(4)]
    batch = stream.sample_pipeline.batcher.make(samples, 0, 0, 0)
    assert batch["image"].shape == (4, 3, 40, 50)
    assert batch["label"].shape == (4, 4)
    again = stream.sample_pipeline.batcher.make(samples, 0, 0, 0)
    np.testing.assert_array_equal(batch["image"], again["image"])
    other = stream.sample_pipeline.batcher.make(samples, 0, 0, 4)
    assert (batch["label"] != other["label"]).any()
