"""A stored value to a sample: Damaged or a sample, whose arrays lie inside the value."""

from __future__ import annotations

import contextlib

import numpy as np
from harness import atheris, fuzz

with atheris.instrument_imports(include=["loaderd.data.lmdb.record_format", "loaderd.data.sample"]):
    from loaderd.data.lmdb import record_format
    from loaderd.data.sample import Sample

LARGEST = 1 << 20


def samples() -> list[bytes]:
    one = Sample({"x": np.arange(12, dtype=np.int16).reshape(3, 4), "t": "text", "b": b"bytes"})
    two = Sample(
        {"image": np.zeros((4, 5, 3), np.uint8), "label": np.array(3), "jpeg": b"\xff\xd8\xff..."}
    )
    two.images.add("image")
    two.encoded.add("jpeg")
    meta = record_format.DatabaseMeta(
        7, "id", "dict", "imagefolder", True, ("cat", "dog"), (("x", 0, "<i2", (3, 4)),)
    )
    return [
        record_format.pack_sample(one, b"name"),
        record_format.pack_sample(two),
        record_format.pack_meta(meta),
    ]


def target(data: bytes) -> None:
    whole(data)
    filled(data)
    for function in (record_format.name_of, record_format.read_head, record_format.unpack_meta):
        with contextlib.suppress(record_format.DamagedRecord):
            function(data)
    record_format._heads.clear()


def filled(head: bytes) -> None:
    """A value with this head and as many zeros behind it as the head wants: else few inputs would
    get past their length.
    """
    value = record_format.SIZES.pack(len(head), 0) + head
    try:
        parts, start = record_format.read_head(value)
    except record_format.DamagedRecord:
        return
    end = record_format.places(start, parts)[-1]
    if end < LARGEST:
        whole(value + bytes(end - len(value)))


def whole(data: bytes) -> None:
    try:
        sample = record_format.unpack_sample(data)
        for value in sample.values():
            if isinstance(value, np.ndarray):
                value.copy()
                assert value.nbytes <= len(data)
    except record_format.DamagedRecord:
        pass


def heads() -> list[bytes]:
    return [
        value[
            record_format.SIZES.size : record_format.SIZES.size
            + record_format.SIZES.unpack_from(value)[0]
        ]
        for value in samples()[:2]
    ]


if __name__ == "__main__":
    fuzz(target, [*samples(), *heads()])
