"""From a descriptor to what the user holds: arrays or tensors, without a copy where that can be."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from loaderd_client.batch import DictBatch, TupleBatch, as_indices, as_keys, describe
from loaderd_client.devices.interface import Uses
from loaderd_client.devices.placement import Arrival, Placement
from loaderd_client.shared_memory import SegmentView, Slot
from loaderd_wire.errors import ConfigError, ProtocolError
from loaderd_wire.hints import few
from loaderd_wire.limits import (
    CLIENT_FIELDS,
    INDEX_FIELD,
    KEY_FIELD,
    PART_FIELD,
    REPEATED_FIELD,
    SOURCE_FIELD,
)
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


class Made(NamedTuple):
    """What is made of a slot.

    Attributes:
        batch: The batch.
        slot: The slot, if a part of the batch is a view of it or is still copied from it, for
            `SessionMemory.lend`; else None.
        bytes: Size of the batch's arrays.
        arrival: The batch is on its way to a device; or None.
        uses: What keeps in mind which work of a device reads the slot; or None.
    """

    batch: DictBatch[Any] | TupleBatch[Any]
    slot: Slot | None
    bytes: int
    arrival: Arrival | None = None
    uses: Uses | None = None


class BatchReader:
    """How the batches of one session are read.

    Attributes:
        arrays: The fields of kind "array" in the order in which they lie in a slot.
    """

    def __init__(
        self,
        welcome: Welcome,
        fields: tuple[str, ...] | None,
        as_tuple: bool | None,
        output: str,
        placement: Placement,
    ) -> None:
        """Check the fields. torch is not imported yet.

        Args:
            welcome: What the daemon says of the stream.
            fields: Names of the fields to deliver; None: all.
            as_tuple: True for tuples, False for dicts, None as the stream says.
            output: "torch" or "numpy".
            placement: Where the batches are put.

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
        self._placement = placement
        self._pictures: frozenset[str] = frozenset()  # of images, which a device gets as they lie
        self._to_user: Show = _same
        self._to_picture: Show = _same
        self._text = False
        self._specs = specs = {s.name: s for s in welcome.specs}
        self._sources = welcome.source_names
        self._source_offsets = np.array(welcome.source_offsets, np.int64)
        if fields is None:
            # a tuple has the fields of its samples alone
            names = (*specs, SOURCE_FIELD) if self._sources and not self._tuple else tuple(specs)
        else:
            names = fields
        if SOURCE_FIELD in names and not self._sources:
            raise ConfigError(
                f"fields={list(names)!r}: {SOURCE_FIELD!r} is a field of mixtures, and this stream "
                "is none: leave it out"
            )
        missing = [n for n in names if n not in specs and n not in CLIENT_FIELDS]
        if missing:
            raise ConfigError(
                f"fields={list(names)!r}: this stream has no {missing[0]!r}; it has "
                f"{few([repr(spec) for spec in specs])}"
            )
        self._names, self._output = names, output
        self._parts, self._firsts = welcome.parts or ("",), welcome.firsts
        # before the first batch: torch may not have been imported yet
        self._shown: tuple[Shown, ...] = ()

    def read(
        self, slots: SegmentView, batch: Descriptor, step: int, *, lend: bool, repeated: bool
    ) -> Made:
        """Make a batch of a slot, after `prepare`. Of a group's slot everything is copied.

        Args:
            slots: The segment.
            batch: The descriptor.
            step: Number of its step.
            lend: Large arrays may be views of the slot. Else everything is copied.
            repeated: Another rank has its rows, too.

        Raises:
            ProtocolError: The slot does not hold what the descriptor says.
        """
        placement = self._placement
        shared = slots.shared
        # up to so many bytes an array is copied; for a device the placement does that where needed
        most = -1 if placement.sends else PRIVATE_BYTES if lend and not shared else sys.maxsize
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
                lent = lent or size > most
                values[field.name] = self._array(view, field.show, most)
                total += size
            elif field.kind in ("array", "list"):
                found = (
                    self._described(reader, slot, field, maps)
                    if rows
                    else self._without_rows(field)
                )
                values[field.name], size, pins = self._collated_field(found, field.show, most)
                total += size
                lent = lent or pins
            elif field.kind == REPEATED_FIELD:
                values[field.name] = field.show(np.full(rows, repeated))
            else:
                values[field.name] = self._other(field, own, make_keys, maps, rows)
        arrival = None
        if placement.sends:
            values, arrival = placement.send(values, self._pictures, shared=shared)
            lent = lent and arrival.copied is not None and not shared
        made: DictBatch[Any] | TupleBatch[Any] = (
            TupleBatch(values.values()) if self._tuple else DictBatch(values)
        )
        uses = placement.uses() if lent else None
        describe(made, batch.epoch, step, rows, own, make_keys, batch.bad, uses)
        return Made(made, slot if lent else None, total, arrival, uses)

    def prepare(self) -> None:
        """Get ready for the first batch. Imports torch if tensors are asked for.

        Raises:
            ConfigError: torch does not know the dtype of a field, or there is no such device.
        """
        if self._shown:
            return
        specs = [self._specs[name] for name in self._names if name in self._specs]
        if self._output == "torch":
            from loaderd_client import torch_backend

            for spec in specs:
                if spec.kind == "array" and not self._collated:
                    torch_backend.check_dtype(spec.name, np.dtype(spec.dtype))
            pictures = [spec for spec in specs if _is_picture(spec)]
            self._placement.open(
                {
                    spec.name: spec.shape[-1] if len(spec.shape) == 3 else 0
                    for spec in pictures
                    if np.dtype(spec.dtype) == np.uint8
                }
            )
            if self._placement.sends:
                self._pictures = frozenset(spec.name for spec in pictures)
            else:
                self._to_user, self._to_picture = torch_backend.tensor, torch_backend.picture
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
        """A field that is no array: the indices, the keys, names of sources, or texts."""
        if field.kind == INDEX_FIELD:
            return field.show(as_indices(own))
        if field.kind == SOURCE_FIELD:
            owners = np.searchsorted(self._source_offsets, as_indices(own), side="right") - 1
            return [self._sources[owner] for owner in owners.tolist()]
        if field.kind == KEY_FIELD:
            return as_keys(own) if make_keys is None else make_keys()
        if field.kind == PART_FIELD:
            places = as_indices(own).tolist()
            return [self._parts[bisect_right(self._firsts, index)] for index in places]
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
        show = self._to_picture if _is_picture(spec) else self._to_user
        return Shown(name, spec.kind, place, show)

    def _collated_field(self, found: Any, show: Show, most: int) -> tuple[Any, int, bool]:
        """A field of a collated batch, as the user wants it.

        Args:
            found: An array, or a list of texts or of arrays.
            show: Makes of an array what the user wants.
            most: Arrays up to so many bytes are copied.

        Returns:
            (the field, bytes of its arrays, whether one of them is a view of the slot).
        """
        if not isinstance(found, list):
            return self._array(found, show, most), found.nbytes, found.nbytes > most
        items = cast("list[Any]", found)
        if not items or not isinstance(items[0], np.ndarray):
            return items, 0, False
        sizes = [each.nbytes for each in items]
        return [self._array(each, show, most) for each in items], sum(sizes), max(sizes) > most

    def _array(self, view: Array, show: Show, most: int) -> Any:
        """An array as the user wants it: a view, or a copy if it has at most so many bytes.

        The copy is page-locked where that was asked for.
        """
        if view.nbytes > most:
            return show(view)
        device = self._placement.device
        if device is None or self._placement.sends:
            return show(np.array(view))
        copy = device.pinned(view)
        if show is not self._to_picture:
            return copy
        from loaderd_client import torch_backend

        return torch_backend.channels_first(copy)


def _is_picture(spec: FieldSpec) -> bool:
    return spec.image and (len(spec.shape) == 3 or spec.kind == "list")


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
