"""Protobuf messages, read field by field without a description of them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from loaderd.data.values.arrays import UnreadableValue

FIXED = {1: struct.Struct("<Q"), 5: struct.Struct("<I")}


def messages(data: bytes | memoryview) -> Iterator[tuple[int, int, Any]]:
    """(field number, wire type, value) of each field, in order.

    A value is a whole number, or a view of bytes. Raises UnreadableValue for bytes that are no
    message.
    """
    view, at = memoryview(data).cast("B"), 0
    while at < len(view):
        tag, at = _varint(view, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _varint(view, at)
        elif kind == 2:
            size, at = _varint(view, at)
            value, at = view[at : at + size], at + size
        elif kind in FIXED:
            width = FIXED[kind].size
            value = FIXED[kind].unpack(view[at : at + width])[0] if at + width <= len(view) else 0
            at += width
        else:
            raise UnreadableValue("it is no protobuf message")
        if at > len(view) or not number:
            raise UnreadableValue("it is a protobuf message that is damaged or cut short")
        yield number, kind, value


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(view):
            break
        byte = view[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise UnreadableValue("it is a protobuf message that is damaged or cut short")


def varints(value: Any) -> list[int]:
    """The numbers of a repeated field: one, or several packed into bytes."""
    if not isinstance(value, memoryview):
        return [value]
    found: list[int] = []
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        found.append(number)
    return found


def signed(value: int) -> int:
    """A number that was written as a signed one of 64 bits."""
    return value - (1 << 64) if value >> 63 else value
