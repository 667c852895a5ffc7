"""A stored value to a sample: Damaged or a sample, whose arrays lie inside the value."""

from __future__ import annotations

import contextlib

import atheris
import numpy as np

with atheris.instrument_imports(include=["loaderd.data.own", "loaderd.data.sample"]):
    from loaderd.data import own
    from loaderd.data.sample import Sample

from harness import fuzz

LARGEST = 1 << 20


def samples() -> list[bytes]:
    one = Sample({"x": np.arange(12, dtype=np.int16).reshape(3, 4), "t": "text", "b": b"bytes"})
    two = Sample({"image": np.zeros((4, 5, 3), np.uint8), "label": np.array(3), "jpeg": b"\xff\xd8\xff..."})
    two.images.add("image")
    two.encoded.add("jpeg")
    meta = own.Meta(7, "id", "dict", "imagefolder", True, ("cat", "dog"), (("x", 0, "<i2", (3, 4)),))
    return [own.pack_sample(one, b"name"), own.pack_sample(two), own.pack_meta(meta)]


def target(data: bytes) -> None:
    whole(data)
    filled(data)
    for function in (own.name_of, own.read_head, own.unpack_meta):
        with contextlib.suppress(own.Damaged):
            function(data)
    own._heads.clear()


def filled(head: bytes) -> None:
    """A value with this head and as many zeros behind it as the head wants: else few inputs would get past their length."""
    value = own.SIZES.pack(len(head), 0) + head
    try:
        parts, start = own.read_head(value)
    except own.Damaged:
        return
    end = own.places(start, parts)[-1]
    if end < LARGEST:
        whole(value + bytes(end - len(value)))


def whole(data: bytes) -> None:
    try:
        sample = own.unpack_sample(data)
        for value in sample.values():
            if isinstance(value, np.ndarray):
                value.copy()
                assert value.nbytes <= len(data)
    except own.Damaged:
        pass


def heads() -> list[bytes]:
    return [value[own.SIZES.size : own.SIZES.size + own.SIZES.unpack_from(value)[0]] for value in samples()[:2]]


if __name__ == "__main__":
    fuzz(target, [*samples(), *heads()])
