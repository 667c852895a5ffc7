"""Shared memory as numpy sees it: a segment mapped, its slots cut, and the lease that hangs on the last view of a slot."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from loaderd_client import forks
from loaderd_wire.errors import ProtocolError
from loaderd_wire.messages import Batch, Segment
from loaderd_wire.slots import MAX_ROWS, FieldSpec, SlotLayout, itemsize, slot_layout

Array: TypeAlias = np.ndarray[Any, Any]
Slot: TypeAlias = Any  # ctypes.Array[c_char], whose stubs hide that it exports its bytes
Lease: TypeAlias = tuple[int, int, int]  # segment, slot, generation
Cut: TypeAlias = tuple[tuple[int, ...], np.dtype[Any], int, int]  # a field of a batch: shape, dtype, offset in the slot, bytes
KEPT = 64  # numbers of rows whose cuts are remembered; nearly all batches have the same


@dataclass(frozen=True, slots=True)
class ArrayField:
    """Where one field lies in every slot."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    row_bytes: int


class Slots:
    """One segment, mapped for reading and writing, as long as this object or any view of a slot lives.

    `specs` are the fields of kind "array" in the order in which they lie (none in a collated stream), `rows` the most a batch has.
    Raises ProtocolError if the memory is not what `segment` says: it is checked before it is mapped, for a file that could shrink
    under us would kill the trainer with a bus error.
    """

    def __init__(self, segment: Segment, fd: int, specs: Sequence[FieldSpec], rows: int) -> None:
        self.segment = segment
        self.layout = _layout(segment, specs, rows)
        self.fields = tuple(_field(s, o) for s, o in zip(self.layout.fields, self.layout.offsets, strict=True))
        size = segment.slots * segment.slot_bytes
        _check_memory(fd, size)
        self.mapping = mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._count, self._rows, self._slot_bytes = segment.slots, self.layout.rows, segment.slot_bytes
        self._type = ctypes.c_char * segment.slot_bytes
        self._cuts: dict[int, tuple[Cut, ...]] = {}

    def cuts(self, rows: int) -> tuple[Cut, ...]:
        """The first `rows` rows of each field, in the order of `fields`: the same for every slot."""
        cuts = self._cuts.get(rows)
        if cuts is None:
            if len(self._cuts) >= KEPT:
                self._cuts.clear()
            cuts = self._cuts[rows] = tuple(((rows, *f.shape), f.dtype, f.offset, rows * f.row_bytes) for f in self.fields)
        return cuts

    def slot(self, batch: Batch) -> Slot:
        """The slot's bytes as the object that its lease hangs on. It is no ndarray: numpy would cut it out of the chains of bases."""
        if batch.slot >= self._count or batch.filled > self._rows:
            raise ProtocolError(f"a batch of {batch.filled} rows in slot {batch.slot}, of {self.segment.slots} for {self.layout.rows} rows")
        return self._type.from_buffer(self.mapping, batch.slot * self._slot_bytes)

    def indices(self, batch: Batch) -> bytes:
        """A private copy of the dataset indices of a batch that `slot` has looked at: little-endian int64, one a row."""
        begin = batch.slot * self._slot_bytes
        return self.mapping[begin : begin + 8 * batch.filled]

    def bytes_of(self, slot: Slot, offset: int, size: int) -> bytes:
        """A copy of [offset, offset + size), which must lie in the slot's tail."""
        if offset < self.layout.tail_offset or offset + size > self.segment.slot_bytes:
            raise ProtocolError(f"bytes [{offset}, {offset + size}) are not in the tail, which begins at {self.layout.tail_offset}")
        return bytes(memoryview(slot)[offset : offset + size])

    def described(self, slot: Slot, dtype: str, shape: Sequence[int], offset: int) -> Array:
        """An array of a collated batch, as its description in the tail says. Raises ProtocolError if it is not within the body."""
        try:
            size = itemsize(dtype)
        except ValueError as error:
            raise ProtocolError(str(error)) from None
        items = 1
        for n in shape:
            items *= n
        begin, end = self.layout.body_offset, self.layout.body_offset + self.layout.body_bytes
        if offset < begin or offset + items * size > end:
            raise ProtocolError(f"array [{offset}, {offset + items * size}) is not within the body [{begin}, {end})")
        flat: Any = np.frombuffer(slot, np.dtype(dtype), items, offset)
        return flat.reshape(tuple(shape))


class Lent(weakref.ref[Any]):
    """A slot that is lent. weakref.finalize does the same at five times the price."""

    __slots__ = ("lease",)
    lease: Lease


_lent: dict[int, Lent] = {}  # a weak reference that nobody holds is not called
forks.keep(lambda: [slot for lent in list(_lent.values()) if (slot := lent()) is not None], _lent.clear)


def lend(slot: Slot, lease: Lease, over: deque[Lent]) -> None:
    """When the last view of the slot is collected, what has this lease is appended to `over`, for `settled` to be told.

    That may happen in any thread, in the middle of any call, or at exit: so it is a function of C that takes no lock and touches no socket (what a
    signal's handler raised in one of Python would be lost, and the slot too); and after a fork it does nothing, for the parent still has its
    views, and the child has copies.
    """
    lent = Lent(slot, over.append)
    lent.lease = lease
    _lent[id(lent)] = lent


def settled(lent: Lent) -> Lease:
    _lent.pop(id(lent), None)
    return lent.lease


def tidy() -> None:
    """Forgets leases that have ended, of sessions that have ended before them."""
    for key in [key for key, lent in list(_lent.items()) if lent() is None]:
        _lent.pop(key, None)


def _layout(segment: Segment, specs: Sequence[FieldSpec], rows: int) -> SlotLayout:
    try:
        layout = slot_layout(specs, rows, tail_row_bytes=segment.tail_row_bytes, body_bytes=segment.body_bytes)
    except ValueError as error:
        raise ProtocolError(f"impossible slots: {error}") from None
    if not 1 <= segment.slots <= MAX_ROWS or layout.slot_bytes > segment.slot_bytes:
        raise ProtocolError(f"slots of {segment.slot_bytes} bytes are too small for {rows} rows of {layout.slot_bytes} bytes: {segment}")
    return layout


def _field(spec: FieldSpec, offset: int) -> ArrayField:
    return ArrayField(spec.name, np.dtype(spec.dtype), spec.shape, offset, spec.row_bytes)


def _check_memory(fd: int, size: int) -> None:
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        raise ProtocolError("the segment is not a memfd") from None
    if not seals & fcntl.F_SEAL_SHRINK:
        raise ProtocolError("the segment is not sealed against shrinking")
    has = os.fstat(fd).st_size
    if has < size:
        raise ProtocolError(f"the segment has {has} bytes, {size} were announced")
