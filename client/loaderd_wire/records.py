"""Frozen dataclasses that are made as fast as those that are not frozen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, field, fields, make_dataclass
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


def quick(cls: Callable[P, T]) -> Callable[P, T]:
    """A faster way to make instances of a frozen dataclass with slots, for the busiest places.

    The instances are the same as those of a call of the class. A frozen dataclass sets each field
    through object.__setattr__, which takes eight times as long. Here a twin that is not frozen is
    filled, and then gets the frozen class as its class. A class with a __post_init__ is returned as
    it is.
    """
    kind = cast("type[Any]", cls)
    twin = make_dataclass(
        kind.__name__, [_like(f) for f in fields(kind)], slots=True, repr=False, eq=False
    )
    slots: object = getattr(twin, "__slots__", None)
    if hasattr(kind, "__post_init__") or slots != getattr(kind, "__slots__", None):
        return cls

    def make(*values: P.args, **named: P.kwargs) -> T:
        record = twin(*values, **named)
        record.__class__ = kind
        return record

    return make


def _like(f: Any) -> tuple[str, Any, Any]:
    if f.default is MISSING and f.default_factory is MISSING:
        return f.name, Any, field()
    return (
        f.name,
        Any,
        field(default=f.default)
        if f.default_factory is MISSING
        else field(default_factory=f.default_factory),
    )
