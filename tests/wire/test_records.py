"""Frozen records that are made fast are the same as those that are made by a call."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any

import pytest

from loaderd_wire.records import quick


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 2
    marks: tuple[str, ...] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class Checked:
    x: int

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError(f"x is {self.x}")


@dataclass(frozen=True)
class WithoutSlots:
    x: int


def test_a_record_made_fast_equals_one_made_by_a_call() -> None:
    make = quick(Point)
    cases: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((1,), {}),
        ((1, 5), {}),
        ((1, 5, ("a",)), {}),
        ((), {"x": 3, "marks": ("b",)}),
    ]
    for values, named in cases:
        made, called = make(*values, **named), Point(*values, **named)
        assert made == called
        assert (repr(made), hash(made), type(made)) == (repr(called), hash(called), Point)
        assert pickle.loads(pickle.dumps(made)) == called


def test_a_record_made_fast_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        quick(Point)(1).x = 2  # pyright: ignore[reportAttributeAccessIssue] - that is what is tried


@pytest.mark.parametrize(
    ("values", "complaint"),
    [((), "missing 1 required positional argument: 'x'"), ((1, 2, (), 4), "takes from 2 to 4")],
)
def test_a_wrong_number_of_values_is_refused_as_by_a_call(
    values: tuple[Any, ...], complaint: str
) -> None:
    with pytest.raises(TypeError, match=complaint):
        quick(Point)(*values)


def test_a_class_that_checks_its_values_goes_on_checking_them() -> None:
    assert quick(Checked) is Checked
    with pytest.raises(ValueError, match="x is -1"):
        quick(Checked)(-1)


def test_a_class_without_slots_is_called_as_it_is() -> None:
    assert quick(WithoutSlots) is WithoutSlots
