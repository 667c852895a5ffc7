"""Shared memory as numpy sees it: mapped segments, their slots, and the leases on them."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import resource
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeAlias

from loaderd_client import fork_safety
from loaderd_wire.errors import ProtocolError, RefusedError, by_handler
from loaderd_wire.limits import MAX_ROWS
from loaderd_wire.messages import Descriptor, Segment
from loaderd_wire.slot_reader import INDEX_BYTES, SlotReader
from loaderd_wire.slots import FieldSpec, SlotLayout, slot_layout

# ctypes.Array[c_char], whose stubs hide that it exports its bytes; in a group a memoryview
Slot: TypeAlias = Any
Lease: TypeAlias = tuple[int, int, int]  # segment, slot, generation


class SegmentView:
    """One segment, mapped for reading and writing; that of a group for reading only.

    It stays mapped as long as this object or any view of a slot lives.

    Attributes:
        segment: What the daemon says of it.
        shared: Other trainers read its slots, too: what is wanted of a slot is copied out.
        layout: Where things lie in its slots.
        reader: Reads what `slot` returns.
        mapping: The memory.
    """

    def __init__(
        self,
        segment: Segment,
        fd: int,
        specs: Sequence[FieldSpec],
        rows: int,
        *,
        shared: bool = False,
    ) -> None:
        """Map a segment.

        It is checked first: a file that shrinks later would kill the trainer with a bus error.

        Args:
            segment: What the daemon says of it.
            fd: Its memory. The caller closes it.
            specs: The fields of kind "array" in the order in which they lie; none in a collated
                stream.
            rows: The most rows that a batch has.
            shared: It is the segment of a group.

        Raises:
            ProtocolError: The memory is not what `segment` says.
            RefusedError: The process may not map so much.
        """
        self.segment = segment
        self.shared = shared
        self.layout = _layout(segment, specs, rows)
        self.reader = SlotReader(self.layout)
        size = segment.slots * segment.slot_bytes
        _check_memory(fd, size)
        self.mapping = _mapped(fd, size, shared=shared)
        self._count, self._rows, self._slot_bytes = (
            segment.slots,
            self.layout.rows,
            segment.slot_bytes,
        )
        self._type = ctypes.c_char * segment.slot_bytes

    def slot(self, batch: Descriptor) -> Slot:
        """The bytes of a batch's slot, as the object that its lease hangs on.

        It is no ndarray: numpy would cut it out of the chains of bases.

        Raises:
            ProtocolError: There is no such slot, or it has no room for so many rows.
        """
        if batch.slot >= self._count or batch.filled > self._rows:
            raise ProtocolError(
                f"a batch of {batch.filled} rows in slot {batch.slot}, of {self.segment.slots} "
                f"for {self.layout.rows} rows"
            )
        begin = batch.slot * self._slot_bytes
        if self.shared:  # ctypes takes no memory that cannot be written to
            return memoryview(self.mapping)[begin : begin + self._slot_bytes]
        return self._type.from_buffer(self.mapping, begin)

    def indices(self, batch: Descriptor) -> bytes:
        """A private copy of the dataset indices of a batch that `slot` has looked at.

        Returns:
            Little-endian int64, one a row.
        """
        begin = batch.slot * self._slot_bytes
        return self.mapping[begin : begin + INDEX_BYTES * batch.filled]


class Lent(weakref.ref[Any]):
    """A slot that is lent. weakref.finalize does the same and takes five times as long.

    Attributes:
        lease: Which slot it is.
    """

    __slots__ = ("lease",)
    lease: Lease


_lent: dict[int, Lent] = {}  # a weak reference that nobody holds is not called
fork_safety.keep(
    lambda: [slot for lent in list(_lent.values()) if (slot := lent()) is not None], _lent.clear
)


def lend(slot: Slot, lease: Lease, over: deque[Lent]) -> Lent:
    """Have a lease end when the last view of its slot is collected.

    That may happen in any thread, in the middle of any call, or at exit. So what is called then is
    a function of C that takes no lock and touches no socket: what a signal's handler raised in one
    of Python would be lost, and the slot too. After a fork it does nothing: the parent still has
    its views, and the child has copies.

    Args:
        slot: What SegmentView.slot returned.
        lease: Segment, slot and generation.
        over: Gets what is returned, to be given to `settled`.

    Returns:
        What has this lease.
    """
    lent = Lent(slot, over.append)
    lent.lease = lease
    _lent[id(lent)] = lent
    return lent


def settled(lent: Lent) -> Lease:
    """The lease that has ended."""
    _lent.pop(id(lent), None)
    return lent.lease


def tidy() -> None:
    """Forget leases that have ended, of sessions that have ended before them."""
    for key in [key for key, lent in list(_lent.items()) if lent() is None]:
        _lent.pop(key, None)


def _layout(segment: Segment, specs: Sequence[FieldSpec], rows: int) -> SlotLayout:
    try:
        layout = slot_layout(
            specs, rows, tail_row_bytes=segment.tail_row_bytes, body_bytes=segment.body_bytes
        )
    except ValueError as error:
        raise ProtocolError(f"impossible slots: {error}") from None
    if not 1 <= segment.slots <= MAX_ROWS or layout.slot_bytes > segment.slot_bytes:
        raise ProtocolError(
            f"slots of {segment.slot_bytes} bytes are too small for {rows} rows of "
            f"{layout.slot_bytes} bytes: {segment}"
        )
    return layout


def _mapped(fd: int, size: int, *, shared: bool) -> mmap.mmap:
    access = mmap.PROT_READ if shared else mmap.PROT_READ | mmap.PROT_WRITE
    try:
        return mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=access)
    except OSError as error:
        if by_handler(error):
            raise
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        most = "without limit" if limit == resource.RLIM_INFINITY else f"{limit} bytes"
        raise RefusedError(
            f"the batches' {size} bytes of shared memory cannot be mapped: {error.strerror}; this "
            f"process may map {most} in all (ulimit -v); raise that, or ask for a smaller prefetch "
            "or batch_size"
        ) from None


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
