"""The shared memory of a stream that is run without sockets, and the batches in it."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from loaderd.engine.base import Engine
from loaderd.server.admission import OpenedStream, sized
from loaderd.system.loop import Loop
from loaderd.system.memfd import SegmentStore
from loaderd_wire.messages import Descriptor, Released, Segment
from loaderd_wire.slot_reader import (
    SlotReader,
    array_description,
    field_names,
    stored_keys,
    text_values,
    unpack_chunks,
)
from loaderd_wire.slots import slot_layout


@dataclass(frozen=True, slots=True)
class BatchView:
    """A finished batch, valid until it is released.

    Attributes:
        batch: Its descriptor.
        indices: Indices of its rows in the dataset.
        fields: Name -> array over the rows, or list of str or bytes.
        keys: Keys of the rows; None where the index is the key.
    """

    batch: Descriptor
    indices: np.ndarray
    fields: dict[str, Any]
    keys: list[str] | None


@dataclass(slots=True)
class _Mapped:
    segment: Segment
    view: mmap.mmap
    generations: list[int]  # of each slot: the latest one that was given back


class LocalSegments:
    """The segments of one session, mapped for reading.

    Attributes:
        roomiest: Of all that there have been: batches that needed more made it grow.
    """

    def __init__(
        self, loop: Loop, engine: Engine, stream: OpenedStream, batch_size: int, session: int
    ) -> None:
        """Begin without segments.

        Args:
            loop: The loop in which memory is reserved.
            engine: Who maps the segments in the workers.
            stream: What the session reads.
            batch_size: Rows of a slot.
            session: Number of the session.
        """
        self._engine = engine
        self._stream = stream
        self._batch_size = batch_size
        self._session = session
        self._store = SegmentStore(loop)
        self._mapped: dict[int, _Mapped] = {}
        self._last_segment = 0
        self.roomiest: Segment | None = None

    def add(
        self,
        slots: int,
        then: Callable[[Segment], object],
        failed: Callable[[str], object],
        *,
        tail_row_bytes: int = 0,
        body_bytes: int = 0,
    ) -> None:
        """Reserve one more segment.

        Args:
            slots: How many slots it has.
            then: Called later with the segment, which jobs may name from then on.
            failed: Called later with the reason instead, if there is no memory.
            tail_row_bytes: Least size of the tail of a slot, by row.
            body_bytes: Least size of the body of a collated batch.

        Raises:
            ValueError: There is no such segment.
            OverflowError: It would be too large.
        """
        self._last_segment += 1
        segment = sized(
            self._stream,
            self._stream.facts.specs,
            self._batch_size,
            slots,
            self._last_segment,
            tail_row_bytes=tail_row_bytes,
            body_bytes=body_bytes,
        )
        if self.roomiest is None or segment.slot_bytes > self.roomiest.slot_bytes:
            self.roomiest = segment

        def reserved(fd: int, error: OSError | None) -> None:
            if error is not None:
                failed(
                    f"{segment.slots * segment.slot_bytes} bytes of shared memory cannot be "
                    f"reserved: {error.strerror}"
                )
                return
            view = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
            self._mapped[segment.segment] = _Mapped(segment, view, [0] * segment.slots)
            specs = self._stream.facts.specs
            self._engine.add_segment(segment, self._stream.plan.name, specs, self._batch_size, fd)
            then(segment)

        self._store.reserve(self._session, segment, reserved)

    def drop(self, segment: int) -> None:
        """Give back a segment that no job names any longer."""
        self._mapped.pop(segment).view.close()
        self._engine.drop_segment(segment, lambda: self._store.free(segment))

    def close(self) -> None:
        """Give back all of them. The engine's processes have ended."""
        for mapped in self._mapped.values():
            # an error on its way out may still hold a view; it ends with the process
            with suppress(BufferError):
                mapped.view.close()
        self._store.close()

    def read(self, batch: Descriptor) -> BatchView:
        """A batch as it lies in its slot."""
        mapped = self._mapped[batch.segment]
        segment, view = mapped.segment, mapped.view
        facts, begin, rows = self._stream.facts, batch.slot * segment.slot_bytes, batch.filled
        specs = () if facts.collated else facts.specs
        reader = SlotReader(
            slot_layout(
                specs,
                self._batch_size,
                tail_row_bytes=segment.tail_row_bytes,
                body_bytes=segment.body_bytes,
            )
        )
        maps = unpack_chunks(
            [reader.tail(view, chunk.offset, chunk.size, begin) for chunk in batch.chunks]
        )
        fields: dict[str, Any] = {**reader.arrays(view, rows, begin)}
        for name in field_names(maps, "text"):
            fields[name] = text_values(maps, name, None if facts.collated else rows)
        for name in field_names(maps, "arrays"):
            described = array_description(maps, name)
            assert described is not None
            fields[name] = reader.collated(view, described, begin)
        keys = stored_keys(maps, rows) if facts.keys == "stored" else None
        return BatchView(batch, reader.indices(view, rows, begin), fields, keys)

    def release(self, batch: Descriptor) -> None:
        """Nobody reads the slot of this batch any longer."""
        self._mapped[batch.segment].generations[batch.slot] = batch.generation

    def released(self) -> tuple[Released, ...]:
        """What was given back, as a client says it."""
        return tuple(
            Released(number, tuple(mapped.generations), tuple(mapped.generations))
            for number, mapped in self._mapped.items()
        )
