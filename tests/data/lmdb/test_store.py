from __future__ import annotations

import os
import struct
from pathlib import Path

import lmdb
import pytest

from loaderd.data.errors import SourceError, WriteFault
from loaderd.data.lmdb.open_stores import open_store
from loaderd.data.lmdb.store import show_key
from loaderd.data.lmdb.writer import Writer
from loaderd_testing.database_builders import filled
from loaderd_testing.sample_builders import write


@pytest.mark.parametrize("subdir", [False, True])
def test_a_database_is_found_by_what_it_is_and_not_by_its_name(
    tmp_path: Path, subdir: bool
) -> None:
    path = filled(tmp_path / ("file.lmdb" if subdir else "folder"), subdir=subdir)
    store = open_store(str(path))
    value = store.get(b"0007")
    assert value is not None
    assert value.readonly
    assert bytes(value) == b"\7" * 3000
    assert store.get(b"no such key") is None
    assert store.get(b"") is None
    assert store.entries == 300
    del value
    store.close()


def test_reading_leaves_no_file_beside_a_database(tmp_path: Path) -> None:
    path = filled(tmp_path / "db")
    path.chmod(0o400)
    open_store(str(path)).close()
    assert os.listdir(tmp_path) == ["db"]


def test_two_users_of_one_file_share_a_handle_that_outlives_the_first(tmp_path: Path) -> None:
    path = filled(tmp_path / "db")
    (tmp_path / "link").symlink_to(path)
    first, second = open_store(str(path)), open_store(str(tmp_path / "link"))
    assert first is second
    first.close()
    assert second.get(b"0001") is not None
    second.close()
    third = open_store(str(path))
    assert third is not first
    third.close()


def test_a_store_opened_before_a_fork_is_not_used_after_it(tmp_path: Path) -> None:
    store = open_store(str(filled(tmp_path / "db")))
    read, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        text = "no error"
        try:
            store.get(b"0001")
        except SourceError as error:
            text = str(error)
        os.write(write_end, text.encode())
        os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    with os.fdopen(read, "rb") as pipe:
        assert f"was opened in process {os.getpid()}" in pipe.read().decode()
    store.close()


def test_a_child_opens_anew_what_its_parent_has_open(tmp_path: Path) -> None:
    path = str(filled(tmp_path / "db"))
    store = open_store(path)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            own = open_store(path)
            code = 0 if own is not store and own.get(b"0001") is not None else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.get(b"0001") is not None
    store.close()


def test_a_page_overwritten_in_the_middle_is_an_error_or_a_wrong_value_but_no_crash_of_open(
    tmp_path: Path,
) -> None:
    path = filled(tmp_path / "db")
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env:
        depth = env.stat()["depth"]
    assert depth >= 2
    data = bytearray(path.read_bytes())
    root = struct.unpack_from("=Q", data, 4096 + 16 + 4 + 4 + 8 + 8 + 48 + 40)[0]
    data[root * 4096 + 10 : root * 4096 + 12] = b"\xff\xff"  # page flags that no page has
    path.write_bytes(data)
    store = open_store(str(path))
    with pytest.raises(SourceError, match="cannot read key 0001"):
        store.get(b"0001")
    store.close()


def damaged(path: Path) -> tuple[bytes, bytes]:
    """Spoils the last leaf page, and older ones like it.

    Returns a key that lies there and one that doesn't.
    """
    data = bytearray(path.read_bytes())
    for at in range(0, len(data), 4096):
        if struct.unpack_from("=H", data, at + 10)[0] == 2 and b"0299" in data[at : at + 4096]:
            data[at + 10 : at + 12] = b"\xff\xff"
    path.write_bytes(data)
    return b"0299", b"0001"


def test_one_damaged_page_spoils_no_other(tmp_path: Path) -> None:
    path = filled(tmp_path / "db")
    bad, good = damaged(path)
    store = open_store(str(path))
    for _ in range(3):
        with pytest.raises(SourceError, match="cannot read key 0299"):
            store.get(bad)
        assert bytes(store.get(good) or b"") == b"\1" * 3000
        with pytest.raises(SourceError, match="cannot be read"):
            store.get_many([good, bad])
        assert store.get_many([good])[0] is not None
        with pytest.raises(SourceError, match="cannot be read through"):
            list(store.items())
        assert next(iter(store.items()))[0] == b"0000"
    store.close()


def test_a_damaged_page_ends_no_walk_through_others(tmp_path: Path) -> None:
    path = filled(tmp_path / "db")
    bad, _ = damaged(path)
    store = open_store(str(path))
    walk = store.items()
    next(walk)
    with pytest.raises(SourceError):
        store.get(bad)
    assert next(walk)[0] == b"0001"
    walk.close()
    store.close()


def test_named_databases_are_there_after_a_damaged_page(tmp_path: Path) -> None:
    path = tmp_path / "db"
    filled(path)
    with lmdb.open(str(path), subdir=False, max_dbs=2, map_size=1 << 28, lock=False) as env:
        inner = env.open_db(b"!inner")
        with env.begin(write=True) as txn:
            txn.put(b"k", b"v", db=inner)
    bad, _ = damaged(path)
    store = open_store(str(path))
    for _ in range(3):
        assert bytes(store.get(b"k", db="!inner") or b"") == b"v"
        with pytest.raises(SourceError):
            store.get(bad)
    store.close()


def test_named_databases_are_read_by_name_and_told_from_values(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    with lmdb.open(path, subdir=False, max_dbs=2, map_size=1 << 20) as env:
        inner = env.open_db(b"inner")
        with env.begin(write=True) as txn:
            txn.put(b"k", b"v", db=inner)
            txn.put(b"plain", b"x" * 48)
    store = open_store(path)
    assert bytes(store.get(b"k", db="inner") or b"") == b"v"
    assert store.get(b"k") is None
    items = dict(store.items())
    assert store.is_database(b"inner", items[b"inner"])
    assert not store.is_database(b"plain", items[b"plain"])
    with pytest.raises(SourceError, match="no named database other"):
        store.get(b"k", db="other")
    del items
    store.close()


def test_a_map_that_is_full_grows_and_nothing_is_lost(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path / "db"))
    value = os.urandom(1 << 20)
    for first in range(0, 160, 40):
        writer.put(
            [(b"\0", b"%d" % first)], [(b"k%04d" % i, value) for i in range(first, first + 40)]
        )
    writer.put([], [], without=b"\0")
    assert writer.get(b"\0") is None
    writer.close()
    store = open_store(str(tmp_path / "db"))
    assert store.entries == 160
    assert bytes(store.get(b"k0159") or b"") == value
    store.close()


def test_a_write_into_a_missing_folder_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(WriteFault) as caught:
        Writer(str(tmp_path / "no" / "db"))
    assert not caught.value.full


def test_keys_are_shown_as_text_or_hex() -> None:
    assert show_key("bäh".encode()) == "bäh"
    assert show_key(b"\xff\x00") == "ff00"
    assert show_key(b"a\nb") == "610a62"


def test_a_key_that_no_lmdb_has_says_how_long_keys_may_be(tmp_path: Path) -> None:
    store = open_store(write(tmp_path / "db", {b"a": b"b"}))
    try:
        with pytest.raises(
            SourceError, match="a key of 512 bytes: keys of an LMDB have at most 511"
        ):
            store.get(b"k" * 512)
        assert store.get(b"k" * 511) is None
        assert bytes(store.get(b"a") or b"") == b"b"
    finally:
        store.close()
