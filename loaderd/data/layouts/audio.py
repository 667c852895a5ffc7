"""Audio of RAVE and `udls`: numbered `AudioExample` messages, each with buffers by name."""

from __future__ import annotations

from typing import Any

import numpy as np

from loaderd.data.layouts.base import Database, KeyedLayout
from loaderd.data.layouts.keys import Keys
from loaderd.data.layouts.protobuf import messages, varints
from loaderd.data.values.arrays import UnreadableValue, array_of
from loaderd.data.values.codecs import ValueCodec

# of a buffer's numbers, by what its `precision` says; 6 is a file of any kind
DTYPES = ("<f2", "<f4", "<f8", "<i2", "<i4", "<i8")
FILE = 6


class RaveLayout(KeyedLayout):
    """An array (channels, samples) for each buffer, and the rate of the first one."""

    name = "rave"
    marks = "keys such as `00000000`, and values that are `AudioExample` messages"

    @classmethod
    def seen(cls, db: Database) -> str:
        first = db.first()[:3]
        if not first or not all(len(key) == 8 and key.isdigit() for key, _ in first):
            return ""
        try:
            parts = [read_example(value) for _, value in first]
        except UnreadableValue:
            return ""
        told = all(buffers or b"path" in metadata for buffers, metadata in parts)
        return "its keys have 8 digits, and its values are AudioExample messages" if told else ""

    def find_keys(self) -> Keys:
        return self.numbered("{i:08d}", None, 0)

    def find_codec(self) -> ValueCodec:
        return ValueCodec(("audioexample",))

    def parse(self, index: int, values: list[memoryview]) -> dict[str, Any]:
        buffers, metadata = read_example(values[0])
        if not buffers:
            path = bytes(metadata.get(b"path", b"")).decode("utf-8", "backslashreplace")
            raise UnreadableValue(
                f"it has no audio, but the path of a file: {path!r}. The database was made with "
                "RAVE's --lazy: make it again without"
            )
        sample: dict[str, Any] = {}
        for name, buffer in buffers.items():
            sample[name.decode("utf-8", "backslashreplace")], rate = _audio(buffer)
            sample.setdefault("sampling_rate", rate)
        wanted = self.options.fields or tuple(sample)
        missing = [name for name in wanted if name not in sample]
        if missing:
            raise UnreadableValue(f"it has no {missing[0]!r}; it has {', '.join(sample)}")
        return {name: sample[name] for name in wanted}


def read_example(
    value: bytes | memoryview,
) -> tuple[dict[bytes, memoryview], dict[bytes, memoryview]]:
    """The buffers and the metadata of an AudioExample, by name. Raises UnreadableValue."""
    found: dict[int, dict[bytes, memoryview]] = {1: {}, 2: {}}
    for number, kind, item in messages(value):
        if number not in found or kind != 2:
            raise UnreadableValue("it is no AudioExample message")
        entry = dict[int, memoryview]()
        for field, wire, part in messages(item):
            if wire != 2 or field not in (1, 2):
                raise UnreadableValue("it is no AudioExample message")
            entry[field] = part
        if set(entry) != {1, 2}:
            raise UnreadableValue("it is no AudioExample message")
        found[number][bytes(entry[1])] = entry[2]
    return found[1], found[2]


def _audio(buffer: memoryview) -> tuple[Any, int]:
    """(array (channels, samples) or the bytes of a file, sampling rate) of a buffer."""
    shape: list[int] = []
    rate, precision, data = 0, 0, memoryview(b"")
    for number, kind, item in messages(buffer):
        if number == 1:
            shape += varints(item)
        elif number == 2 and kind == 0:
            rate = item
        elif number == 3 and kind == 2:
            data = item
        elif number == 4 and kind == 0:
            precision = item
    if precision == FILE:
        return bytes(data), rate
    if precision > FILE:
        raise UnreadableValue(f"it has a buffer of precision {precision}, which there is not")
    dtype = np.dtype(DTYPES[precision])
    # the writer counts bytes, not samples: only its number of channels can be used
    channels = max(1, shape[0] if shape else 1)
    return array_of(dtype, (channels, len(data) // (channels * dtype.itemsize)), data), rate
