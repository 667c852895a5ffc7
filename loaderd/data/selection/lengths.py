"""The lengths of a stream's samples, read once and kept, and the samples sorted by them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from loaderd.core.bucket_plan import LengthClass
from loaderd.core.buckets import length_classes
from loaderd.data.errors import SampleFault, SourceError
from loaderd.data.selection.selection import Tick
from loaderd.data.selection.tables import open_table, write_table
from loaderd.system.cache_folder import cache_folder, mark_used

Ints = NDArray[np.int64]

EVERY = 256  # samples between two ticks


class Readable(Protocol):
    """What lengths are read from: a `Source`."""

    identity: str

    @property
    def state(self) -> str:
        """What of its file must stay as it is; "" where it has none."""
        ...

    def read(self, index: int) -> Any:
        """A sample as it is stored."""
        ...

    def key(self, index: int) -> str:
        """Its name."""
        ...


def ranked(
    source: Readable, indices: Ints, field: str, tick: Tick, *, lenient: bool, recipe: str
) -> tuple[Ints, tuple[LengthClass, ...]]:
    """Some samples from the shortest to the longest, and the classes of their lengths.

    Args:
        source: The dataset.
        indices: int64[n], the samples.
        field: The field that has the length, or is a number that says it.
        tick: Called now and then.
        lenient: A sample that cannot be read counts as one of length 0. Else it is an error.
        recipe: What makes a sample of what the file holds; "" where that is code that may change,
            so that lengths are read each time.

    Lengths are kept only where each sample could be read.

    Returns:
        int64[n], the same indices; the classes, from the shortest.

    Raises:
        SourceError: A sample cannot be read, or has no such length.
    """
    name = _name(source, indices, [field, recipe, lenient]) if recipe else ""
    lengths = _known(name, len(indices))
    if lengths is None:
        lengths, failed = _read(source, indices, field, tick, lenient=lenient)
        if not failed:  # else it may be read the next time
            _keep(name, lengths)
    order = np.argsort(lengths, kind="stable")
    return indices[order], length_classes(lengths[order])


def _read(
    source: Readable, indices: Ints, field: str, tick: Tick, *, lenient: bool
) -> tuple[Ints, int]:
    """int64[n], the lengths; how many samples could not be read."""
    lengths, failed = np.zeros(len(indices), np.int64), 0
    for place, index in enumerate(indices.tolist()):
        if place % EVERY == 0:
            tick(place)
        try:
            sample = source.read(index)
            if field not in sample:
                names = ", ".join(map(repr, sample))
                raise SourceError(
                    f"bucket_by = {json.dumps(field)}: samples have no such field; they have "
                    f"{names}"
                )
            lengths[place] = _length(sample[field])
        except SourceError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
            if not lenient:
                raise SourceError(
                    f"bucket_by = {json.dumps(field)} needs the length of every sample: sample "
                    f"{source.key(index)!r}: {SampleFault.of('read', error).message}"
                ) from None
            failed += 1
    return lengths, failed


def _length(value: Any) -> int:
    """The number itself, or how many elements there are on the first axis.

    Raises:
        ValueError: It is neither.
    """
    shape = getattr(value, "shape", None)
    if shape == () and value.dtype.kind in "iu":
        length = int(value)
    elif shape is None or len(shape) > 0:
        length = len(value)
    else:
        raise ValueError(f"a {type(value).__name__} is no length and has none")
    if length < 0:
        raise ValueError(f"{length} is no length")
    return length


def _name(source: Readable, indices: Ints, how: list[Any]) -> str:
    """Where it is written which table has these lengths; "" where the data may change unseen."""
    if not source.state:
        return ""
    told = json.dumps([source.identity, source.state, *how])
    digest = hashlib.blake2b(told.encode(), digest_size=16)
    digest.update(np.ascontiguousarray(indices).data)
    return os.path.join(cache_folder(os.environ, "orders"), f"{digest.hexdigest()}.lengths")


def _known(name: str, count: int) -> Ints | None:
    try:
        with open(name, encoding="utf-8") as file:
            path = os.path.join(os.path.dirname(name), file.read())
        table = open_table(path)
    except (OSError, ValueError, SourceError):
        return None
    for each in (name, path):
        mark_used(each)
    return table if len(table) == count else None


def _keep(name: str, lengths: Ints) -> None:
    if not name:
        return
    table = os.path.basename(write_table(lengths))
    with contextlib.suppress(OSError):  # they are read again the next time
        part = f"{name}.{os.getpid()}"
        with open(part, "w", encoding="utf-8") as file:
            file.write(table)
        os.replace(part, name)
