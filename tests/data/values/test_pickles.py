from __future__ import annotations

import collections
import io
import os
import pickle
import struct
import subprocess
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch

from loaderd.data.values.arrays import UnreadableValue
from loaderd.data.values.pickles import unpickle
from loaderd_testing.deadlines import DEADLINE_S

PLAIN: list[Any] = [
    None,
    True,
    False,
    0,
    255,
    65536,
    -1,
    1 << 40,
    -(1 << 70),
    1.5,
    float("inf"),
    3 - 4j,
    "",
    "naïve 你好",
    b"",
    b"\xff\0",
    bytes(range(256)) * 300,
    [],
    (),
    {},
    [1, [2, [3]]],
    (1,),
    (1, 2, 3, 4),
    {"a": 1, 2: b"b", (1, "x"): None},
    {1, 2},
    frozenset({"a"}),
    collections.OrderedDict([("z", 1), ("a", 2)]),
]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_of_every_protocol_are_as_pickle_reads_them(protocol: int) -> None:
    for value in PLAIN:
        assert unpickle(pickle.dumps(value, protocol)) == value
    shared = [1, 2]
    assert unpickle(pickle.dumps([shared, shared, "x" * 300, "x" * 70_000], protocol)) == [
        shared,
        shared,
        "x" * 300,
        "x" * 70_000,
    ]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_and_numbers_of_numpy_have_dtype_shape_and_values(protocol: int) -> None:
    rng = np.random.default_rng(protocol)
    for code in "?bBhHiIlLefdFD":
        for array in (
            rng.integers(0, 2, (2, 3)).astype(code),
            np.array(1, code),
            np.zeros((0, 4), code),
            np.asfortranarray(rng.integers(0, 2, (3, 2)).astype(code)),
            rng.integers(0, 2, 5).astype(np.dtype(code).newbyteorder(">")),
        ):
            found = unpickle(pickle.dumps(array, protocol))
            assert found.dtype == array.dtype
            assert found.shape == array.shape
            np.testing.assert_array_equal(found, array)
        number = np.dtype(code).type(1)
        found = unpickle(pickle.dumps({"n": number}, protocol))["n"]
        assert type(found) is type(number)
        assert found == number
    texts = np.array(["ab", "ç"])
    np.testing.assert_array_equal(unpickle(pickle.dumps(texts, protocol)), texts)


def test_the_names_of_numpy_1_are_known_like_those_of_numpy_2() -> None:
    array = np.arange(6, dtype="<f4").reshape(2, 3)
    for protocol in (2, 4):
        data = pickle.dumps(array, protocol)
        old = data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
        old = old.replace(b"\x8c\x16numpy.core", b"\x8c\x15numpy.core")
        np.testing.assert_array_equal(unpickle(_without_frame(old)), array)


def _without_frame(data: bytes) -> bytes:
    return data[:2] + data[11:] if data[2:3] == b"\x95" else data


def python_2(*parts: bytes) -> bytes:
    return b"\x80\x02" + b"".join(parts) + b"."


def test_a_str_of_python_2_is_text_where_it_is_text_and_bytes_where_it_is_not() -> None:
    image = b"\xff\xd8\xff\xe0" + bytes(20)
    value = python_2(
        b"}(U\x05imageT", struct.pack("<I", len(image)), image, b"U\x04nameU\x05a.jpgu"
    )
    assert unpickle(value) == {"image": image, "name": "a.jpg"}
    assert unpickle(b"(dp0\nS'label'\np1\nI7\nsS'raw'\nS'\\xff\\x00'\ns.") == {
        "label": 7,
        "raw": b"\xff\0",
    }


def test_an_array_of_python_2_whose_bytes_look_like_text_is_still_an_array() -> None:
    value = python_2(
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\0\x85U\x01bt\x85"[:-1],
        b"R(K\x01K\x04\x85cnumpy\ndtype\n(U\x02i1K\0K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89U\x04abcdtb",
    )
    np.testing.assert_array_equal(unpickle(value), np.frombuffer(b"abcd", np.int8))


def test_a_tensor_of_torch_is_the_array_of_its_numbers() -> None:
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    for tensor in (
        base,
        base.t(),
        base[1:, ::2],
        base[0, 0],
        torch.zeros(0, 3),
        torch.tensor([True, False]),
        torch.arange(3).half(),
        torch.ones(2, dtype=torch.complex64),
        torch.zeros(1).expand(3, 1),
    ):
        found = unpickle(pickle.dumps({"x": tensor}))["x"]
        assert found.shape == tuple(tensor.shape)
        np.testing.assert_array_equal(found, tensor.numpy())
    assert unpickle(pickle.dumps(torch.Size([2, 3]))) == (2, 3)
    with pytest.raises(UnreadableValue, match=r"needs torch\.BFloat16Storage"):
        unpickle(pickle.dumps(torch.zeros(2, dtype=torch.bfloat16)))


def test_a_tensor_beyond_its_storage_is_refused() -> None:
    good = pickle.dumps(torch.arange(3, dtype=torch.uint8), 2)
    assert unpickle(good).tolist() == [0, 1, 2]
    offset = good.replace(b"K\x00K\x03\x85", b"K\x01K\x03\x85")
    assert offset != good
    with pytest.raises(UnreadableValue, match="beyond its 3 numbers"):
        unpickle(offset)


class Touch:
    def __reduce__(self) -> Any:
        return os.mkdir, (self.place,)

    def __init__(self, place: str) -> None:
        self.place = place


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_that_a_value_asks_for_is_run_and_it_is_named(tmp_path: Any, protocol: int) -> None:
    place = tmp_path / "made"
    with pytest.raises(UnreadableValue, match=r"needs posix\.mkdir.*allow_pickle = true"):
        unpickle(pickle.dumps({"x": Touch(str(place))}, protocol))
    assert not place.exists()
    with pytest.raises(UnreadableValue, match=r"needs (types|copy_reg|copyreg)\.\w+"):
        unpickle(pickle.dumps(types.SimpleNamespace(a=1), protocol))


@pytest.mark.parametrize(
    "value",
    [
        b"cbuiltins\neval\n(V1\ntR.",
        b"(S'echo'\nios\nsystem\n.",
        b"cnumpy\nload\n(Vx\ntR.",
        b"cfunctools\npartial\n.",
        b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93.",
        b"cnumpy.core.multiarray\nfrombuffer\n.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02K\x01Q.",
        b"P1\n.",
    ],
)
def test_names_and_ids_beyond_the_known_ones_are_refused(value: bytes) -> None:
    with pytest.raises(UnreadableValue, match=r"needs|persistent id|extension registry"):
        unpickle(value)


def test_an_array_over_chosen_bytes_as_pointers_is_refused() -> None:
    """What a list of allowed names lets through, and the process dies of."""
    pointer = struct.pack("<Q", 0x4141414141414141)
    call = (
        b"\x80\x03cnumpy\nndarray\n(K\x01\x85cnumpy\ndtype\nX\x01\0\0\0O\x85RC\x08"
        + pointer
        + b"tR."
    )
    forged = (
        b"\x80\x03cnumpy._core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85C\x01b\x87R"
        b"(K\x01K\x01\x85cnumpy\ndtype\nX\x02\0\0\0V8\x89\x88\x87R(K\x03X\x01\0\0\0|NX\x01\0\0\0x\x85"
        b"}X\x01\0\0\0xcnumpy\ndtype\nX\x01\0\0\0O\x89\x88\x87RK\0\x86sK\x08K\x01K\0tb\x89C\x08"
        + pointer
        + b"tb."
    )
    for value in (call, forged):
        with pytest.raises(UnreadableValue, match=r"dtype 'O'|dtype 'V8'|records|no function"):
            unpickle(value)
    for array in (np.array([{}], object), np.zeros(2, [("a", "i4")]), np.array([1], "M8[s]")):
        with pytest.raises(UnreadableValue, match="not plain numbers"):
            unpickle(pickle.dumps(array))


def test_every_cut_of_a_value_is_refused() -> None:
    value = {"image": bytes(300), "x": np.arange(5), "names": ["a", "b" * 300], "n": 1 << 40}
    for protocol in (0, 2, 4, 5):
        data = pickle.dumps(value, protocol)
        for size in range(len(data)):
            with pytest.raises(UnreadableValue):
                unpickle(data[:size])


def test_a_value_that_holds_itself_is_refused() -> None:
    looped: list[Any] = [1]
    looped.append(looped)
    table: dict[str, Any] = {}
    table["self"] = (table,)
    for value in (looped, table):
        with pytest.raises(UnreadableValue, match="hold themselves"):
            unpickle(pickle.dumps(value))


def bomb(base: Any, times: int) -> bytes:
    """A list of ten times a list of ten times a list ... of `base`."""
    value = base
    for _ in range(times):
        value = [value] * 10
    return pickle.dumps(value)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (bomb([], 12), "more than 1,048,576 entries"),
        (bomb(b"x" * 10_000, 4), "the same bytes over and over"),
        (b"\x80\x02" + b"(" * 200_000, "cut short"),
        (b"\x80\x02" + b"]" * 70 + b"a" * 69 + b".", "more than 64 deep"),
        (b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"x.", "cut short: 1,152,921,504,606"),
        (b"\x80\x02r\xff\xff\xff\xff.", "damaged or cut short"),
        (b"\x80\x02\x8b" + struct.pack("<I", 5000) + b"x" * 5000 + b".", "a number of 5,000 bytes"),
        (b"I" + b"9" * 5000 + b"\n.", "a number of 5,000 digits"),
        (b"\x80\x02" + b"N0" * (1 << 20) + b"N.", "more than 2,097,152 steps"),
    ],
)
def test_a_small_value_that_asks_for_much_is_refused(value: bytes, reason: str) -> None:
    with pytest.raises(UnreadableValue, match=reason):
        unpickle(value)


@pytest.mark.parametrize(
    ("part", "call"),
    [
        (b"X" + struct.pack("<I", 99_000) + b"x" * 99_000, b"c_codecs\nencode\nh\0X\6\0\0\0latin1\x86R"),
        (b"X" + struct.pack("<I", 99_000) + b"x" * 99_000, b"cbuiltins\nbytearray\nh\0X\6\0\0\0latin1\x86R"),
        (b"(" + b"K\1" * 30_000 + b"l", b"cbuiltins\nbytes\nh\0\x85R"),
        (b"(" + b"K\1" * 30_000 + b"l", b"cbuiltins\nset\nh\0\x85R"),
    ],
)  # fmt: skip
def test_a_part_that_is_made_into_something_over_and_over_is_refused(
    part: bytes, call: bytes
) -> None:
    once = b"\x80\x02](" + part + b"q\0" + call + b"e."
    assert len(unpickle(once)) == 2
    with pytest.raises(UnreadableValue, match="much larger than its"):
        unpickle(b"\x80\x02](" + part + b"q\0" + call * 1000 + b"e.")


def test_an_array_named_a_thousand_times_is_one_array_and_a_forged_size_is_refused() -> None:
    array = np.zeros(1000)
    found = unpickle(pickle.dumps([array] * 1000))
    assert len({id(one) for one in found}) == 1
    grown = pickle.dumps(np.zeros(3, np.uint8), 4).replace(b"K\x03\x85", b"K\x04\x85")
    with pytest.raises(UnreadableValue, match="4 bytes, and 3 bytes of data"):
        unpickle(grown)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b".",
        b"\xff\xd8\xff",
        b"hello",
        b"\x80\x09N.",
        b"\x80\x02}]N\x86s.",
        b"0.",
        b"t.",
        b"R.",
        b"\x80\x02NNb.",
    ],
)
def test_what_is_no_pickle_is_refused(value: bytes) -> None:
    with pytest.raises(UnreadableValue):
        unpickle(value)


def test_torch_is_not_imported_to_read_a_tensor() -> None:
    data = pickle.dumps(torch.arange(4))
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from loaderd.data.values.pickles import unpickle; "
         "print(unpickle(sys.stdin.buffer.read()).tolist(), 'torch' in sys.modules)"],
        input=data, capture_output=True, timeout=DEADLINE_S, check=True,
    )  # fmt: skip
    assert done.stdout == b"[0, 1, 2, 3] False\n"


def test_the_reader_of_a_view_keeps_no_copy_of_an_array() -> None:
    data = pickle.dumps(np.arange(1000, dtype=np.uint8), 5)
    found = unpickle(memoryview(data))
    assert not found.flags.writeable
    assert np.shares_memory(found, np.frombuffer(data, np.uint8))
    assert io.BytesIO(data).read() == data
