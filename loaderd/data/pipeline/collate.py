"""A user's collate function: how it is called, and what it may return."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from loaderd.config.decode_modes import DecodeModes
from loaderd.config.stream import StreamConfig
from loaderd.data.sample import (
    MAX_DEPTH,
    MAX_FIELDS,
    BadValue,
    Sample,
    field_name,
    is_array,
    leaf,
    plain_array,
)
from loaderd.data.user_code import find, invoke, parameters, takes
from loaderd_wire.limits import CLIENT_FIELDS
from loaderd_wire.slots import FieldSpec

Batch = dict[str, Any]  # field -> numpy array, or list of arrays, of str or of bytes
TEXTS = (str, bytes)
NUMBERS = (bool, int, float, complex, np.number, np.bool_)


class Collate:
    """The collate function of a stream. Raises SourceError where there is none of that name.

    A function of one argument is called with the samples alone. One that must be given a second
    one, or calls it `rng`, gets a numpy Generator as well. One with a parameter `epoch` gets the
    epoch by that name.
    """

    def __init__(self, plan: StreamConfig) -> None:
        self._function: Callable[..., Any] = find(plan.collate, "collate")
        self._rng = takes_rng(self._function)
        self._epoch = takes(self._function, "epoch")
        words = {"": "samples", "rng": "samples, rng=rng"}.get(self._rng, "samples, rng")
        words += ", epoch=epoch" if self._epoch else ""
        self._how = f"{plan.collate}({words})"

    def __call__(self, samples: list[Any], rng: np.random.Generator, epoch: int = 0) -> Any:
        """What the function returns, or raises."""
        named: dict[str, Any] = {"epoch": epoch} if self._epoch else {}
        if not self._rng:
            return invoke(self._function, self._how, samples, **named)
        if self._rng == "rng":
            return invoke(self._function, self._how, samples, rng=rng, **named)
        return invoke(self._function, self._how, samples, rng, **named)


def takes_rng(function: Callable[..., Any]) -> str:
    """How a collate function takes a generator: "second" argument, by its name "rng", or ""."""
    known = [p for p in parameters(function) if p.name != "epoch"]
    places = [p for p in known if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(places) > 1 and (
        places[1].default is inspect.Parameter.empty or places[1].name == "rng"
    ):
        return "second"
    if any(p.name == "rng" and p.kind is not p.POSITIONAL_ONLY for p in known):
        return "rng"
    some = any(p.kind is p.VAR_POSITIONAL for p in known)
    return "second" if some and len(places) < 2 else ""


def batch_of(value: Any, mode: str | DecodeModes) -> tuple[Batch, str]:
    """What the function returned, as (batch, form).

    A mapping is a "dict"; a tuple or list a "tuple" whose fields are "0", "1", ...; one array, or
    one list of numbers or texts, a "tuple" of one field. Below that, fields of a mapping are called
    "a.b". A list or tuple of numbers is an array; one of str, of bytes or of arrays stays a list;
    one of mappings with the same names is a list for each name.

    Raises BadValue naming the field.
    """
    single = is_array(value) or isinstance(value, NUMBERS)
    rows = isinstance(value, (tuple, list)) and _all(value, (*TEXTS, *NUMBERS))
    if not single and not isinstance(value, (Mapping, tuple, list)):
        raise BadValue(
            f"collate returned {type(value).__name__}: expected a dict or a tuple of fields, or an "
            "array"
        )
    batch: Batch = {}
    _walk((value,) if single or rows else value, "", 0, mode, batch)
    if not batch:
        raise BadValue("collate returned no fields")
    return batch, "dict" if isinstance(value, Mapping) else "tuple"


def fields_of(batch: Mapping[str, Any], images: frozenset[str] | set[str]) -> tuple[FieldSpec, ...]:
    """The fields of a collated batch: dtype and shape of one row as this batch has them.

    Others may have other shapes.

    images: the fields that are pictures in the samples.
    """
    specs: list[FieldSpec] = []
    for name, value in batch.items():
        if isinstance(value, np.ndarray):
            picture = (
                name in images
                and value.ndim == 4
                and value.shape[3] in (1, 3, 4)
                and value.dtype.name in ("uint8", "float32")
            )
            specs.append(FieldSpec(name, value.dtype.str, value.shape[1:], image=picture))
        else:
            kinds = {np.ndarray: "list", bytes: "bytes"}
            kind = kinds.get(type(value[0]), "text") if value else "text"
            picture = kind == "list" and name in images and value[0].ndim == 3
            specs.append(FieldSpec(name, "", (), kind, picture))
    return tuple(specs)


def check_like(found: Sequence[FieldSpec], first: Sequence[FieldSpec]) -> None:
    """Check that a batch has the fields of the stream's first one.

    They have the same kinds and dtypes, in whatever shape and order. Raises BadValue that names
    what differs.
    """
    wanted = {spec.name: spec.dtype or spec.kind for spec in first}
    has = {spec.name: spec.dtype or spec.kind for spec in found}
    for name, kind in has.items():
        if name not in wanted:
            raise BadValue(
                f"collate returned a field {name!r}, which the first batch did not have; it had "
                f"{', '.join(map(repr, wanted))}"
            )
        if kind != wanted[name]:
            raise BadValue(
                f"collate returned field {name!r} as {_named(kind)}, in the first batch it was "
                f"{_named(wanted[name])}"
            )
    for name in wanted:
        if name not in has:
            raise BadValue(f"collate returned no field {name!r}, which the first batch had")


def arrays_of(value: Any) -> list[np.ndarray]:
    """The arrays that a field of a batch consists of: one, those of a list, or none."""
    if isinstance(value, np.ndarray):
        return [value]
    return [item for item in value if isinstance(item, np.ndarray)]


def _named(kind: str) -> str:
    lists = {"text": "str", "bytes": "bytes", "list": "arrays"}
    return f"a list of {lists[kind]}" if kind in lists else f"an array of {np.dtype(kind)}"


def _all(value: Sequence[Any], kinds: Any) -> bool:
    """Whether there are items, and all are of one of these kinds."""
    return len(value) > 0 and all(isinstance(item, kinds) for item in value)


def _walk(value: Any, name: str, depth: int, mode: str | DecodeModes, batch: Batch) -> None:
    if depth > MAX_DEPTH:
        raise BadValue(f"field {name!r} is nested more than {MAX_DEPTH} deep")
    parts: Any = None
    if isinstance(value, Mapping):
        parts = [(field_name(key), item) for key, item in value.items()]
    elif isinstance(value, (tuple, list)):
        parts = enumerate(value) if not depth else _parts(value)
    if parts is not None:
        for part, item in parts:
            _walk(item, f"{name}.{part}" if depth else str(part), depth + 1, mode, batch)
        return
    if name in batch or name in CLIENT_FIELDS:
        raise BadValue(
            f"two fields are called {name!r}"
            if name in batch
            else f"a field must not be called {name!r}"
        )
    if len(batch) >= MAX_FIELDS:
        raise BadValue(f"collate returned more than {MAX_FIELDS:,} fields")
    rows = isinstance(value, (list, tuple))
    batch[name] = _rows(value, name, mode) if rows else _one(value, name, mode)


def _parts(value: tuple[Any, ...] | list[Any]) -> list[tuple[str, Any]] | None:
    """The fields that a list or tuple below the top stands for; None if it is one field."""
    if _all(value, Mapping):
        if any(item.keys() != value[0].keys() for item in value):
            return None
        return [(field_name(name), [item[name] for item in value]) for name in value[0]]
    if all(is_array(item) for item in value) or _all(value, TEXTS) or _all(value, NUMBERS):
        return None
    holds = any(
        is_array(item) or (isinstance(item, (tuple, list)) and any(map(is_array, item)))
        for item in value
    )
    if not holds and not isinstance(value, tuple):
        return None
    return [(str(at), item) for at, item in enumerate(value)]


def _rows(
    value: list[Any] | tuple[Any, ...], name: str, mode: str | DecodeModes
) -> np.ndarray | list[Any]:
    for kind in TEXTS:
        if _all(value, kind):
            return [kind(item) for item in value]
    if _all(value, NUMBERS):
        return plain_array(np.asarray(value), name)
    if value and all(is_array(item) for item in value):
        return [_one(item, name, mode) for item in value]
    kinds = ", ".join(sorted({type(item).__name__ for item in value})) or "nothing"
    raise BadValue(
        f"field {name!r} is a list of {kinds}: a batch holds arrays, so pad or concatenate them "
        "(and return the lengths)"
    )


def _one(value: Any, name: str, mode: str | DecodeModes) -> np.ndarray:
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        raise BadValue(
            f"field {name!r} is a single {type(value).__name__}: return a list with one value per "
            "row"
        )
    single = Sample()
    leaf(value, name, mode, single)
    return single[name]
