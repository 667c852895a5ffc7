"""Bytes to messages: a ProtocolError or a message, and a message comes back the same."""

from __future__ import annotations

from harness import atheris, fuzz

with atheris.instrument_imports(include=["loaderd_wire", "loaderd.engine.messages", "msgpack"]):
    from loaderd.engine.messages import ORDERS, Fork, Reap
    from loaderd_wire.codec import WIRE, frame, unframe
    from loaderd_wire.errors import BadSample, ProtocolError
    from loaderd_wire.messages import (
        Ask,
        Descriptor,
        Failure,
        Hello,
        Progress,
        Released,
        Segment,
        Welcome,
    )
    from loaderd_wire.slots import Chunk, FieldSpec

SPECS = (FieldSpec("image", "|u1", (8, 8, 3), "array", True), FieldSpec("label", "<i8", ()))
SEGMENT = Segment(1, 6, 4096, 64, 0)
MESSAGES = [
    Hello(1, "train", 8, None, True, 0, 1, 4, ("image",), 0, {"a": "b"}, {}, "/c.toml"),
    Welcome(
        5,
        b"t" * 16,
        "d",
        100,
        8,
        0,
        False,
        SPECS,
        "dict",
        False,
        "index",
        SEGMENT,
        {"seed": "0"},
        {},
        ("cat",),
        "raise",
        0.5,
        "skip",
    ),
    Progress(5, 3, 1, 0, 0, 0, 2, 3, False, True, False, (Released(1, (1, 2), (1, 3)),)),
    Descriptor(
        5,
        1,
        3,
        0,
        24,
        8,
        1,
        2,
        9,
        7,
        False,
        (Chunk(0, 8, 100, 9),),
        (BadSample(4, "k", 5, "read", "E", "m"),),
    ),
    Ask(1, "status"),
    Failure(5, "StreamFailedError", "why"),
]


def target(data: bytes) -> None:
    for codec in (WIRE, ORDERS):
        try:
            message = codec.decode(data)
        except ProtocolError:
            continue
        assert codec.decode(codec.encode(message)) == message or "nan" in repr(message)
    buffer = bytearray(data)
    try:
        while unframe(buffer) is not None:
            pass
    except ProtocolError:
        pass


if __name__ == "__main__":
    fuzz(
        target,
        [
            *map(WIRE.encode, MESSAGES),
            *map(frame, MESSAGES),
            ORDERS.encode(Fork(1, 2)),
            ORDERS.encode(Reap(1)),
        ],
    )
