"""loaderd's own layout: the bytes of what `pack` writes, declared once.

key of sample i:   i as 8 bytes, big-endian, from 0 without gaps
META_KEY:          META_MAGIC, then a msgpack map: version, count, identity, form, kind, named,
classes, fields
PART_KEY:          how far a pack has come; with META_KEY: it is complete, what was packed in all
value:             uint32 little-endian, twice: bytes of the head, of the name | head | name |
buffers
head:              msgpack [[field, kind, dtype, shape, bytes], ...]
name:              where the sample came from, raw bytes, may be empty

The buffers lie behind the name in the order of the fields. A value of more than half a page begins
16 bytes into a page of its own, so that buffers of BIG bytes or more can be placed to lie at
multiples of 64 in memory, smaller ones at multiples of 8. META_KEY and PART_KEY sort before every
sample, so that samples are appended.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any

import msgpack
import numpy as np

from loaderd.data.sample import MAX_FIELDS, Sample, plain_array
from loaderd_wire.packing import packed
from loaderd_wire.slots import itemsize

VERSION = 1
META_KEY, META_MAGIC = b"\0", b"loaderd\0"
PART_KEY = b"\0\0"
SIZES = struct.Struct("<II")
INDEX = struct.Struct(">Q")
PAGE_HEAD = 16  # bytes before a large value in its page
BIG = 1024
MAX_HEAD = 1 << 20
MAX_META = 64 << 20
MAX_CLASSES = 100_000
# bytes of an array if no axis of it were empty; numpy makes no greater one, even where there is
# nothing in it
MAX_SPAN = 1 << 62
MAX_AXES = 32
# parsed heads that are remembered: where all samples have the same shapes there is but one
HEADS = 64


class DamagedRecord(ValueError):
    """Bytes that no version of this layout has written."""


class FieldKind(IntEnum):
    """What a field of a record is; the numbers are stored."""

    ARRAY = 0
    PICTURE = 1  # an array, height x width x channels
    ENCODED = 2  # a stored image as it is; dtype is its codec
    TEXT = 3
    BYTES = 4


@dataclass(frozen=True, slots=True)
class RecordPart:
    """One field of a stored sample, as in the head."""

    name: str
    kind: FieldKind
    dtype: str
    shape: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class DatabaseMeta:
    """What is known of the whole database.

    Attributes:
        count: Samples.
        identity: Of their content.
        form: "dict" or "tuple".
        kind: What it was packed from.
        named: Samples have names.
        classes: Names of the labels, by number.
        fields: (name, kind, dtype, shape) of the first sample, shape () for what has none.
    """

    count: int
    identity: str
    form: str = "dict"
    kind: str = ""
    named: bool = False
    classes: tuple[str, ...] = ()
    fields: tuple[tuple[str, int, str, tuple[int, ...]], ...] = field(default=())


def sample_key(index: int) -> bytes:
    """The key of sample `index`: 8 bytes, so that LMDB's order is that of the indices."""
    return INDEX.pack(index)


def places(start: int, parts: Iterable[RecordPart]) -> list[int]:
    """Where each buffer begins in the value, behind a head that ends at `start`.

    The last entry is the value's size.
    """
    found: list[int] = []
    at = start
    for part in parts:
        to = 1 if part.kind >= FieldKind.ENCODED else 64 if part.size >= BIG else 8
        at += -(at + PAGE_HEAD) % to
        found.append(at)
        at += part.size
    return [*found, at]


def part_of(name: str, value: Any, sample: Sample) -> tuple[RecordPart, Any]:
    """How a sample's field is stored: its entry in the head and its buffer."""
    if isinstance(value, str):
        data = value.encode()
        return RecordPart(name, FieldKind.TEXT, "", (), len(data)), data
    if isinstance(value, np.ndarray):
        array = np.asarray(plain_array(value, name), order="C")
        kind = FieldKind.PICTURE if name in sample.images else FieldKind.ARRAY
        return RecordPart(name, kind, array.dtype.str, array.shape, array.nbytes), array.tobytes()
    if name in sample.encoded:
        from loaderd.data.images.decode import codec_of

        return RecordPart(name, FieldKind.ENCODED, codec_of(value), (), len(value)), value
    return RecordPart(name, FieldKind.BYTES, "", (), len(value)), value


def pack_head(parts: Iterable[RecordPart]) -> bytes:
    """The head of a sample's value, which says what its buffers are."""
    return packed([[p.name, int(p.kind), p.dtype, list(p.shape), p.size] for p in parts])


def pack_sample(sample: Sample, name: bytes = b"") -> bytes:
    """The value of one sample.

    The same sample gives the same bytes. Raises ValueError for text that is not UTF-8 (lone
    surrogates).
    """
    parts, buffers = zip(
        *[part_of(field_name, value, sample) for field_name, value in sample.items()], strict=True
    )
    head = pack_head(parts)
    start = SIZES.size + len(head) + len(name)
    begins = places(start, parts)
    out = bytearray(begins[-1])
    SIZES.pack_into(out, 0, len(head), len(name))
    out[SIZES.size : start] = head + name
    for at, data in zip(begins, buffers, strict=False):
        out[at : at + len(data)] = data
    return bytes(out)


def _sizes(value: bytes | memoryview) -> tuple[int, int]:
    """(where the head ends, where the name ends) of a stored sample. Raises Damaged."""
    if len(value) < SIZES.size:
        raise DamagedRecord(f"a value of {len(value)} bytes has no head")
    head, name = SIZES.unpack_from(value)
    if head > MAX_HEAD or name > MAX_HEAD or SIZES.size + head + name > len(value):
        raise DamagedRecord(
            f"a head of {head} and a name of {name} bytes in a value of {len(value)}"
        )
    return SIZES.size + head, SIZES.size + head + name


def name_of(value: bytes | memoryview) -> bytes:
    """The name of a stored sample. Raises Damaged, and nothing else."""
    begin, end = _sizes(value)
    return bytes(value[begin:end])


_heads: dict[bytes, tuple[RecordPart, ...]] = {}


def read_head(value: bytes | memoryview) -> tuple[tuple[RecordPart, ...], int]:
    """(parts, where the buffers may begin) of a stored sample.

    Raises Damaged, and nothing else, for anything that is none.
    """
    end, start = _sizes(value)
    head = bytes(value[SIZES.size : end])
    parts = _heads.get(head)
    if parts is None:
        parts = _parse_head(head)
        if len(_heads) < HEADS:
            _heads[head] = parts
    return parts, start


def _parse_head(head: bytes) -> tuple[RecordPart, ...]:
    entries = _unpack(head)
    if type(entries) is not list or not 1 <= len(entries) <= MAX_FIELDS:
        raise DamagedRecord("its head is not a list of fields")
    parts = tuple(map(_part, entries))
    if len({part.name for part in parts}) != len(parts):
        raise DamagedRecord("two of its fields have one name")
    return parts


def _part(entry: Any) -> RecordPart:
    if type(entry) is not list or len(entry) != 5:
        raise DamagedRecord("a field is not described by five values")
    name, kind, dtype, shape, size = entry
    if (
        type(name) is not str
        or type(kind) is not int
        or type(dtype) is not str
        or type(shape) is not list
        or type(size) is not int
    ):
        raise DamagedRecord("a field is described by values of wrong types")
    if (
        not 0 <= kind <= FieldKind.BYTES
        or size < 0
        or len(shape) > MAX_AXES
        or not all(type(n) is int and 0 <= n < 1 << 48 for n in shape)
    ):
        raise DamagedRecord(f"field {name!r} is described by impossible values")
    if kind <= FieldKind.PICTURE:
        try:
            item = itemsize(dtype)
            np.dtype(dtype)
        except (ValueError, TypeError):
            raise DamagedRecord(f"field {name!r} has dtype {dtype!r:.20}") from None
        if math.prod(n or 1 for n in shape) * item > MAX_SPAN:
            raise DamagedRecord(f"field {name!r} is described by impossible values")
        if math.prod(shape) * item != size or (kind == FieldKind.PICTURE and len(shape) != 3):
            raise DamagedRecord(f"field {name!r} of {dtype} {shape} has {size} bytes")
    return RecordPart(name, FieldKind(kind), dtype, tuple(shape), size)


def _unpack(data: bytes | memoryview) -> Any:
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=True, max_ext_len=0)
    except Exception as error:  # noqa: BLE001 - msgpack raises many kinds: ValueError, UnicodeDecodeError, StackError, TypeError
        raise DamagedRecord(f"not msgpack: {type(error).__name__}: {error}") from None


def unpack_sample(value: bytes | memoryview) -> Sample:
    """The sample in a stored value.

    Arrays are read-only views of `value` where they lie well; encoded images and bytes are views.

    Raises Damaged, and nothing else.
    """
    parts, start = read_head(value)
    begins = places(start, parts)
    if begins[-1] != len(value):
        raise DamagedRecord(f"its fields need {begins[-1]} bytes, the value has {len(value)}")
    sample = Sample()
    for part, at in zip(parts, begins, strict=False):
        data = memoryview(value)[at : at + part.size]
        if part.kind <= FieldKind.PICTURE:
            array = (
                np.frombuffer(data, part.dtype).reshape(part.shape)
                if part.size
                else np.zeros(part.shape, part.dtype)
            )
            sample[part.name] = array if array.flags.aligned else array.copy()
            if part.kind == FieldKind.PICTURE:
                sample.images.add(part.name)
        elif part.kind == FieldKind.TEXT:
            try:
                sample[part.name] = str(data, "utf-8")
            except UnicodeDecodeError:
                raise DamagedRecord(f"field {part.name!r} is not UTF-8") from None
        else:
            sample[part.name] = data
            if part.kind == FieldKind.ENCODED:
                sample.encoded.add(part.name)
    return sample


def pack_meta(meta: DatabaseMeta) -> bytes:
    """The value of META_KEY, which `unpack_meta` reads."""
    return META_MAGIC + packed({"version": VERSION, **asdict(meta)})


def is_meta(value: bytes | memoryview | None) -> bool:
    """Whether a value begins as that of a database of ours; None does not."""
    return value is not None and bytes(value[: len(META_MAGIC)]) == META_MAGIC


def unpack_meta(value: bytes | memoryview) -> DatabaseMeta:
    """The metadata record. Raises Damaged, and nothing else."""
    if not is_meta(value) or len(value) > MAX_META:
        raise DamagedRecord(f"a metadata record of {len(value)} bytes that loaderd did not write")
    record = _unpack(value[len(META_MAGIC) :])
    if not isinstance(record, Mapping):
        raise DamagedRecord("its metadata is not a map")
    version = record.get("version")
    if version != VERSION:
        raise DamagedRecord(f"its format is version {version!r:.20}, this loaderd reads {VERSION}")
    wanted = {
        "count": int,
        "identity": str,
        "form": str,
        "kind": str,
        "named": bool,
        "classes": list,
        "fields": list,
    }
    for name, kind in wanted.items():
        if type(record.get(name)) is not kind:
            raise DamagedRecord(f"its metadata has no {name}, or not as {kind.__name__}")
    if not 0 <= record["count"] < 1 << 48 or record["form"] not in ("dict", "tuple"):
        raise DamagedRecord("its metadata has impossible values")
    if len(record["classes"]) > MAX_CLASSES or not all(
        type(name) is str for name in record["classes"]
    ):
        raise DamagedRecord("its class names are not a list of names")
    return DatabaseMeta(
        record["count"],
        record["identity"],
        record["form"],
        record["kind"],
        record["named"],
        tuple(record["classes"]),
        tuple(map(_field, record["fields"])),
    )


def _field(entry: Any) -> tuple[str, int, str, tuple[int, ...]]:
    if (
        type(entry) is not list
        or len(entry) != 4
        or type(entry[0]) is not str
        or type(entry[1]) is not int
        or type(entry[2]) is not str
    ):
        raise DamagedRecord("its metadata describes an impossible field")
    shape = entry[3]
    if type(shape) is not list or len(shape) > MAX_AXES or not all(type(n) is int for n in shape):
        raise DamagedRecord("its metadata describes an impossible field")
    return entry[0], entry[1], entry[2], tuple(shape)
