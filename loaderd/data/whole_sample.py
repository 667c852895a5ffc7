"""A sample of a stream whose batches are collated.

It goes to the collate function as its dataset returned it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from loaderd.config.decode_modes import DecodeModes
from loaderd.config.stream import StreamConfig
from loaderd.data.sample import BadValue, Sample, field_name, flatten, is_picture, leaf

MOST_NESTED = 32  # containers within containers that are looked into


@dataclass(frozen=True, slots=True)
class WholeSample:
    """What a collate function gets for one sample: an object of any kind, None included."""

    value: Any


def top_fields(value: Any, mode: str | DecodeModes) -> tuple[Sample, str]:
    """The fields of such a sample, for transforms and statistics, and its form.

    Only the top level becomes fields. Arrays, tensors, numbers, pictures, str and bytes become what
    `flatten` makes of them. Anything else stays as it is: containers, None, objects of any class.

    Args:
        value: What the dataset returned.
        mode: How pictures become pixels.

    Returns:
        The fields, and "dict", "tuple" (also of a list), or "single" for what is no container.

    Raises:
        BadValue: Two fields have one name, or a picture's numbers would be lost.
    """
    pairs: Any = ((0, value),)
    form = "single"
    if isinstance(value, Mapping):
        pairs, form = value.items(), "dict"
    elif isinstance(value, (tuple, list)):
        pairs, form = enumerate(value), "tuple"
    sample = Sample()
    for key, item in pairs:
        name = field_name(key)
        if name in sample:
            raise BadValue(f"two fields are called {name!r}")
        try:
            leaf(item, name, mode, sample)
        except BadValue:
            if is_picture(item):
                raise
            sample[name] = item
    return sample, form


def top_values(value: Any) -> dict[str, Any]:
    """What a sample holds at its top, by the names that `top_fields` gives, as it is."""
    if isinstance(value, Mapping):
        return {str(name): item for name, item in value.items()}
    values = value if isinstance(value, (tuple, list)) else (value,)
    return {str(at): item for at, item in enumerate(values)}


def fields_maker(plan: StreamConfig) -> Callable[[Any, str | DecodeModes], tuple[Sample, str]]:
    """What makes a sample of what code of the user's returned: `top_fields` or `flatten`."""
    return top_fields if plan.whole_samples else partial(flatten, arrays=plan.free_fields)


def as_returned(fields: Mapping[str, Any], form: str) -> Any:
    """The sample of these fields in the form that its dataset gave it.

    It is a dict where the names no longer fit that form.
    """
    if form == "tuple" and all(name == str(at) for at, name in enumerate(fields)):
        return tuple(fields.values())
    if form == "single" and list(fields) == ["0"]:
        return fields["0"]
    return dict(fields)


def numbers_in(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, np.ndarray]]:
    """(name, array) of every array, tensor and float in a sample.

    They are found however the sample is nested in containers.
    """
    torch = sys.modules.get("torch")
    if isinstance(value, (np.ndarray, np.floating, np.complexfloating, float, complex)):
        yield name or "0", np.asarray(value)
    elif isinstance(value, (Mapping, list, tuple)):
        if depth < MOST_NESTED:
            pairs: Any = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, item in pairs:
                yield from numbers_in(item, f"{name}.{key}" if name else str(key), depth + 1)
    elif torch is not None and isinstance(value, torch.Tensor):
        wide = torch.complex128 if value.is_complex() else torch.float64
        yield name or "0", value.detach().cpu().to(wide).resolve_conj().numpy()
