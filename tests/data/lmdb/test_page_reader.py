"""Rows from the pages of a database are the values that the library reads, or none."""

from __future__ import annotations

import ctypes
import mmap
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from loaderd.data.lmdb import record_format
from loaderd.data.lmdb.open_stores import open_store
from loaderd.data.lmdb.page_reader import STREAMED, TARGET, Pages, address_of, library
from loaderd.data.lmdb.store import Store

pytestmark = pytest.mark.needs("extensions")

BEGIN = b"begin"
NAME = 0x41_42_43_44_45_46_47_48  # a number that is a name


def value(index: int, size: int) -> bytes:
    return BEGIN + random.Random(index).randbytes(size - len(BEGIN))


def written(path: Path, count: int, size: int, odd: dict[bytes, bytes] | None = None) -> Path:
    """`count` samples, in keys as `pack` writes them, and whatever else is in `odd`."""
    items = (
        {record_format.sample_key(i): value(i, size) for i in range(count)}
        | {record_format.META_KEY: b"meta", record_format.PART_KEY: b"part"}
        | (odd or {})
    )
    with (
        lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 28, sync=False) as env,
        env.begin(write=True) as txn,
    ):
        for key, data in sorted(items.items()):
            txn.put(key, data, append=True)
    return path


def opened(path: Path, size: int) -> tuple[Store, Pages]:
    store = open_store(str(path))
    pages = store.pages(size)
    assert pages is not None
    return store, pages


@pytest.mark.parametrize(
    ("count", "size", "depth"),
    [
        (1, 30, 1),
        (40, 200, 2),
        (300, 1500, 2),
        (25_000, 100, 3),
        (7, 2000, 2),
        (9, 4096, 1),
        (12, 70_001, 1),
    ],
)
def test_every_value_is_found_whatever_the_tree(
    tmp_path: Path, count: int, size: int, depth: int
) -> None:
    path = written(tmp_path / "db", count, size)
    with lmdb.open(str(path), subdir=False, lock=False, readonly=True) as env:
        assert env.stat()["depth"] == depth
    store, pages = opened(path, size)
    indices = np.random.default_rng(0).permutation(np.repeat(np.arange(count), 2))
    head, tail = (
        np.full((len(indices), 7), 3, np.uint8),
        np.full((len(indices), size - 9), 3, np.uint8),
    )
    assert pages.copy(indices, BEGIN, size, [(head, 2, 7), (tail, 9, size - 9)])
    expected = np.frombuffer(
        b"".join(bytes(store.get(record_format.sample_key(i)) or b"") for i in indices.tolist()),
        np.uint8,
    )
    expected = expected.reshape(len(indices), size)
    np.testing.assert_array_equal(head, expected[:, 2:9])
    np.testing.assert_array_equal(tail, expected[:, 9:])
    store.close()
    assert not pages.copy(indices, BEGIN, size, [(head, 2, 7)])


@pytest.mark.parametrize("shift", [0, 1, 8, 63])
@pytest.mark.parametrize("size", [STREAMED // 8 + 1, 1_500_007, 2000])
def test_copies_past_the_caches_are_whole_wherever_they_begin_and_end(
    tmp_path: Path, shift: int, size: int
) -> None:
    store, pages = opened(written(tmp_path / "db", 9, size), size)
    length = size - 6
    rows = -(-STREAMED // length) + 3
    room = np.full(rows * length + 256, 5, np.uint8)
    start = -address_of(room) % 64 + shift
    to = room[start : start + rows * length].reshape(rows, length)
    assert pages.copy(np.arange(rows) % 9, BEGIN, size, [(to, 6, length)])
    for row in range(rows):
        assert to[row].tobytes() == value(row % 9, size)[6:]
    assert set(room[:start].tolist()) <= {5}
    assert set(room[start + rows * length :].tolist()) == {5}
    store.close()


def test_what_is_not_there_or_not_as_it_should_be_is_not_copied(tmp_path: Path) -> None:
    odd = {
        record_format.sample_key(3): b"",
        record_format.sample_key(5): value(5, 99),
        record_format.sample_key(6): b"x" * 100,
        record_format.sample_key(7)[:7]: value(0, 100),
        record_format.sample_key(7) + b"\0": value(0, 100),
    }
    store, pages = opened(written(tmp_path / "db", 8, 100, odd), 100)
    out = np.zeros((3, 100), np.uint8)
    for index in (3, 5, 6, 8, -1, 1 << 40, -(1 << 63)):
        assert not pages.copy(np.array([1, 2, index]), BEGIN, 100, [(out, 0, 100)]), index
    assert pages.copy(np.array([7, 4, 0]), BEGIN, 100, [(out, 0, 100)])
    assert [row.tobytes() for row in out] == [value(i, 100) for i in (7, 4, 0)]
    assert pages.copy(np.array([], np.int64), BEGIN, 100, [])
    assert not pages.copy(np.array([6]), BEGIN, 100, [])
    for targets in ([(out, 1, 100)], [(out, 0, 99)], [(out, -1, 100)], [(out[:2], 0, 100)]):
        with pytest.raises(
            ValueError, match="targets that aren't for 3 rows of values of 100 bytes"
        ):
            pages.copy(np.array([7, 4, 0]), BEGIN, 100, targets)
    with pytest.raises(ValueError, match="values of 4 bytes can't begin with"):
        pages.copy(np.array([0, 1, 2]), BEGIN, 4, [(out[:, :0], 0, 0)])
    store.close()


def test_a_named_database_under_a_samples_key_is_no_value(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "db"), subdir=False, lock=False, max_dbs=2) as env:
        env.open_db(record_format.sample_key(NAME))
    store, pages = opened(tmp_path / "db", 48)
    assert len(store.get(record_format.sample_key(NAME)) or b"") == 48
    assert not pages.copy(np.array([NAME]), b"", 48, [(np.zeros((1, 48), np.uint8), 0, 48)])
    store.close()


@pytest.fixture
def guarded() -> Iterator[Any]:
    """Copies bytes to memory that ends where the process may not read; gives their address."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    rooms: list[mmap.mmap] = []

    def place(data: bytes) -> int:
        pages = -(-len(data) // mmap.PAGESIZE) * mmap.PAGESIZE
        room = mmap.mmap(-1, pages + mmap.PAGESIZE)
        rooms.append(room)
        address = ctypes.addressof(ctypes.c_char.from_buffer(room))
        assert libc.mprotect(address + pages, mmap.PAGESIZE, 0) == 0, ctypes.get_errno()
        ctypes.memmove(address + pages - len(data), data, len(data))
        return address + pages - len(data)

    yield place
    for room in rooms:
        room.close()


@pytest.mark.parametrize(("count", "size"), [(6, 30), (200, 200), (5, 5000)])
def test_damaged_pages_do_no_harm_and_give_only_what_is_in_the_file(
    tmp_path: Path, guarded: Any, count: int, size: int
) -> None:
    path = written(tmp_path / "db", count, size)
    store = open_store(str(path))
    page, pages, root = store.facts.page, store.facts.pages, store.facts.root
    store.close()
    whole = path.read_bytes()[: page * pages]
    found: Any = library()
    draw, outcomes = random.Random(count), set[bool]()
    keys = np.arange(count, dtype=np.int64)
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(draw.choice((1, 2, 20))):
            at = draw.choice(
                (
                    draw.randrange(page * 2, len(whole)),
                    draw.randrange(2, pages) * page + draw.randrange(64),
                )
            )
            damaged[at] = draw.randrange(256)
        out = np.zeros((count, size), np.uint8)
        done = found.loaderd_rows_copy(
            guarded(bytes(damaged)), page, pages, draw.choice((root, root, draw.randrange(pages + 1))), address_of(keys), count, b"", 0, size,
            TARGET.pack(address_of(out), 0, size), 1, draw.randrange(2)
        )  # fmt: skip
        assert 0 <= done <= count
        assert [row for row in out[:done] if row.tobytes() not in damaged] == []
        outcomes.add(done == count)
    assert outcomes == {True, False}
