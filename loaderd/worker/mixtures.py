"""Whether the sources of a mixture go together, as they were found to be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loaderd.config.stream import StreamConfig
from loaderd.core.class_names import disagreement
from loaderd.data.errors import SourceError
from loaderd.engine.messages import StreamInfo
from loaderd_wire.slots import FieldSpec


def check_alike(plan: StreamConfig, found: Sequence[StreamInfo]) -> None:
    """Compare each source with the first one.

    Args:
        plan: The mixture.
        found: What each of its sources is, in their order.

    Raises:
        SourceError: Fields, dtypes, shapes or class names differ; the text names source and field.
    """
    first = found[0]
    for other in found[1:]:
        if first.form != other.form:
            raise _unlike(
                f"samples of {first.stream!r} are a {first.form}, those of {other.stream!r} a "
                f"{other.form}"
            )
        if plan.collate == "stack":
            _check_fields(plan, first, other)
    text = disagreement({info.stream: info.classes for info in found})
    if text:
        raise SourceError(f"a mixture needs sources with the same classes: {text}")


def _check_fields(plan: StreamConfig, first: StreamInfo, other: StreamInfo) -> None:
    ours = {spec.name: spec for spec in first.sample_specs}
    theirs = {spec.name: spec for spec in other.sample_specs}
    for name in (*ours, *theirs):
        if name not in ours or name not in theirs:
            has, lacks = (first, other) if name in ours else (other, first)
            raise _unlike(f"{has.stream!r} has a field {name!r}, which {lacks.stream!r} lacks")
        free = name in plan.free_fields
        mine, its = _described(ours[name], free=free), _described(theirs[name], free=free)
        if mine != its:
            raise _unlike(
                f"field {name!r} is {mine} in {first.stream!r}, {its} in {other.stream!r}"
            )


def _described(spec: FieldSpec, *, free: bool) -> str:
    if spec.kind != "array":
        return spec.kind
    shape = f"of {len(spec.shape)} axes" if free else f"of shape {spec.shape}"
    return f"{'a picture, ' if spec.image else ''}{np.dtype(spec.dtype)} {shape}"


def _unlike(text: str) -> SourceError:
    return SourceError(
        f"a mixture needs sources with the same fields: {text}; make them alike with transforms of "
        "the sources, or with pad, ragged or collate on the mixture"
    )
