"""Databases as other projects write them, and a look through loaderd at what they hold."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from loaderd.config.stream import StreamConfig
from loaderd.data.sources.source import Source
from loaderd_testing.sample_builders import coded, picture, write

JPEG = coded(picture(16, 20), "JPEG")
PNG = coded(picture(16, 20), "PNG")


def numbered(path: Path | str, values: Iterable[bytes], form: str = "%d", **more: bytes) -> str:
    """A database with these values under the keys of 0, 1, ... and further keys."""
    items = {(form % number).encode(): value for number, value in enumerate(values)}
    return write(path, items | {name.encode(): value for name, value in more.items()})


def source(path: str | Path, layout: str = "auto", **options: Any) -> Source:
    """The database as a stream sees it."""
    return Source(StreamConfig("t", lmdb=str(path), layout=layout, **options))


def samples(path: str | Path, layout: str = "auto", **options: Any) -> list[dict[str, Any]]:
    """All samples, as plain dicts of copies."""
    with source(path, layout, **options) as opened:
        return [
            {
                name: value.copy() if isinstance(value, np.ndarray) else value
                for name, value in opened.read(index).items()
            }
            for index in range(opened.total)
        ]


def layout_of(path: str | Path, **options: Any) -> str:
    """The name of the layout that is recognised."""
    with source(path, **options) as opened:
        return opened.layout


# protobuf by hand: a number, bytes and 4 bytes


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def number_field(field: int, number: int) -> bytes:
    return varint(field << 3) + varint(number)


def bytes_field(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def float_field(field: int, number: float) -> bytes:
    return varint(field << 3 | 5) + struct.pack("<f", number)


def datum(
    shape: tuple[int, int, int], label: int, data: bytes = b"", encoded: bool = False
) -> bytes:
    """Caffe's Datum of channels x height x width."""
    sizes = b"".join(number_field(field, size) for field, size in enumerate(shape, 1))
    message = sizes + bytes_field(4, data) + number_field(5, label)
    return message + (number_field(7, 1) if encoded else b"")


def pickled(value: Any) -> bytes:
    return pickle.dumps(value)
