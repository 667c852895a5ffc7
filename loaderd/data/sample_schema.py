"""The fields of a stream's samples, and whether another sample fits them.

The first good sample of the stream fixes them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from loaderd.data.errors import SampleFault
from loaderd.data.sample import Sample
from loaderd_wire.slots import FieldSpec

TYPES = {"text": str, "bytes": bytes}


class SampleSchema:
    """What every sample of a stream must be.

    Attributes:
        specs: The fields, in the order of the stream's first good sample.
        types: Of each field its numpy dtype, or str, or bytes.
    """

    def __init__(
        self,
        specs: tuple[FieldSpec, ...],
        *,
        collated: bool,
        where: str,
        free: Collection[str] = (),
    ) -> None:
        """Fix the fields.

        Args:
            specs: The fields.
            collated: Whether a collate function makes the batches; then shapes may differ.
            where: The path or class of the data, for the text of faults.
            free: Fields of which only the number of axes is fixed, where samples are not collated.
        """
        self.specs = specs
        self._collated = collated
        self._free = frozenset(free)
        self._where = where
        self.types = tuple(TYPES.get(spec.kind) or np.dtype(spec.dtype) for spec in specs)
        self._fields = [
            (spec.name, kind, spec.shape) for spec, kind in zip(specs, self.types, strict=True)
        ]

    @classmethod
    def of(cls, sample: Sample, *, collated: bool, where: str) -> SampleSchema:
        """The schema that this sample fixes."""
        specs: list[FieldSpec] = []
        for name, value in sample.items():
            if isinstance(value, np.ndarray):
                specs.append(
                    FieldSpec(name, value.dtype.str, value.shape, image=name in sample.images)
                )
            else:
                specs.append(FieldSpec(name, "", (), "text" if isinstance(value, str) else "bytes"))
        return cls(tuple(specs), collated=collated, where=where)

    def check(self, sample: Sample) -> None:
        """Raises SampleFault ("check") naming the first field that differs, and both sides.

        Its presence, dtype or (unless `collated`) shape may differ.
        """
        if not self._matches(sample):
            self._compare(sample)

    def take_empty(self, sample: Sample) -> None:
        """Free fields without elements get the dtype and the further axes of the first sample.

        An empty list says nothing of them.
        """
        for spec in self.specs:
            value = sample.get(spec.name)
            if spec.name in self._free and isinstance(value, np.ndarray) and not value.size:
                sample[spec.name] = np.empty((0, *spec.shape[1:]), spec.dtype)

    def _matches(self, sample: Sample) -> bool:
        """Fast path: whether the sample fits and has its fields in the order of the schema.

        Nearly all samples do.
        """
        if len(sample) != len(self._fields):
            return False
        for (name, kind, shape), (found, value) in zip(self._fields, sample.items(), strict=True):
            if found != name:
                return False
            if type(value) is np.ndarray:
                if value.dtype != kind or not (
                    self._collated
                    or value.shape == shape
                    or (name in self._free and value.ndim == len(shape))
                ):
                    return False
            elif type(value) is not kind:
                return False
        return True

    def _compare(self, sample: Sample) -> None:
        other = SampleSchema.of(sample, collated=self._collated, where=self._where)
        found, wanted = ({spec.name: spec for spec in schema.specs} for schema in (other, self))
        missing, extra = (
            [n for n in wanted if n not in found],
            [n for n in found if n not in wanted],
        )
        if missing or extra:
            first = "the stream's first one"
            lost = f"has no field {', '.join(map(repr, missing))}, which {first} has"
            more = f"has a field {', '.join(map(repr, extra))} more than {first}"
            differs = [text for names, text in ((missing, lost), (extra, more)) if names]
            raise _fault(f"{self._where}: the sample {', and '.join(differs)}")
        for name, spec in wanted.items():
            self._compare_field(found[name], spec)

    def _compare_field(self, found: FieldSpec, wanted: FieldSpec) -> None:
        shapes = not self._collated
        same_type = (found.kind, found.dtype) == (wanted.kind, wanted.dtype)
        fits = found.shape == wanted.shape or not shapes
        free = wanted.name in self._free and len(found.shape) == len(wanted.shape)
        if same_type and (fits or free):
            return
        hint = _hint(wanted) if same_type else ""
        if shapes and found.kind == wanted.kind == "array" and not same_type:
            hint = "; convert it to one dtype, in the dataset or in a transform"
        raise _fault(
            f"{self._where}: field {wanted.name!r} is {_words(found, shapes)}, in the stream's "
            "first sample it is "
            f"{_words(wanted, shapes)}{hint}"
        )


class RawMatcher:
    """Fast path: copies a sample from user code into the slot.

    That is done if it already has the schema's exact dtypes and shapes.
    """

    def __init__(self, schema: SampleSchema, form: str) -> None:
        """Prepare for a schema.

        Args:
            schema: Without fields of bytes: those may be a stored image and are decoded.
            form: "dict" or "tuple", as user code returns samples.
        """
        self._form = tuple if form == "tuple" else dict
        specs = schema.specs
        self._fields = [
            (spec.name, kind, spec.shape, _scalars(kind, spec.shape))
            for spec, kind in zip(specs, schema.types, strict=True)
        ]
        self._names = [spec.name for spec in specs]

    def take(self, value: Any) -> dict[str, Any] | None:
        """The value as field -> array, text or number, if it can be copied as it is; else None.

        A number stands for an array without axes that can hold it. A dict is returned itself, not a
        copy. None says only that the value must
        be examined in full: it may still be a good sample.
        """
        if type(value) is not self._form or len(value) != len(self._fields):
            return None
        named: Any = value if self._form is dict else dict(zip(self._names, value, strict=True))
        for name, dtype, shape, scalars in self._fields:
            found = named.get(name)
            kind = type(found)
            if kind is np.ndarray:
                if found.shape != shape or (found.dtype is not dtype and found.dtype != dtype):
                    return None
            elif kind not in scalars or (kind is int and not -(1 << 63) <= found < 1 << 63):
                return None
        return named


def _fault(text: str) -> SampleFault:
    return SampleFault("check", "BadValue", text)


def _words(spec: FieldSpec, shapes: bool) -> str:
    if spec.kind != "array":
        return spec.kind
    return f"{np.dtype(spec.dtype)} of shape {spec.shape}" if shapes else str(np.dtype(spec.dtype))


def _hint(spec: FieldSpec) -> str:
    if spec.image:
        return (
            "; bring all to one size (resize with [height, width], or a crop), or use a "
            "collate function"
        )
    return "; pad it to one shape, or use a collate function"


def _scalars(kind: Any, shape: tuple[int, ...]) -> tuple[type, ...]:
    """The types whose values may stand for an array of this dtype (or the type) and shape."""
    if kind is str:
        return (str,)
    python = {"int64": int, "float64": float, "complex128": complex, "bool": bool}.get(kind.name)
    return () if shape else (kind.type,) if python is None else (kind.type, python)
