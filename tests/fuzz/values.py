"""A stored pickle or msgpack value: UnreadableValue, or plain values; nothing is imported or run.

python tests/fuzz/values.py pickle -max_total_time=600
python tests/fuzz/values.py msgpack -max_total_time=600
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from typing import Any

import msgpack
import msgpack_numpy
import numpy as np
import torch
from harness import atheris, fuzz

with atheris.instrument_imports(include=["loaderd.data.values"]):
    from loaderd.data.values.arrays import UnreadableValue
    from loaderd.data.values.fields import fields_of
    from loaderd.data.values.msgpacks import unpack
    from loaderd.data.values.pickles import unpickle

from loaderd.data.sample import BadValue

PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic)
VALUES: list[Any] = [
    {"image": b"\xff\xd8\xff", "label": 3, "x": [1.5, (2, None)], 7: {1, 2}},
    [np.arange(6, dtype=">i2").reshape(2, 3), np.float32(1.5), np.asfortranarray(np.ones((2, 3)))],
    (np.array(["ab"]), np.zeros((0, 3)), 1 << 70, 3 - 4j, frozenset({"a"})),
]


def seeds(kind: str) -> list[bytes]:
    if kind == "msgpack":
        return [
            msgpack.packb(value, default=msgpack_numpy.encode, use_bin_type=new)
            for value in (
                {"a": [np.arange(3), np.float32(2)]},
                [1 - 2j, "text", b"\xff", None, 1.5],
            )
            for new in (True, False)
        ]
    tensors = [torch.arange(6.0).reshape(2, 3).t(), torch.tensor([True])]
    return [pickle.dumps(value, protocol) for value in [*VALUES, *tensors] for protocol in range(6)]


def look(value: Any) -> None:
    """Every part is plain, and every array can be read to its end."""
    if isinstance(value, dict):
        for key, item in value.items():
            look(item)
            hash(key)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            look(item)
    elif isinstance(value, np.ndarray):
        assert value.dtype.kind in "?biufcSU", value.dtype
        value.tobytes()
    else:
        assert isinstance(value, PLAIN), type(value)


def target_of(kind: str) -> Any:
    read = unpickle if kind == "pickle" else unpack

    def target(data: bytes) -> None:
        with contextlib.suppress(UnreadableValue):
            value = read(data)
            look(value)
            with contextlib.suppress(BadValue):
                fields_of(value, ())

    return target


if __name__ == "__main__":
    chosen = sys.argv.pop(1)
    fuzz(target_of(chosen), seeds(chosen))
