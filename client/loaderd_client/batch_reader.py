"""From a descriptor to what the user holds: arrays or tensors, without a copy where that can be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np

from loaderd_client.batch import DictBatch, TupleBatch, as_indices, as_keys, describe
from loaderd_client.shared_memory import SegmentView, Slot
from loaderd_wire.errors import ConfigError, ProtocolError
from loaderd_wire.hints import few
from loaderd_wire.limits import CLIENT_FIELDS, INDEX_FIELD, KEY_FIELD, REPEATED_FIELD
from loaderd_wire.messages import Descriptor, Welcome
from loaderd_wire.slot_reader import (
    Array,
    ChunkMap,
    SlotReader,
    array_description,
    stored_keys,
    text_values,
    unpack_chunks,
)
from loaderd_wire.slots import FieldSpec, itemsize

PRIVATE_BYTES = 64 << 10  # an array up to this size is copied: who collects labels pins nothing
Show: TypeAlias = Callable[[Array], Any]


@dataclass(frozen=True, slots=True)
class Shown:
    """One field of the batches.

    Attributes:
        name: Name of the field.
        kind: "array", "text", "bytes", or the name of a field that the client adds.
        place: Its place among the slot's arrays, None if it has none.
        show: Makes of an array what the user wants.
    """

    name: str
    kind: str
    place: int | None
    show: Show


class BatchReader:
    """How the batches of one session are read.

    Attributes:
        arrays: The fields of kind "array" in the order in which they lie in a slot.
    """

    def __init__(
        self, welcome: Welcome, fields: tuple[str, ...] | None, as_tuple: bool | None, output: str
    ) -> None:
        """Check the fields. torch is not imported yet.

        Args:
            welcome: What the daemon says of the stream.
            fields: Names of the fields to deliver; None: all.
            as_tuple: True for tuples, False for dicts, None as the stream says.
            output: "torch" or "numpy".

        Raises:
            ConfigError: The stream lacks a field.
            ProtocolError: The fields of the welcome cannot be.
        """
        _check_specs(welcome)
        self.arrays = (
            () if welcome.collated else tuple(s for s in welcome.specs if s.kind == "array")
        )
        self._collated = welcome.collated
        self._stored = welcome.keys == "stored"
        self._tuple = welcome.form == "tuple" if as_tuple is None else as_tuple
        self._to_user: Show = _same
        self._to_picture: Show = _same
        self._text = False
        self._specs = specs = {s.name: s for s in welcome.specs}
        names = tuple(specs) if fields is None else fields
        missing = [n for n in names if n not in specs and n not in CLIENT_FIELDS]
        if missing:
            raise ConfigError(
                f"fields={list(names)!r}: this stream has no {missing[0]!r}; it has "
                f"{few([repr(spec) for spec in specs])}"
            )
        self._names, self._output = names, output
        # before the first batch: torch may not have been imported yet
        self._shown: tuple[Shown, ...] = ()

    def read(
        self, slots: SegmentView, batch: Descriptor, step: int, *, lend: bool, repeated: bool
    ) -> tuple[DictBatch[Any] | TupleBatch[Any], Any, int]:
        """Make a batch of a slot.

        Args:
            slots: The segment.
            batch: The descriptor.
            step: Number of its step.
            lend: Large arrays may be views of the slot. Else everything is copied.
            repeated: Another rank has its rows, too.

        Returns:
            The batch; the slot, if any part of the batch is a view of it, for `shared_memory.lend`,
            else None; and the bytes of its arrays.

        Raises:
            ConfigError: torch does not know the dtype of a field.
            ProtocolError: The slot does not hold what the descriptor says.
        """
        if not self._shown:
            self._prepare()
        rows = batch.filled
        slot, reader = slots.slot(batch), slots.reader
        own = slots.indices(batch)
        parts = (
            [reader.tail(slot, c.offset, c.size) for c in batch.chunks if c.size]
            if batch.chunks
            else []
        )
        maps = unpack_chunks(parts) if self._text or self._collated else []
        if self._collated and rows and not maps:
            raise ProtocolError("a collated batch without a description")
        make_keys = partial(_keys, parts, rows) if self._stored else None
        values: dict[str, Any] = {}
        cuts = reader.cuts(rows)
        total, lent = 0, False
        for field in self._shown:
            if field.place is not None:
                shape, dtype, offset, size = cuts[field.place]
                view: Any = np.ndarray(shape, dtype, slot, offset)
                if lend and size > PRIVATE_BYTES:
                    lent = True
                else:
                    view = view.copy()
                values[field.name] = field.show(view)
                total += size
            elif field.kind in ("array", "list"):
                found = (
                    self._described(reader, slot, field, maps)
                    if rows
                    else self._without_rows(field)
                )
                values[field.name], size, pins = _collated(found, field.show, lend)
                total += size
                lent = lent or pins
            elif field.kind == REPEATED_FIELD:
                values[field.name] = field.show(np.full(rows, repeated))
            else:
                values[field.name] = self._other(field, own, make_keys, maps, rows)
        made: DictBatch[Any] | TupleBatch[Any] = (
            TupleBatch(values.values()) if self._tuple else DictBatch(values)
        )
        describe(made, batch.epoch, step, rows, own, make_keys, batch.bad)
        return made, slot if lent else None, total

    def _prepare(self) -> None:
        """Raises ConfigError for a field that torch does not know."""
        if self._output == "torch":
            from loaderd_client import torch_backend

            self._to_user, self._to_picture = torch_backend.tensor, torch_backend.picture
            for spec in self.arrays:
                if spec.name in self._names:
                    torch_backend.check_dtype(spec.name, np.dtype(spec.dtype))
        places = {s.name: i for i, s in enumerate(self.arrays)}
        shown = tuple(self._shown_as(self._specs.get(n), n, places.get(n)) for n in self._names)
        self._text = any(s.kind in ("text", "bytes") for s in shown)
        self._shown = shown

    def _other(
        self,
        field: Shown,
        own: bytes,
        make_keys: Callable[[], list[str]] | None,
        maps: list[ChunkMap],
        rows: int,
    ) -> Any:
        """A field that is no array: the indices, the keys, or texts."""
        if field.kind == INDEX_FIELD:
            return field.show(as_indices(own))
        if field.kind == KEY_FIELD:
            return as_keys(own) if make_keys is None else make_keys()
        return text_values(maps, field.name, None if self._collated else rows)

    def _described(self, reader: SlotReader, slot: Slot, field: Shown, maps: list[ChunkMap]) -> Any:
        """An array of a collated batch, where any field may be either, perhaps a list of texts."""
        described = array_description(maps, field.name)
        if described is None:
            return text_values(maps, field.name, None)
        return reader.collated(slot, described)

    def _without_rows(self, field: Shown) -> Array | list[Array]:
        """What the field of a collated batch is where no row is left to be collated."""
        spec = self._specs[field.name]
        if field.kind == "list":
            return []
        return np.empty((0, *spec.shape), spec.dtype)

    def _shown_as(self, spec: FieldSpec | None, name: str, place: int | None) -> Shown:
        if spec is None:
            return Shown(name, name, None, self._to_user)
        picture = spec.image and (len(spec.shape) == 3 or spec.kind == "list")
        return Shown(name, spec.kind, place, self._to_picture if picture else self._to_user)


def _collated(found: Any, show: Show, lend: bool) -> tuple[Any, int, bool]:
    """A field of a collated batch, as the user wants it.

    Args:
        found: An array, or a list of texts or of arrays.
        show: Makes of an array what the user wants.
        lend: Large arrays may be views of the slot. Else everything is copied.

    Returns:
        (the field, bytes of its arrays, whether one of them is a view of the slot).
    """
    if isinstance(found, list):
        values, size, largest = _list(cast("list[Any]", found), show, lend)
        return values, size, lend and largest > PRIVATE_BYTES
    pins = lend and found.nbytes > PRIVATE_BYTES
    return show(found if pins else found.copy()), found.nbytes, pins


def _list(found: list[Any], show: Show, lend: bool) -> tuple[list[Any], int, int]:
    """(the texts, or the arrays as the user wants them; bytes of all arrays; of the largest)."""
    if not found or not isinstance(found[0], np.ndarray):
        return found, 0, 0
    shown = [show(a if lend and a.nbytes > PRIVATE_BYTES else a.copy()) for a in found]
    sizes = [a.nbytes for a in found]
    return shown, sum(sizes), max(sizes)


def _same(value: Array) -> Array:
    return value


def _keys(parts: list[bytes], rows: int) -> list[str]:
    return stored_keys(unpack_chunks(parts), rows)


def _check_specs(welcome: Welcome) -> None:
    names = [s.name for s in welcome.specs]
    if len(set(names)) != len(names):
        raise ProtocolError(f"fields of the same name: {names}")
    for spec in welcome.specs:
        if spec.kind not in ("array", "text", "bytes", "list"):
            raise ProtocolError(f"field {spec.name!r} is of unknown kind {spec.kind!r}")
        if spec.kind == "array" and not welcome.collated:
            try:
                itemsize(spec.dtype)
            except ValueError as error:
                raise ProtocolError(f"field {spec.name!r}: {error}") from None
