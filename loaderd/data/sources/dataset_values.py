"""What tells one content of a map-style dataset from another of equal class, arguments and length.

A reordered CSV is such another content. Where the dataset has no fingerprint of its own, it is what
the dataset holds a table of, such as a list of paths and labels. Where it holds none, it is the
labels and texts of a few samples.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from loaderd.data.errors import ANYTHING
from loaderd_wire.facts import MADE

ENTRIES = 64  # of a table that are looked at, spread over it
DEEPEST = 4  # datasets in datasets, lists in lists
MOST = 64  # parts of a sample, datasets that are joined
MOST_BYTES = 16 << 10  # of a value that are looked at
SEEDS = 0, 1  # what differs between them is random, and says nothing of the data


def own_fingerprint(dataset: Any) -> str:
    """What the dataset itself says of its content: `__fingerprint__`, or `fingerprint()`.

    Returns:
        "" if it says nothing.

    Raises:
        Exception: What its method raises.
    """
    for name in ("__fingerprint__", "fingerprint"):
        found = getattr(dataset, name, None)
        if callable(found):
            try:
                inspect.signature(found).bind()
            except (TypeError, ValueError):
                continue  # it wants arguments: this is something else
            found = found()
        if isinstance(found, (str, bytes)) or type(found) is int:
            return hashlib.sha256(f"{found!r}".encode("utf-8", "backslashreplace")).hexdigest()[:32]
    return ""


def of_tables(dataset: Any, total: int) -> str:
    """A hash over the tables that a dataset holds.

    Those are entries of lists, arrays and data frames that are as long as it is. None of its
    methods is called.

    Returns:
        "" if it holds none.
    """
    digest = hashlib.sha256()
    found = False
    for name, entries in _tables(dataset, total, DEEPEST):
        said = [_plain(entry) for entry in entries]
        if any(one is not None for one in said):
            found = True
            digest.update(f"{name}\0{said!r}\0".encode("utf-8", "backslashreplace"))
    return digest.hexdigest()[:32] if found else ""


def of_samples(make: Callable[[int, int], Any], indices: Sequence[int]) -> str:
    """A hash over the numbers, texts and short rows of some samples.

    Pictures are left out, and what another seed changes: augmentations draw that, and an edit of
    their code is no other data.

    Args:
        make: From (seed, index) to what the dataset returns.
        indices: Of samples that can be made.

    Returns:
        It begins with MADE. "" if nothing is left.
    """
    made = [[_parts_of(make, seed, index) for seed in SEEDS] for index in indices]
    random = {
        name
        for first, second in made
        for name in {*first, *second}
        if first.get(name) != second.get(name)
    }
    said = [
        {name: value for name, value in sorted(first.items()) if name not in random}
        for first, _ in made
    ]
    if not any(said):
        return ""
    return MADE + hashlib.sha256(repr(said).encode("utf-8", "backslashreplace")).hexdigest()[:32]


def _tables(holder: Any, total: int, depth: int) -> Iterator[tuple[str, Iterable[Any]]]:
    """(name, entries that are looked at) of each table in the attributes of a dataset."""
    for name, value in sorted(getattr(holder, "__dict__", {}).items()):
        yield from _in_value(name, value, total, depth)


def _in_value(name: str, value: Any, total: int, depth: int) -> Iterator[tuple[str, Iterable[Any]]]:
    try:
        if _is_table(value) and len(value) == total:
            rows, count = getattr(value, "iloc", value), min(ENTRIES, total)
            places = [at * (total - 1) // max(1, count - 1) for at in range(count)]
            yield name, [_entry(rows[place]) for place in places]
        elif isinstance(value, (list, tuple)) and len(value) <= MOST and depth:
            for number, inner in enumerate(value):
                yield from _in_value(f"{name}.{number}", inner, total, depth - 1)
        elif _is_dataset(value) and depth:
            for below, entries in _tables(value, len(value), depth - 1):
                yield f"{name}.{below}", entries
    except ANYTHING:  # an object of somebody else's that only looks like a table
        return


def _is_table(value: Any) -> bool:
    if isinstance(value, (list, tuple, range, np.ndarray)):
        return True
    kind = type(value)
    return (kind.__module__.partition(".")[0], kind.__name__) in {
        ("torch", "Tensor"),
        ("pandas", "DataFrame"),
        ("pandas", "Series"),
    }


def _is_dataset(value: Any) -> bool:
    kind: Any = type(value)
    return (
        hasattr(kind, "__getitem__")
        and hasattr(kind, "__len__")
        and hasattr(value, "__dict__")
        and not _is_table(value)
    )


def _entry(row: Any) -> Any:
    """A row of a data frame as a list; anything else as it is."""
    return row.tolist() if type(row).__module__.startswith("pandas") else row


def _plain(value: Any, depth: int = DEEPEST) -> Any:
    """A value as one whose `repr` is the same in any process; None for an object of any class."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        # the same data elsewhere
        return os.sep.join(value.split(os.sep)[-2:]) if value.startswith(os.sep) else value
    if isinstance(value, bytes):
        return value[:MOST_BYTES]
    if value is None or isinstance(value, (bool, int, float, complex)):
        return repr(value)
    if isinstance(value, (list, tuple)) and depth:
        return [_plain(one, depth - 1) for one in value[:MOST]]
    if isinstance(value, Mapping) and depth:
        return [[str(key), _plain(one, depth - 1)] for key, one in list(value.items())[:MOST]]
    if hasattr(value, "ndim") and hasattr(value, "dtype"):
        try:
            array = np.asarray(value)
        except ANYTHING:  # of a dtype that numpy has not, or on another device
            return None
        if array.dtype.kind in "biufcSUmM":
            return [array.dtype.str, array.shape, array.tobytes()[:MOST_BYTES]]
    return None


def _parts_of(make: Callable[[int, int], Any], seed: int, index: int) -> dict[str, Any]:
    """What of a sample says which it is, by name."""
    try:
        value = make(seed, index)
    except ANYTHING as error:
        return {"": type(error).__name__}
    found: dict[str, Any] = {}
    _flatten("", value, DEEPEST, found)
    return found


def _flatten(name: str, value: Any, depth: int, found: dict[str, Any]) -> None:
    if len(found) >= MOST:
        return
    if isinstance(value, Mapping) and depth:
        for key, one in value.items():
            _flatten(f"{name}.{key}", one, depth - 1, found)
    elif isinstance(value, (list, tuple)) and depth and len(value) <= MOST:
        for number, one in enumerate(value):
            _flatten(f"{name}.{number}", one, depth - 1, found)
    elif getattr(value, "ndim", 0) < 2:
        plain = _plain(value)
        if plain is not None:
            found[name] = plain
