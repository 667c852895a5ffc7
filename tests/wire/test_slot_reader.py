"""What is read from a slot is what was written to it, at whatever place the slot begins, and
nothing else is.
"""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from loaderd_wire import slot_reader
from loaderd_wire.errors import ProtocolError
from loaderd_wire.slot_reader import (
    SlotReader,
    array_description,
    field_names,
    stored_keys,
    text_values,
    unpack_chunks,
)
from loaderd_wire.slots import FieldSpec, slot_layout

FIELDS = [
    FieldSpec("image", "|u1", (4, 3)),
    FieldSpec("text", "", (), "text"),
    FieldSpec("label", "<i8", ()),
]


def chunks(*maps: Any) -> list[dict[str, Any]]:
    return unpack_chunks([msgpack.packb(one) for one in maps])


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_what_is_written_through_a_view_of_one_slot_is_read_there_and_in_no_other(
    slot: int,
) -> None:
    reader = SlotReader(slot_layout(FIELDS, 5))
    size = reader.layout.slot_bytes
    memory = bytearray(3 * size)
    begin = slot * size
    reader.indices(memory, 5, begin)[:] = range(5)
    views = reader.arrays(memory, 5, begin)
    assert list(views) == ["image", "label"]
    views["image"][...] = 7
    views["label"][...] = range(10, 15)
    assert reader.indices(memory, 3, begin).tolist() == [0, 1, 2]
    assert reader.arrays(memory, 2, begin)["label"].tolist() == [10, 11]
    assert (reader.arrays(memory, 5, begin)["image"] == 7).all()
    others = bytes(memory[:begin]) + bytes(memory[begin + size :])
    assert not any(others)


def test_while_a_view_lives_its_bytes_stay_where_they_are() -> None:
    reader = SlotReader(slot_layout(FIELDS, 5))
    memory = bytearray(reader.layout.slot_bytes)
    label = reader.arrays(memory, 5)["label"]
    with pytest.raises(BufferError):
        memory.clear()
    label[0] = 3
    assert reader.arrays(memory, 5)["label"][0] == 3


def test_many_numbers_of_rows_are_cut_without_being_remembered_for_ever() -> None:
    reader = SlotReader(slot_layout(FIELDS, 500))
    for rows in range(500):
        assert [shape for shape, *_ in reader.cuts(rows)] == [(rows, 4, 3), (rows,)]
    assert len(reader._cuts) <= 64


def test_a_described_array_is_read_from_the_body_and_nowhere_else() -> None:
    reader = SlotReader(slot_layout((), 2, body_bytes=256))
    memory = bytearray(reader.layout.slot_bytes)
    body = reader.layout.body_offset
    reader.described(memory, "<i4", [2, 3], body)[...] = [[1, 2, 3], [4, 5, 6]]
    assert reader.described(memory, "<i4", [6], body).tolist() == [1, 2, 3, 4, 5, 6]
    assert reader.described(memory, "<f4", [0, 3], body + 256).shape == (0, 3)
    for dtype, shape, offset in (
        ("|u1", [257], body),
        ("|u1", [1], body - 1),
        ("<i8", [1], body + 249),
        ("|O8", [1], body),
    ):
        with pytest.raises(ProtocolError):
            reader.described(memory, dtype, shape, offset)


def test_a_chunk_is_read_from_the_tail_and_nowhere_else() -> None:
    reader = SlotReader(slot_layout(FIELDS, 2))
    tail, end = reader.layout.tail_offset, reader.layout.slot_bytes
    memory = bytearray(range(256)) * (end // 256 + 1)
    assert reader.tail(memory, tail, 9, 3) == bytes(memory[tail + 3 : tail + 12])
    for offset, size in ((tail - 1, 2), (tail, end - tail + 1), (end, 1)):
        with pytest.raises(ProtocolError, match="not in the tail"):
            reader.tail(memory, offset, size)


def test_the_parts_of_all_chunks_are_joined_in_order() -> None:
    maps = chunks(
        {"keys": ["a", "b"], "text": {"t": ["x", "y"]}}, {"keys": ["c"], "text": {"t": [b"z"]}}
    )
    assert field_names(maps, "text") == ["t"]
    assert field_names(maps, "arrays") == []
    assert text_values(maps, "t", 3) == ["x", "y", b"z"]
    assert stored_keys(maps, 3) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "maps",
    [
        [{}],
        [{"keys": "ab", "text": []}],
        [{"keys": ["a"], "text": {"t": ["x"]}}, {}],
        [{"keys": [1, 2], "text": {"t": [1, 2]}}],
    ],
)
def test_chunks_that_lack_rows_or_hold_other_values_are_refused(maps: list[Any]) -> None:
    with pytest.raises(ProtocolError):
        text_values(chunks(*maps), "t", 2)
    with pytest.raises(ProtocolError):
        stored_keys(chunks(*maps), 2)


def test_an_array_is_described_by_dtype_shape_and_offset() -> None:
    maps = chunks({}, {"arrays": {"x": ["<f4", [2, 3], 64], "bad": ["<f4", [2, -3], 64]}})
    assert field_names(maps, "arrays") == ["x", "bad"]
    assert array_description(maps, "x") == ("<f4", [2, 3], 64)
    assert array_description(maps, "y") is None
    with pytest.raises(ProtocolError, match="'bad'"):
        array_description(maps, "bad")


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", msgpack.packb([1]), msgpack.packb({"keys": []}) + b"x"]
)
def test_bytes_that_are_no_map_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="a chunk"):
        unpack_chunks([data])


def test_what_a_signal_handler_raises_meanwhile_is_no_error_of_the_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise ValueError("by a handler")

    monkeypatch.setattr(slot_reader, "unpackb", interrupted)
    with pytest.raises(ValueError, match="by a handler"):
        unpack_chunks([msgpack.packb({})])
