"""What a stream's samples look like: the fields that the first good one fixes, and whether a later one fits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loaderd.data.faults import SampleFault
from loaderd.data.sample import Sample
from loaderd_wire.slots import FieldSpec


def _fault(text: str) -> SampleFault:
    return SampleFault("check", "BadValue", text)


def specs_of(sample: Sample, collated: bool) -> tuple[FieldSpec, ...]:
    """The sample's fields in their order. Raises SampleFault ("check") for an array without elements, unless a collate function is used."""
    specs: list[FieldSpec] = []
    for name, value in sample.items():
        if isinstance(value, np.ndarray):
            if value.size == 0 and not collated:
                raise _fault(f"field {name!r} has no elements (shape {value.shape}): leave it out, or use a collate function")
            specs.append(FieldSpec(name, value.dtype.str, value.shape, image=name in sample.images))
        else:
            specs.append(FieldSpec(name, "", (), "text" if isinstance(value, str) else "bytes"))
    return tuple(specs)


def _words(spec: FieldSpec, shapes: bool) -> str:
    if spec.kind != "array":
        return spec.kind
    return f"{np.dtype(spec.dtype)} of shape {spec.shape}" if shapes else str(np.dtype(spec.dtype))


Shape = tuple[tuple[str, Any, tuple[int, ...]], ...]  # of each field: name, dtype or type, shape


def shape_of(specs: Sequence[FieldSpec]) -> Shape:
    """What `plainly_fits` compares with."""
    kinds = {"text": str, "bytes": bytes}
    return tuple((spec.name, kinds.get(spec.kind) or np.dtype(spec.dtype), spec.shape) for spec in specs)


def plainly_fits(sample: Sample, shape: Shape, collated: bool) -> bool:
    """True if the sample fits and has its fields in the usual order: what nearly all do, found out without making specs of it."""
    if len(sample) != len(shape):
        return False
    for (name, kind, size), (found, value) in zip(shape, sample.items(), strict=True):
        if found != name:
            return False
        if type(value) is np.ndarray:
            if value.dtype != kind or not (collated or (value.shape == size and value.size)):
                return False
        elif type(value) is not kind:
            return False
    return True


class Mold:
    """What a slot takes as user code hands it over: one look at each field instead of a sample made, checked and taken apart again."""

    def __init__(self, specs: Sequence[FieldSpec], form: str) -> None:
        """specs: without bytes, which may be a stored image and have to be looked at. form: "dict" or "tuple"."""
        self._form = tuple if form == "tuple" else dict
        self._fields = [(name, kind, size, _scalars(kind, size)) for name, kind, size in shape_of(specs)]
        self._names = [spec.name for spec in specs]

    def take(self, value: Any) -> dict[str, Any] | None:
        """Field -> array of dtype and shape, text, or for an array without axes a number that it can hold; None if it's anything else,
        for which somebody else has to find out whether it is a sample. A dict is handed back as it is."""
        if type(value) is not self._form or len(value) != len(self._fields):
            return None
        named: Any = value if self._form is dict else dict(zip(self._names, value, strict=True))
        for name, dtype, shape, scalars in self._fields:
            found = named.get(name)
            kind = type(found)
            if kind is np.ndarray:
                if found.shape != shape or (found.dtype is not dtype and found.dtype != dtype):  # type: ignore[union-attr] # it is an array
                    return None
            elif kind not in scalars or (kind is int and not -(1 << 63) <= found < 1 << 63):  # type: ignore[operator] # it is an int
                return None
        return named


def _scalars(kind: Any, shape: tuple[int, ...]) -> tuple[type, ...]:
    """The types whose values may stand for an array of this dtype (or the type) and shape."""
    if kind is str:
        return (str,)
    python = {"int64": int, "float64": float, "complex128": complex, "bool": bool}.get(kind.name)
    return () if shape else (kind.type,) if python is None else (kind.type, python)


def check_fit(sample: Sample, specs: tuple[FieldSpec, ...], collated: bool, where: str) -> None:
    """Raises SampleFault ("check") naming the first field that differs, both sides of it, and `where` the data is."""
    found = {spec.name: spec for spec in specs_of(sample, collated)}
    wanted = {spec.name: spec for spec in specs}
    missing, extra = [n for n in wanted if n not in found], [n for n in found if n not in wanted]
    if missing or extra:
        lost = f"has no field {', '.join(map(repr, missing))}" if missing else ""
        more = f"has a field {', '.join(map(repr, extra))} more" if extra else ""
        raise _fault(f"{where}: the sample {' and '.join(filter(None, (lost, more)))} than the stream's first one")
    for name, spec in wanted.items():
        other = found[name]
        same = other.kind == spec.kind and other.dtype == spec.dtype and (collated or other.shape == spec.shape)
        if not same:
            hint = "" if collated or other.dtype != spec.dtype or other.kind != spec.kind else _hint(spec)
            raise _fault(
                f"{where}: field {name!r} is {_words(other, not collated)}, in the stream's first sample it is "
                f"{_words(spec, not collated)}{hint}"
            )


def _hint(spec: FieldSpec) -> str:
    if spec.image:
        return "; bring all to one size (resize with [height, width], or a crop), or use a collate function"
    return "; pad it to one shape, or use a collate function"


def batch_specs(batch: Mapping[str, Any], images: frozenset[str] | set[str]) -> tuple[FieldSpec, ...]:
    """The fields of a collated batch: dtype and shape of one row as this batch has them; others may have other shapes."""
    specs: list[FieldSpec] = []
    for name, value in batch.items():
        if isinstance(value, np.ndarray):
            picture = name in images and value.ndim == 4 and value.shape[3] in (1, 3, 4) and value.dtype.name in ("uint8", "float32")
            specs.append(FieldSpec(name, value.dtype.str, value.shape[1:], image=picture))
        else:
            specs.append(FieldSpec(name, "", (), "bytes" if value and isinstance(value[0], bytes) else "text"))
    return tuple(specs)
