from __future__ import annotations

import datetime
import decimal
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from loaderd.data.errors import SampleFault, SourceError
from loaderd.data.pipeline.pipeline import SamplePipeline
from loaderd.data.pipeline.request import SampleRequest
from loaderd.data.sample import Sample
from loaderd.data.sources.source import Source
from loaderd_testing import sample_builders
from loaderd_testing.sample_builders import (
    QUARTER_ROWS,
    Point,
    by_pillow,
    dataset_plan,
    op,
    picture,
    silent,
)


def made(value: Any, **plan: Any) -> tuple[Sample, str]:
    """The sample and form that a dataset whose only sample is `value` gives."""
    sample_builders.HELD[:] = [value]
    with Source(dataset_plan("Holding", **plan)) as source:
        sample_pipeline = SamplePipeline(source.plan, source)
        sample = sample_pipeline.make(SampleRequest(0, 0, 0), silent)
        sample_pipeline.specs(sample)
        return sample, sample_pipeline.form


def fault(value: Any) -> SampleFault:
    with pytest.raises(SampleFault) as caught:
        made(value)
    return caught.value


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (7, "<i8", ()),
        (True, "|b1", ()),
        (0.5, "<f8", ()),
        (1 + 2j, "<c16", ()),
        (np.float32(2), "<f4", ()),
        (np.bool_(True), "|b1", ()),
        (np.uint8(3), "|u1", ()),
        (np.arange(6, dtype=np.int16).reshape(2, 3), "<i2", (2, 3)),
        (np.arange(3, dtype=">f4"), "<f4", (3,)),
        (np.array(5, ">i8"), "<i8", ()),
        (np.zeros((2, 2), np.float16), "<f2", (2, 2)),
        (torch.arange(4), "<i8", (4,)),
        (torch.ones(2, 3, requires_grad=True), "<f4", (2, 3)),
        (torch.tensor(True), "|b1", ()),
        (torch.ones(2, 2).T[:, :1], "<f4", (2, 1)),
        (torch.tensor([1 + 1j]).conj(), "<c8", (1,)),
    ],
)
def test_one_value_is_a_tuple_of_one_and_keeps_its_type(
    value: Any, dtype: str, shape: tuple[int, ...]
) -> None:
    sample, form = made(value)
    assert form == "tuple"
    assert list(sample) == ["0"]
    assert (sample["0"].dtype.str, sample["0"].shape) == (dtype, shape)
    expected = value.detach().resolve_conj().numpy() if isinstance(value, torch.Tensor) else value
    np.testing.assert_array_equal(sample["0"], expected)


def test_dicts_tuples_lists_and_nested_ones_are_flattened() -> None:
    sample, form = made({"a": {"b": 1, "c": (2, [3.5])}, 7: "x"})
    assert form == "dict"
    assert {name: (str(v) if isinstance(v, str) else v.item()) for name, v in sample.items()} == {
        "a.b": 1,
        "a.c.0": 2,
        "a.c.1.0": 3.5,
        "7": "x",
    }
    sample, form = made([1, {"y": 2}])
    assert form == "tuple"
    assert list(sample) == ["0", "1.y"]
    assert list(made(Point(1, 2))[0]) == ["0", "1"]


def test_text_and_bytes_stay_what_they_are() -> None:
    sample, _ = made(
        {
            "t": "grüße",
            "b": b"\xff\xd8\xff\xe0",
            "a": bytearray(b"xy"),
            "m": memoryview(b"z"),
            "s": np.str_("n"),
        }
    )
    assert dict(sample) == {"t": "grüße", "b": b"\xff\xd8\xff\xe0", "a": b"xy", "m": b"z", "s": "n"}
    assert [type(v) for v in sample.values()] == [str, bytes, bytes, bytes, str]


@pytest.mark.parametrize(
    ("stored", "mode", "channels"),
    [("RGB", "rgb", 3), ("L", "rgb", 3), ("RGBA", "rgb", 3), ("RGB", "gray", 1), ("L", "gray", 1)],
)
def test_a_pillow_image_becomes_a_picture_of_the_streams_mode(
    stored: str, mode: str, channels: int
) -> None:
    sample, _ = made(Image.fromarray(picture()).convert(stored), mode=mode)
    assert sample["0"].shape == (40, 50, channels)
    assert sample["0"].dtype == np.uint8
    assert sample.images == {"0"}


@pytest.mark.parametrize(
    ("value", "field"),
    [(None, None), ((1, None), "1"), ({"a": {"b": [1, None]}}, "a.b.1"), ([None], "0")],
)
def test_none_at_any_depth_is_a_bad_sample_that_names_the_field(
    value: Any, field: str | None
) -> None:
    caught = fault(value)
    assert caught.stage == "read"
    assert "None" in caught.message
    if field:
        assert repr(field) in caught.message


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"x": np.array([None, 1])}, "'x' is an array of dtype object"),
        ({"x": np.array(["a"])}, "dtype <U1"),
        ({"x": np.zeros(2, [("a", "i4"), ("b", "f4")])}, "fields of their own"),
        ({"x": np.array(["2020-01-01"], "datetime64[D]")}, "astype"),
        ({"x": np.array([1], "timedelta64[s]")}, "astype"),
        ({"x": np.ones(2, np.longdouble)}, "float64"),
        ({"x": torch.ones(2, dtype=torch.bfloat16)}, "'x' is a tensor of torch.bfloat16"),
        ({"x": 2**63}, "does not fit int64"),
        ({"x": {1, 2}}, "'x' is a set"),
        ({"x": object()}, "'x' is a object"),
        ({"x": datetime.date(2020, 1, 1)}, "datetime.date"),
        ({"x": decimal.Decimal(1)}, "decimal.Decimal"),
        ({"x": lambda: 0}, "function"),
        ({"a.b": 1, "a": {"b": 2}}, "two fields are called 'a.b'"),
        ({"__key__": 1}, "'__key__'"),
        ({"x": list(range(300))}, "list of 300 values: make it an array"),
        ({str(n): n for n in range(4097)}, "more than 4,096 fields: put values of one dtype"),
        ({}, "empty dict"),
        ((), "empty tuple"),
    ],
)
def test_what_a_batch_cannot_hold_is_a_bad_sample_that_says_what_to_do(
    value: Any, words: str
) -> None:
    caught = fault(value)
    assert words in caught.message
    assert caught.error == "BadValue"
    assert caught.traceback == ""


def test_a_sample_nested_without_end_is_a_bad_sample() -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    assert "nested more than 16 deep" in fault(endless).message


def test_an_array_without_elements_is_a_field() -> None:
    assert made({"x": np.zeros((0, 4))})[0]["x"].shape == (0, 4)


def test_the_dataset_is_built_once_with_its_arguments() -> None:
    with Source(dataset_plan("Numbers", args={"n": 6})) as source:
        assert source.total == 6
        assert source.classes == ("even", "odd")
        assert source.keys == "index"
        assert source.key(3) == "3"
        assert source.layout == "loaderd_testing.sample_builders:Numbers"
        assert not source.many
        assert source.dataset.n == 6
        assert source.changed() == ""


def test_identity_depends_on_class_arguments_and_length_alone() -> None:
    def identity(**args: Any) -> str:
        with Source(dataset_plan("Numbers", args=args)) as source:
            return source.identity

    assert identity(n=6) == identity(n=6)
    assert identity(n=6) != identity(n=7)
    assert identity(n=6) != identity(n=6, fails_at=3)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "loaderd_testing.sample_builders:Missing",
            "loaderd_testing.sample_builders has no 'Missing'",
        ),
        ("no_such_module:X", "there is no module 'no_such_module'"),
        ("data.no_such:X", "there is no module 'data.no_such'"),
        ("loaderd_testing.sample_builders", 'expected "package.module:Name"'),
        ("loaderd_testing.sample_builders:HELD", "is a list, which cannot be called"),
        ("loaderd_testing.sample_builders:Endless", "only map-style datasets"),
        ("loaderd_testing.sample_builders:Holding", "it is empty"),
        (
            "loaderd_testing.sample_builders:Unbuilt",
            r"missing 1 required positional argument: 'root'; it is called as "
            r"Class\(\*\*dataset_args\)",
        ),
    ],
)
def test_a_dataset_that_cannot_be_built_is_a_source_error(name: str, words: str) -> None:
    sample_builders.HELD[:] = []
    plan = dataset_plan("x")
    with pytest.raises(SourceError, match=words) as caught:
        Source(type(plan)(**{**{f: getattr(plan, f) for f in plan.__slots__}, "dataset": name}))
    assert f'dataset = "{name}"' in str(caught.value)


def test_an_error_in_the_constructor_comes_with_its_traceback() -> None:
    with pytest.raises(SourceError, match="FileNotFoundError: no data in /nowhere") as caught:
        Source(dataset_plan("Unbuilt", args={"root": "/nowhere"}))
    assert "sample_builders.py" in caught.value.traceback
    assert "user_code.py" not in caught.value.traceback


def test_an_error_in_getitem_names_it_and_shows_the_users_frames_alone() -> None:
    with (
        Source(dataset_plan("Numbers", args={"fails_at": 4})) as source,
        pytest.raises(SampleFault) as caught,
    ):
        SamplePipeline(source.plan, source).make(SampleRequest(0, 0, 4), silent)
    assert (caught.value.stage, caught.value.error, caught.value.message) == (
        "read",
        "ValueError",
        "sample 4 is broken",
    )
    assert "in __getitem__" in caught.value.traceback
    assert "pipeline.py" not in caught.value.traceback


def test_getitems_fetches_many_and_keeps_their_order() -> None:
    stages: list[Any] = []
    with Source(dataset_plan("Many")) as source:
        assert source.many
        got = SamplePipeline(source.plan, source).make_many(
            [SampleRequest(0, 0, index) for index in (5, 2, 9)], stages.append, at=stages.append
        )
    assert [int(sample["1"]) for sample in got if isinstance(sample, Sample)] == [1, 0, 1]
    assert [
        stage if isinstance(stage, bool) else getattr(stage, "name", stage) for stage in stages
    ] == ["FETCH_MANY", 0, 1, 2]


def test_getitems_that_returns_too_few_is_a_fault_of_the_fetch() -> None:
    with (
        Source(dataset_plan("Short")) as source,
        pytest.raises(SampleFault, match="__getitems__ of 3 indices returned 2 values"),
    ):
        SamplePipeline(source.plan, source).make_many(
            [SampleRequest(0, 0, index) for index in (1, 2, 3)], silent
        )


def test_getitems_that_raises_is_a_fault_of_the_fetch_and_a_bad_row_is_its_own() -> None:
    with (
        Source(dataset_plan("Many", args={"fails_at": 2})) as source,
        pytest.raises(SampleFault, match="sample 2 is broken"),
    ):
        SamplePipeline(source.plan, source).make_many(
            [SampleRequest(0, 0, index) for index in (1, 2, 3)], silent
        )
    plan = dataset_plan("Many", transforms=(sample_builders.call("failing"),))
    with Source(plan) as source:
        got = SamplePipeline(plan, source).make_many(
            [SampleRequest(0, 0, index) for index in (1, 2)], silent
        )
    assert [type(each) for each in got] == [SampleFault, SampleFault]


def test_a_dataset_that_changes_its_form_is_a_bad_sample() -> None:
    sample_builders.HELD[:] = [(1, 2), {"a": 1}]
    with Source(dataset_plan("Holding")) as source:
        sample_pipeline = SamplePipeline(source.plan, source)
        sample_pipeline.make(SampleRequest(0, 0, 0), silent)
        with pytest.raises(SampleFault, match="returned a dict where earlier samples were a tuple"):
            sample_pipeline.make(SampleRequest(0, 0, 1), silent)


def test_a_jpeg_with_chroma_of_a_quarter_of_the_rows_is_decoded() -> None:
    stored, opened = (
        made((QUARTER_ROWS, 1), transforms=(op("decode", field="0"),))[0],
        made(Image.open(io.BytesIO(QUARTER_ROWS)))[0],
    )
    np.testing.assert_array_equal(stored["0"], by_pillow(QUARTER_ROWS))
    np.testing.assert_array_equal(opened["0"], by_pillow(QUARTER_ROWS))


def test_a_relative_path_that_leads_nowhere_is_told_with_the_folder_it_begins_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path, told in (("labels.csv", True), (f"{tmp_path}/labels.csv", False)):
        with pytest.raises(SourceError) as caught:
            Source(dataset_plan("Listed", args={"path": path}))
        assert (f"begins at the daemon's folder, {tmp_path}: " in str(caught.value)) is told
