"""Fields of packed samples: made of plain values, and made like those of the first sample."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from loaderd.data.lmdb.record_format import FieldKind
from loaderd.data.sample import MAX_DEPTH, BadValue, Sample, field_name, is_image_file, leaf

Described = tuple[str, int, str, tuple[int, ...]]  # of a field: name, kind, dtype, shape
SHOWN = 5  # of a list of fields that is told
LEAVE_OUT = "leave it out: --fields names those that are packed"


def sample_of(values: Mapping[str, Any], images: Collection[str] = ()) -> Sample:
    """The sample of plain values: numbers, arrays, text, bytes, lists of numbers, and tables.

    A field of a table in a field is called "a.b". A list is an array. None is left out.

    Args:
        values: By field.
        images: Fields that hold image files; bytes that begin like one are taken for one as well.

    Raises:
        BadValue: One of them cannot be stored; the text names it, and a way out.
    """
    sample = Sample()
    _put(values, "", 0, sample)
    if not sample:
        raise BadValue("it has no fields")
    for name, value in sample.items():
        if isinstance(value, (bytes, memoryview)) and (name in images or is_image_file(value)):
            sample.encoded.add(name)
    return sample


def _put(values: Mapping[str, Any], before: str, depth: int, sample: Sample) -> None:
    if depth > MAX_DEPTH:
        raise BadValue(f"field {before!r} is nested more than {MAX_DEPTH} deep")
    for key, value in values.items():
        name = f"{before}.{field_name(key)}" if before else field_name(key)
        if value is None:
            continue
        if isinstance(value, Mapping):
            _put(value, name, depth + 1, sample)
            continue
        if name in sample:
            raise BadValue(f"two fields are called {name!r}")
        if isinstance(value, (list, tuple)):
            value = array_of(value, name)
        leaf(value, name, "rgb", sample)


def array_of(value: list[Any] | tuple[Any, ...], name: str) -> np.ndarray:
    """Lists of numbers, or of lists of equal length, as an array.

    Raises BadValue for every other.
    """
    try:
        array = np.asarray(value) if value else np.empty(0, np.float32)
        if array.dtype.kind in "biuf":
            return array
        why = _odd(value)
    except (ValueError, TypeError, OverflowError):
        why = "lists of unequal length, or numbers beside lists"
    raise BadValue(f"field {name!r} is a list of {why}, which is no array: {LEAVE_OUT}")


def _odd(value: Any) -> str:
    while isinstance(value, (list, tuple)) and value:
        value = next((part for part in value if not isinstance(part, (int, float))), value[0])
    return {"NoneType": "nulls", "str": "texts", "dict": "tables"}.get(
        type(value).__name__, type(value).__name__
    )


def fitted(sample: Sample, first: tuple[Described, ...]) -> tuple[Sample, str]:
    """A sample with just the fields that the first one has.

    Whole numbers become fractions where the first sample has those, and an array without elements
    takes the dtype of the first one's.

    Args:
        sample: As it was read.
        first: The fields of the first sample.

    Returns:
        The sample, and what was left out of it, in words.

    Raises:
        BadValue: It lacks one of them, or has it as something else.
    """
    remark = ""
    if len(sample) != len(first) or any(entry[0] not in sample for entry in first):
        names = [name for name, *_ in first]
        absent = [name for name in names if name not in sample]
        if absent:
            others = ",".join(name for name in names if name not in absent)
            without = f", or pack all samples without it: --fields {others}" if others else ""
            raise BadValue(
                f"it has no {_listed(absent)}, which the first sample has: give it a value (an "
                f"empty cell or a null is none){without}"
            )
        more = sorted(set(sample) - set(names))
        remark = f"packed without {_listed(more)}, which the first one lacks"
        sample = kept(sample, names)
    for name, kind, dtype, shape in first:
        sample[name] = _like(sample, name, kind, dtype, shape)
    return sample, remark


def kept(sample: Sample, names: list[str]) -> Sample:
    """The sample with these of its fields, in this order."""
    made = Sample(
        {name: sample[name] for name in names},
        encoded=tuple(sample.encoded & set(names)),
        images=tuple(sample.images & set(names)),
    )
    return made


def chosen(sample: Sample, wanted: tuple[str, ...]) -> Sample:
    """The sample with the wanted fields, each with all that lies below it; all without names.

    Raises BadValue if there is nothing of one.
    """
    if not wanted:
        return sample
    names: list[str] = []
    for field in wanted:
        found = [name for name in sample if name == field or name.startswith(f"{field}.")]
        if not found:
            raise BadValue(f"it has no field {field!r}; it has {_listed(list(sample))}")
        names += found
    return kept(sample, list(dict.fromkeys(names)))


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:SHOWN]))
    word = "field" if len(names) == 1 else "fields"
    return f"{word} {shown}{', ...' if len(names) > SHOWN else ''}"


def _like(sample: Sample, name: str, kind: int, dtype: str, shape: tuple[int, ...]) -> Any:
    value = sample[name]
    if not isinstance(value, np.ndarray):
        found = (
            FieldKind.TEXT
            if isinstance(value, str)
            else FieldKind.ENCODED
            if name in sample.encoded
            else FieldKind.BYTES
        )
        if found == kind:
            return value
        raise _unlike(name, _named(found, ""), kind, dtype)
    if kind > FieldKind.PICTURE:
        raise _unlike(name, _named(FieldKind.ARRAY, value.dtype.str), kind, dtype)
    if value.ndim and not len(value) and len(shape) >= value.ndim:
        return np.empty((0, *shape[1:]), dtype)
    if value.dtype.str == dtype:
        return value
    whole = value.dtype.kind in "iu" and np.dtype(dtype).kind == "f"
    if whole and (value.astype(dtype) == value).all():
        return value.astype(dtype)
    raise _unlike(name, _named(FieldKind.ARRAY, value.dtype.str), kind, dtype)


def _unlike(name: str, found: str, kind: int, dtype: str) -> BadValue:
    return BadValue(
        f"field {name!r} is {found}, in the first sample it is {_named(FieldKind(kind), dtype)}"
    )


def _named(kind: FieldKind, dtype: str) -> str:
    """What a stream would take a field for."""
    if kind <= FieldKind.PICTURE:
        return f"an array of {np.dtype(dtype)}"
    return {FieldKind.TEXT: "text", FieldKind.ENCODED: "an image"}.get(kind, "bytes")
