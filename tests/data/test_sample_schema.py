"""What user code hands over as the slot takes it: copied at once, it is the very sample that the
long way makes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loaderd.data.errors import SampleFault
from loaderd.data.pipeline.pipeline import SamplePipeline
from loaderd.data.pipeline.request import SampleRequest
from loaderd.data.sample import Sample
from loaderd.data.sources.source import Source
from loaderd_testing import sample_builders
from loaderd_testing.sample_builders import dataset_plan, silent

ROW = {
    "x": np.arange(3, dtype=np.float32),
    "n": 7,
    "f": 0.5,
    "on": True,
    "c": 1j,
    "text": "seven",
    "small": np.uint8(7),
}

ODD = {
    "as usual": ROW,
    "scalars of numpy": {
        **ROW,
        "n": np.int64(8),
        "f": np.float64(0.25),
        "on": np.bool_(False),
        "c": np.complex128(2),
    },
    "arrays without axes": {
        **ROW,
        "n": np.array(8),
        "f": np.array(0.25),
        "on": np.array(False),
        "small": np.array(1, np.uint8),
    },
    "another order": dict(reversed(ROW.items())),
    "strided": {**ROW, "x": np.arange(6, dtype=np.float32)[::2]},
    "big-endian": {**ROW, "x": np.arange(3, dtype=">f4")},
    "whole for true": {**ROW, "on": 1},
    "true for whole": {**ROW, "n": True},
    "whole for fraction": {**ROW, "f": 1},
    "fraction for whole": {**ROW, "n": 1.5},
    "small for whole": {**ROW, "n": np.int32(1)},
    "whole for small": {**ROW, "small": 1},
    "largest": {**ROW, "n": 2**63 - 1},
    "smallest": {**ROW, "n": -(2**63)},
    "too large": {**ROW, "n": 2**63},
    "too small": {**ROW, "n": -(2**63) - 1},
    "a list": {**ROW, "x": [0.0, 1.0, 2.0]},
    "a number for an array": {**ROW, "x": np.float32(1)},
    "double": {**ROW, "x": np.zeros(3)},
    "longer": {**ROW, "x": np.zeros(4, np.float32)},
    "an array for a number": {**ROW, "n": np.array([7])},
    "bytes for text": {**ROW, "text": b"seven"},
    "an array for text": {**ROW, "text": np.zeros(3, np.float32)},
    "a picture for text": {**ROW, "text": b"\x89PNG\r\n\x1a\n"},
    "None": {**ROW, "x": None},
    "one less": {name: value for name, value in ROW.items() if name != "f"},
    "one more": {**ROW, "more": 1},
    "another name": {**{name: value for name, value in ROW.items() if name != "f"}, "g": 0.5},
    "nested": {**ROW, "x": {"y": np.zeros(3, np.float32)}},
    "a tuple": tuple(ROW.values()),
    "a list of all": list(ROW.values()),
    "text of its own kind": {**ROW, "text": type("Text", (str,), {})("other")},
}


class Taken:
    """A dataset of the usual row and another one, made the long way and the short way."""

    def __init__(self, usual: Any, other: Any, **plan: Any) -> None:
        sample_builders.HELD[:] = [usual, other]
        self.source = Source(dataset_plan("Holding", **plan))
        self.sample_pipeline = SamplePipeline(self.source.plan, self.source)
        first = self.sample_pipeline.make(SampleRequest(0, 0, 0), silent)
        self.specs = self.sample_pipeline.specs(first)
        self.sample_pipeline.fix(self.specs)
        self.sample_pipeline.make(SampleRequest(0, 0, 0), silent)

    def outcome(self, short: bool) -> str | dict[str, Any]:
        """The fault's words, or what each field is in the slot."""
        try:
            make = self.sample_pipeline.row if short else self.sample_pipeline.make
            made = make(SampleRequest(0, 0, 1), silent)
        except SampleFault as fault:
            return f"{fault.stage} {fault.error} {fault.message}"
        found: dict[str, Any] = {}
        for spec in self.specs:
            if spec.kind == "array":
                slot = np.empty(spec.shape, spec.dtype)
                slot[...] = made[spec.name]
                found[spec.name] = slot.tobytes()
            else:
                found[spec.name] = str(made[spec.name])
        return found


@pytest.mark.parametrize("other", ODD)
def test_the_short_way_makes_the_sample_or_the_fault_of_the_long_way(other: str) -> None:
    taken = Taken(ROW, ODD[other])
    assert taken.outcome(short=True) == taken.outcome(short=False)


@pytest.mark.parametrize(
    "other", [(1, np.ones(2)), (1.5, np.ones(2)), [1, np.ones(2)], (1,), {"0": 1, "1": np.ones(2)}]
)
def test_tuples_are_taken_by_their_places(other: Any) -> None:
    taken = Taken((0, np.zeros(2)), other)
    assert taken.outcome(short=True) == taken.outcome(short=False)


@pytest.mark.parametrize("value", [ROW, tuple(ROW.values())])
def test_a_row_that_fits_is_handed_on_without_making_a_sample_of_it(value: Any) -> None:
    taken = Taken(value, value)
    row = taken.sample_pipeline.row(SampleRequest(0, 0, 1), silent)
    assert not isinstance(row, Sample)
    assert list(row.values()) == list(value.values() if isinstance(value, dict) else value)


def test_of_another_dtype_the_fault_says_to_convert_and_of_another_kind_it_does_not() -> None:
    double = Taken(ROW, ODD["double"]).outcome(short=False)
    assert "x' is float64" in double
    assert str(double).endswith("; convert it to one dtype, in the dataset or in a transform")
    assert str(Taken(ROW, ODD["an array for text"]).outcome(short=False)).endswith("it is text")


def test_numbers_that_are_not_finite_are_still_looked_for() -> None:
    taken = Taken(ROW, {**ROW, "f": float("nan")}, nonfinite="error")
    assert "NonFinite" in taken.outcome(short=True)
    assert taken.outcome(short=True) == taken.outcome(short=False)


def test_bytes_are_still_looked_at_in_case_they_are_a_picture() -> None:
    taken = Taken({"raw": b"no picture"}, {"raw": b"no picture"})
    assert isinstance(taken.sample_pipeline.row(SampleRequest(0, 0, 1), silent), Sample)
