"""A segment as a worker sees it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loaderd.engine.messages import MapSegment
from loaderd.worker.segments import MappedSegment
from loaderd_wire.errors import ProtocolError
from loaderd_wire.messages import Segment
from loaderd_wire.slots import FieldSpec, slot_layout

FIELDS = (FieldSpec("x", "|u1", (5,)), FieldSpec("t", "", (), "text"), FieldSpec("y", "<i8", ()))
ROWS, SLOTS = 4, 3
SLOT_BYTES = 8192
ORDER = MapSegment(Segment(7, SLOTS, SLOT_BYTES, 64, 0), FIELDS, ROWS, False)


@pytest.fixture
def fd() -> Iterator[int]:
    """Of memory as large as all slots."""
    made = os.memfd_create("segment", os.MFD_CLOEXEC)
    os.ftruncate(made, SLOTS * SLOT_BYTES)
    yield made
    os.close(made)


@pytest.fixture
def mapped(fd: int) -> Iterator[MappedSegment]:
    made = MappedSegment(ORDER, fd)
    yield made
    made.close()


def test_what_is_written_through_a_slot_is_in_its_part_of_the_memory(
    fd: int, mapped: MappedSegment
) -> None:
    layout = slot_layout(FIELDS, ROWS, tail_row_bytes=64)
    for number in range(SLOTS):
        slot = mapped.slot(number)
        assert mapped.slot(number) is slot
        assert [spec.name for spec, _ in slot.arrays()] == ["x", "y"]
        arrays = {spec.name: array for spec, array in slot.arrays()}
        assert (arrays["x"].dtype, arrays["x"].shape) == (np.uint8, (ROWS, 5))
        assert (arrays["y"].dtype, arrays["y"].shape) == (np.int64, (ROWS,))
        arrays["x"][:] = 10 + number
        slot.indices()[:] = [number, 1, 2, 3]
        slot.write(layout.tail_offset, b"tail%d" % number)
        data = os.pread(fd, SLOT_BYTES, number * SLOT_BYTES)
        assert data.count(bytes([10 + number]) * 5) == ROWS
        assert data[layout.tail_offset :].startswith(b"tail%d" % number)
        assert np.array([number, 1, 2, 3]).tobytes() in data


@pytest.mark.parametrize("number", [-1, SLOTS, 1 << 40])
def test_a_slot_that_is_not_there_is_an_error(mapped: MappedSegment, number: int) -> None:
    with pytest.raises(ValueError, match=f"segment 7 has no slot {number}"):
        mapped.slot(number)


def test_bytes_up_to_the_end_of_the_slot_are_written_and_none_beyond(
    fd: int, mapped: MappedSegment
) -> None:
    slot = mapped.slot(0)
    most = slot.layout.slot_bytes
    slot.write(most - 3, b"abc")
    assert os.pread(fd, 3, most - 3) == b"abc"
    with pytest.raises(ValueError, match=f"3 bytes at {most - 2} are beyond the slot's {most}"):
        slot.write(most - 2, b"xyz")
    assert os.pread(fd, 3, most - 3) == b"abc"


def test_an_array_of_a_chunk_lies_within_the_body(fd: int) -> None:
    order = replace(ORDER, segment=replace(ORDER.segment, body_bytes=256), collated=True)
    mapped = MappedSegment(order, fd)
    slot = mapped.slot(1)
    assert slot.arrays() == []
    begin = slot.layout.body_offset
    slot.array("<i4", (2, 3), begin)[:] = 7
    assert os.pread(fd, 24, SLOT_BYTES + begin) == np.full(6, 7, np.int32).tobytes()
    with pytest.raises(ProtocolError):
        slot.array("<i4", (2, 300), begin)
    del slot
    mapped.close()


def test_memory_that_is_too_small_is_not_mapped(fd: int) -> None:
    with pytest.raises(ValueError, match=r"a slot of 64 bytes cannot hold a layout of \d+"):
        MappedSegment(replace(ORDER, segment=replace(ORDER.segment, slot_bytes=64)), fd)
    os.ftruncate(fd, SLOTS * SLOT_BYTES - 1)
    with pytest.raises(ValueError, match="segment 7 is shorter than its 24576 bytes"):
        MappedSegment(ORDER, fd)


def test_memory_that_cannot_be_mapped_says_so(tmp_path: Any) -> None:
    path = tmp_path / "read only"
    path.write_bytes(bytes(SLOTS * SLOT_BYTES))
    with path.open("rb") as file, pytest.raises(OSError, match=r"segment 7 .* cannot be mapped"):
        MappedSegment(ORDER, file.fileno())


def maps() -> int:
    with open("/proc/self/maps") as file:
        return sum("memfd:segment" in line for line in file)


def test_it_is_mapped_until_it_is_closed_and_never_in_a_child(fd: int) -> None:
    assert maps() == 0
    mapped = MappedSegment(ORDER, fd)
    assert maps() == 1
    pid = os.fork()
    if pid == 0:
        os._exit(maps())
    assert os.waitpid(pid, 0) == (pid, 0)
    mapped.close()
    assert maps() == 0
    mapped.close()
