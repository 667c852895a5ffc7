"""A segment as a worker sees it.

It is mapped shared, not inherited by children, without a descriptor that could keep it alive.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import numpy as np

from loaderd.engine.messages import MapSegment
from loaderd_wire.slot_reader import SlotReader
from loaderd_wire.slots import FieldSpec, SlotLayout, slot_layout

MADV_DONTFORK = 10
MADV_POPULATE_WRITE = 23  # from Linux 5.14 on


def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc


class MappedSegment:
    """Owns the mapping.

    Not Python's mmap, which keeps a descriptor that a forked child would hold on to.

    Whoever took an array from it must have let it go before `close`. Raises OSError where it cannot
    be mapped.
    """

    def __init__(self, order: MapSegment, fd: int) -> None:
        self.segment = order.segment
        self.fields = order.fields
        self.collated = order.collated
        self.layout: SlotLayout = slot_layout(
            () if order.collated else order.fields,
            order.rows,
            tail_row_bytes=order.segment.tail_row_bytes,
            body_bytes=order.segment.body_bytes,
        )
        if self.layout.slot_bytes > order.segment.slot_bytes:
            raise ValueError(
                f"a slot of {order.segment.slot_bytes} bytes cannot hold a layout of "
                f"{self.layout.slot_bytes}"
            )
        self.reader = SlotReader(self.layout)
        self._bytes = order.segment.slots * order.segment.slot_bytes
        if os.fstat(fd).st_size < self._bytes:
            raise ValueError(
                f"segment {order.segment.segment} is shorter than its {self._bytes} bytes"
            )
        self._libc = _libc()
        self._slots: dict[int, MappedSlot] = {}
        address = self._libc.mmap(
            None, self._bytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0
        )
        if address is None or address == ctypes.c_void_p(-1).value:
            raise OSError(
                ctypes.get_errno(),
                f"segment {order.segment.segment} of {self._bytes} bytes cannot be mapped",
            )
        self._address: int = address
        if self._libc.madvise(address, self._bytes, MADV_DONTFORK) != 0:
            code = ctypes.get_errno()
            self.close()
            raise OSError(
                code, "madvise(MADV_DONTFORK) failed: a forked child could write into slots"
            )

    def slot(self, slot: int) -> MappedSlot:
        """The memory of one slot; it must not outlive this mapping."""
        if not 0 <= slot < self.segment.slots:
            raise ValueError(f"segment {self.segment.segment} has no slot {slot}")
        made = self._slots.get(slot)
        if made is None:
            # All of its pages at once: a fault for each of them, on the way through the first
            # batch, costs several times as much.
            self._libc.madvise(
                self._address + slot * self.segment.slot_bytes,
                self.segment.slot_bytes,
                MADV_POPULATE_WRITE,
            )
            made = self._slots[slot] = MappedSlot(
                self, self._address + slot * self.segment.slot_bytes
            )
        return made

    def close(self) -> None:
        """Idempotent."""
        self._slots.clear()
        if self._address:
            self._libc.munmap(self._address, self._bytes)
            self._address = 0


class MappedSlot:
    """Arrays over one slot's bytes, valid while it is mapped."""

    def __init__(self, mapped: MappedSegment, address: int) -> None:
        self.layout = mapped.layout
        self.fields = mapped.fields
        self.row_bytes = sum(field.row_bytes for field in self.layout.fields)
        self._memory: Any = (ctypes.c_ubyte * mapped.layout.slot_bytes).from_address(address)
        self._reader = mapped.reader
        self._indices = self._reader.indices(self._memory, self.layout.rows)
        views = self._reader.arrays(self._memory, self.layout.rows)
        self._arrays = [
            (field, views[field.name]) for field in self.layout.fields if field.kind == "array"
        ]

    def indices(self) -> np.ndarray:
        """The dataset indices, int64[rows]."""
        return self._indices

    def arrays(self) -> list[tuple[FieldSpec, np.ndarray]]:
        """Every field of kind "array" with its rows: dtype of the field, [rows, *shape]."""
        return self._arrays

    def array(self, dtype: str, shape: tuple[int, ...], offset: int) -> np.ndarray:
        """The array of this shape that begins `offset` bytes into the slot.

        Raises ProtocolError if it is not within the body.
        """
        return self._reader.described(self._memory, dtype, shape, offset)

    def write(self, offset: int, data: bytes) -> None:
        """Put bytes at an offset from the slot's begin."""
        if offset + len(data) > self.layout.slot_bytes:
            raise ValueError(
                f"{len(data)} bytes at {offset} are beyond the slot's {self.layout.slot_bytes} "
                "bytes"
            )
        memoryview(self._memory).cast("B")[offset : offset + len(data)] = data
