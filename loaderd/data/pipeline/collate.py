"""A user's collate function: its samples, its generator, and what it may return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loaderd.config.stream import DecodeModes
from loaderd.data.sample import MAX_DEPTH, MAX_FIELDS, BadValue, Sample, leaf, plain_array
from loaderd_wire.limits import CLIENT_FIELDS
from loaderd_wire.slots import FieldSpec

Batch = dict[str, Any]  # field -> numpy array, or list of str, or list of bytes


def batch_of(value: Any, mode: str | DecodeModes) -> tuple[Batch, str]:
    """What the function returned, as (batch, form): a dict, or a tuple whose fields are "0", "1",
    ... Nested ones are called "a.b".

    Arrays, tensors and numbers; a list of numbers is an array, a list of str or of bytes stays one.
    Raises BadValue naming the field.
    """
    if not isinstance(value, (Mapping, tuple)):
        raise BadValue(f"collate returned {type(value).__name__}: expected a dict or a tuple")
    batch: Batch = {}
    _walk(value, "", 0, mode, batch)
    if not batch:
        raise BadValue("collate returned no fields")
    return batch, "dict" if isinstance(value, Mapping) else "tuple"


def fields_of(batch: Mapping[str, Any], images: frozenset[str] | set[str]) -> tuple[FieldSpec, ...]:
    """The fields of a collated batch: dtype and shape of one row as this batch has them; others may
    have other shapes. images: the fields that are pictures in the samples.
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
            specs.append(
                FieldSpec(
                    name, "", (), "bytes" if value and isinstance(value[0], bytes) else "text"
                )
            )
    return tuple(specs)


def check_like(found: Sequence[FieldSpec], first: Sequence[FieldSpec]) -> None:
    """Whether a batch has the fields of the stream's first one, of the same kinds and dtypes, in
    whatever shape and order. Raises BadValue that names what differs.
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


def _named(kind: str) -> str:
    return {"text": "a list of str", "bytes": "a list of bytes"}.get(
        kind
    ) or f"an array of {np.dtype(kind)}"


def _walk(value: Any, name: str, depth: int, mode: str | DecodeModes, batch: Batch) -> None:
    if isinstance(value, (Mapping, tuple)) and not _is_row_list(value):
        if depth >= MAX_DEPTH:
            raise BadValue(f"field {name!r} is nested more than {MAX_DEPTH} deep")
        parts = value.items() if isinstance(value, Mapping) else enumerate(value)
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
        raise BadValue(f"collate returned more than {MAX_FIELDS} fields")
    batch[name] = (
        _rows(value, name) if isinstance(value, (list, tuple)) else _one(value, name, mode)
    )


def _is_row_list(value: Any) -> bool:
    """A tuple of strings below the top is what zip(*samples) makes of a text field: rows, not
    fields.
    """
    return (
        isinstance(value, tuple)
        and len(value) > 0
        and all(isinstance(item, (str, bytes)) for item in value)
    )


def _rows(value: list[Any] | tuple[Any, ...], name: str) -> np.ndarray | list[Any]:
    for kind in (str, bytes):
        if value and all(isinstance(item, kind) for item in value):
            return [kind(item) for item in value]
    if value and all(isinstance(item, (bool, int, float, np.number, np.bool_)) for item in value):
        return plain_array(np.asarray(value), name)
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
