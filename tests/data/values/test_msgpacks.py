from __future__ import annotations

import re
from typing import Any

import msgpack
import msgpack_numpy
import numpy as np
import pytest

from loaderd.data.values.arrays import UnreadableValue
from loaderd.data.values.msgpacks import unpack


def packed(value: Any, **options: Any) -> bytes:
    return msgpack.packb(value, default=msgpack_numpy.encode, **options)


def test_plain_values_and_arrays_are_as_msgpack_numpy_reads_them() -> None:
    rng = np.random.default_rng(0)
    value: dict[Any, Any] = {
        "features": rng.normal(size=(3, 4)).astype("f2"),
        "flags": np.array([True, False]),
        "empty": np.zeros((0, 3), "i8"),
        "swapped": np.arange(3, dtype=">i2"),
        "scalar": np.float32(2.5),
        "z": 1 - 2j,
        "names": ["a", b"\xff", None, True, 1.5, -1],
        7: {"deep": [[1], [2]]},
    }
    found = unpack(packed(value))
    for name in ("features", "flags", "empty", "swapped", "scalar"):
        np.testing.assert_array_equal(found[name], value[name])
        assert found[name].dtype == value[name].dtype
    assert found["z"] == value["z"]
    assert found["names"] == value["names"]
    assert found[7] == {"deep": [[1], [2]]}


def test_a_timestamp_is_a_number_of_seconds() -> None:
    assert unpack(msgpack.packb([msgpack.Timestamp(5, 500_000_000)])) == [5.5]


def test_what_an_old_writer_stored_as_text_is_text_or_bytes() -> None:
    old = msgpack.packb({"image": b"\xff\xd8\xff\0", "label": "cat"}, use_bin_type=False)
    assert unpack(old) == {"image": b"\xff\xd8\xff\0", "label": "cat"}
    array = msgpack.packb(
        np.arange(200, 203, dtype="u1"), default=msgpack_numpy.encode, use_bin_type=False
    )
    np.testing.assert_array_equal(unpack(array), [200, 201, 202])


def array(kind: Any = b"", code: Any = "<i4", shape: Any = (2,), data: Any = bytes(8)) -> bytes:
    return msgpack.packb(
        {b"nd": True, b"type": code, b"kind": kind, b"shape": shape, b"data": data}
    )


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (array(kind=b"O", data=b"cos\nsystem\n(S'true'\ntR."), "kind b'O'"),
        (array(kind=b"V", code=[["x", "|O"]]), "kind b'V'"),
        (array(code="|O"), "dtype '|O'"),
        (array(code="|V8"), "dtype '|V8'"),
        (array(code=[["x", "|O"]]), "dtype"),
        (array(code="M8[s]"), "dtype"),
        (array(shape=(3,)), "12 bytes, and 8 bytes of data"),
        (array(shape=(-1,)), "shape"),
        (array(shape=(1 << 60,)), "shape"),
        (array(shape="ab"), "shape"),
        (array(data=5), "data is a int"),
        (array(data=None), "data is a NoneType"),
        (msgpack.packb({"complex": True, "data": "x" * 99}), "complex number"),
        (msgpack.packb(msgpack.ExtType(5, b"x")), "extension of type 5"),
        (b"\xdd\xff\xff\xff\xff", "damaged or cut short"),
        (b"\xc6\xff\xff\xff\xffx", "damaged or cut short"),
        (b"\x91" * 5000 + b"\xc0", "damaged or cut short"),
        (b"\xc1", "damaged or cut short"),
        (b"", "damaged or cut short"),
        (b"\x01\x02", "damaged or cut short"),
        (b"\x81\x91\x01\x02", "damaged or cut short"),
    ],
)  # fmt: skip
def test_a_value_that_is_forged_or_damaged_is_refused(value: bytes, reason: str) -> None:

    with pytest.raises(UnreadableValue, match=re.escape(reason)):
        unpack(value)


def test_every_cut_of_a_value_is_refused() -> None:
    data = packed({"x": np.arange(4), "names": ["a", "b"], "n": 1 << 40, "f": 1.5})
    for size in range(len(data)):
        with pytest.raises(UnreadableValue):
            unpack(data[:size])


def test_a_table_that_only_looks_like_an_array_is_a_table() -> None:
    assert unpack(msgpack.packb({"nd": 3, "a": 1})) == {"nd": 3, "a": 1}


def test_a_program_that_lets_msgpack_numpy_replace_msgpack_still_gets_no_array_of_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(msgpack, "unpackb", msgpack_numpy.unpackb)
    forged = msgpack.packb(
        {b"nd": True, b"type": "|O", b"kind": b"", b"shape": [1], b"data": b"\0" * 8}
    )
    with pytest.raises(UnreadableValue, match=r"dtype '\|O'"):
        unpack(forged)
