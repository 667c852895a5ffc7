from __future__ import annotations

import contextlib
import struct

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaderd.data.lmdb import record_format
from loaderd.data.sample import Sample
from loaderd_testing.sample_builders import coded, picture


def everything() -> Sample:
    sample = Sample(
        {
            "image": coded(picture(), "JPEG"),
            "mask": np.arange(24, dtype=np.uint8).reshape(2, 4, 3),
            "label": np.array(7, np.int64),
            "x": np.linspace(0, 1, 500, dtype=np.float32),
            "none": np.zeros((0, 4), np.float64),
            "word": "grüße",
            "raw": b"\0\1\2",
            "ok": np.array(True),
        },
        encoded=("image",),
        images=("mask",),
    )
    return sample


def test_a_sample_comes_back_as_it_was_packed() -> None:
    before = everything()
    value = record_format.pack_sample(before, b"a/b.jpg")
    after = record_format.unpack_sample(value)
    assert list(after) == list(before)
    assert after.encoded == {"image"}
    assert after.images == {"mask"}
    for name, was in before.items():
        now = after[name]
        if isinstance(was, np.ndarray):
            assert now.dtype == was.dtype
            assert now.shape == was.shape
            np.testing.assert_array_equal(now, was)
        else:
            assert (bytes(now) if isinstance(was, bytes) else now) == was
    assert record_format.name_of(value) == b"a/b.jpg"


def test_the_same_sample_gives_the_same_bytes_for_ever() -> None:
    sample = Sample(
        {"label": np.array(3, np.int64), "image": b"\xff\xd8\xff\xe0"}, encoded=("image",)
    )
    value = record_format.pack_sample(sample, b"n")
    assert record_format.pack_sample(sample, b"n") == value
    head = msgpack.packb([["label", 0, "<i8", [], 8], ["image", 2, "jpeg", [], 4]])
    assert value[:8] == struct.pack("<II", len(head), 1)
    assert value[8 : 9 + len(head)] == head + b"n"
    assert value[-12:] == struct.pack("<q", 3) + b"\xff\xd8\xff\xe0"


def test_large_buffers_lie_at_multiples_of_64_behind_a_page_head() -> None:
    sample = Sample(
        {
            "a": np.ones(3, np.uint8),
            "b": np.ones(2000, np.float32),
            "c": np.ones(1, np.float64),
            "d": np.ones(3000, np.uint8),
        }
    )
    value = bytes(record_format.PAGE_HEAD) + record_format.pack_sample(sample)
    page = np.frombuffer(value, np.uint8)
    read = record_format.unpack_sample(memoryview(value)[record_format.PAGE_HEAD :])
    start = page.ctypes.data
    assert (read["b"].ctypes.data - start) % 64 == 0
    assert (read["d"].ctypes.data - start) % 64 == 0
    assert np.shares_memory(read["b"], page)
    assert not read["b"].flags.writeable


def test_a_value_that_lies_badly_is_copied_and_so_still_aligned() -> None:
    value = bytes(1) + record_format.pack_sample(Sample({"x": np.arange(5, dtype=np.float64)}))
    for shift in range(1, 9):
        moved = memoryview(bytes(shift) + value[1:])[shift:]
        array = record_format.unpack_sample(moved)["x"]
        assert array.flags.aligned
        assert array.tolist() == [0, 1, 2, 3, 4]


def test_samples_come_in_the_order_of_their_index_and_after_the_metadata() -> None:
    keys = [
        record_format.META_KEY,
        record_format.PART_KEY,
        *[record_format.sample_key(i) for i in (0, 1, 255, 256, 1 << 40)],
    ]
    assert keys == sorted(keys)


def test_metadata_comes_back() -> None:
    meta = record_format.DatabaseMeta(
        3, "abc", "tuple", "dataset", True, ("a", "b"), (("x", 0, "<f4", (3, 4)), ("t", 3, "", ()))
    )
    assert record_format.unpack_meta(record_format.pack_meta(meta)) == meta


def test_text_with_lone_surrogates_cannot_be_packed() -> None:
    with pytest.raises(ValueError, match="surrogates not allowed"):
        record_format.pack_sample(Sample({"t": "\ud800"}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 2}, "version 2"),
        ({"count": -1}, "impossible"),
        ({"count": "3"}, "no count"),
        ({"form": "list"}, "impossible"),
        ({"classes": [1]}, "class names"),
        ({"fields": [["x", 0, "<f4"]]}, "field"),
    ],
)
def test_metadata_that_nobody_wrote_is_refused(change: dict[str, object], reason: str) -> None:
    record = msgpack.unpackb(
        record_format.pack_meta(record_format.DatabaseMeta(3, "abc"))[
            len(record_format.META_MAGIC) :
        ]
    )
    with pytest.raises(record_format.DamagedRecord, match=reason):
        record_format.unpack_meta(record_format.META_MAGIC + msgpack.packb(record | change))


def test_object_arrays_cannot_be_smuggled_in() -> None:
    head = msgpack.packb([["x", 0, "|O8", [1], 8]])
    with pytest.raises(record_format.DamagedRecord, match=r"field 'x' has dtype"):
        record_format.unpack_sample(struct.pack("<II", len(head), 0) + head + bytes(64))


def test_an_array_larger_than_its_bytes_takes_no_memory() -> None:
    head = msgpack.packb([["x", 0, "<f8", [1 << 40, 1 << 5], 0]])
    with pytest.raises(record_format.DamagedRecord, match="has 0 bytes"):
        record_format.unpack_sample(struct.pack("<II", len(head), 0) + head)


def harmless(value: bytes) -> None:
    for read in (
        record_format.unpack_sample,
        record_format.read_head,
        record_format.name_of,
        record_format.unpack_meta,
    ):
        with contextlib.suppress(record_format.DamagedRecord):
            read(value)


def test_an_empty_array_of_a_shape_that_no_array_has_is_damage() -> None:
    for shape in ([1 << 47, 1 << 47, 0], [0] + [1 << 47] * 31, [1 << 30, 0, 1 << 30, 8]):
        head = msgpack.packb([["x", 0, "<i8", shape, 0]])
        value = record_format.SIZES.pack(len(head), 0) + head
        value += bytes(
            record_format.places(
                len(value),
                [
                    record_format.RecordPart(
                        "x", record_format.FieldKind.ARRAY, "<i8", tuple(shape), 0
                    )
                ],
            )[-1]
            - len(value)
        )
        with pytest.raises(record_format.DamagedRecord, match="impossible"):
            record_format.unpack_sample(value)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_raise_nothing_but_damaged(data: bytes) -> None:
    harmless(data)
    harmless(record_format.META_MAGIC + data)
    harmless(struct.pack("<II", len(data), 0) + data)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 400), st.integers(0, 255), st.integers(0, 300))
def test_a_damaged_value_raises_nothing_but_damaged(at: int, byte: int, cut: int) -> None:
    value = bytearray(record_format.pack_sample(everything(), b"name"))
    value[at % len(value)] = byte
    harmless(bytes(value))
    harmless(bytes(value[: len(value) - cut]))


JSONISH = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.sampled_from(["<f4", "|u1", "|b1", "<c16"]),
    lambda inner: (
        st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(JSONISH)
def test_well_formed_msgpack_of_the_wrong_shape_raises_nothing_but_damaged(tree: object) -> None:
    data = msgpack.packb(tree)
    harmless(struct.pack("<II", len(data), 0) + data)
    for wrapped in ([tree], [["x", 0, "<f4", tree, 4]], [["x", tree, "<f4", [1], 4]]):
        data = msgpack.packb(wrapped)
        harmless(struct.pack("<II", len(data), 0) + data + bytes(100))
    base = {
        "version": 1,
        "count": 1,
        "identity": "",
        "form": "dict",
        "kind": "",
        "named": False,
        "classes": [],
        "fields": [],
    }
    for name in base:
        harmless(record_format.META_MAGIC + msgpack.packb(base | {name: tree}))


def test_a_name_longer_than_any_is_no_sample_of_ours() -> None:
    value = record_format.pack_sample(
        Sample({"x": np.arange(3)}), b"n" * (record_format.MAX_HEAD + 1)
    )
    with pytest.raises(
        record_format.DamagedRecord, match=f"a name of {record_format.MAX_HEAD + 1} bytes"
    ):
        record_format.unpack_sample(value)
    with pytest.raises(record_format.DamagedRecord):
        record_format.name_of(value)
    assert (
        record_format.name_of(
            record_format.pack_sample(Sample({"x": np.arange(3)}), b"n" * record_format.MAX_HEAD)
        )
        == b"n" * record_format.MAX_HEAD
    )


def test_heads_of_samples_that_all_differ_are_not_all_remembered() -> None:
    record_format._heads.clear()
    for size in range(3 * record_format.HEADS):
        record_format.unpack_sample(
            record_format.pack_sample(Sample({"x": np.zeros(size, np.uint8)}))
        )
    assert len(record_format._heads) == record_format.HEADS


@pytest.mark.parametrize("classes", [["a", "b", "c"], ["a", 1], [b"a"]])
def test_metadata_with_too_many_classes_or_others_than_names_is_damaged(
    monkeypatch: pytest.MonkeyPatch, classes: list[object]
) -> None:
    monkeypatch.setattr(record_format, "MAX_CLASSES", 2)
    record = record_format.pack_meta(record_format.DatabaseMeta(1, "id", classes=tuple(classes)))  # type: ignore[arg-type]
    with pytest.raises(record_format.DamagedRecord, match="class names"):
        record_format.unpack_meta(record)
    assert record_format.unpack_meta(
        record_format.pack_meta(record_format.DatabaseMeta(1, "id", classes=("a", "b")))
    ).classes == ("a", "b")
