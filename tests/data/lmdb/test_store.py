from __future__ import annotations

import os
import struct
import tarfile
from pathlib import Path

import lmdb
import pytest

from loaderd.data.errors import SourceError, WriteFault
from loaderd.data.lmdb.store import _mount_type, is_sound, on_network, open_store, show_key
from loaderd.data.lmdb.writer import Writer
from loaderd_testing.sample_builders import write


def filled(path: Path, *, subdir: bool = False) -> Path:
    write(path, {b"%04d" % i: bytes([i % 256]) * 3000 for i in range(300)}, subdir=subdir)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(SourceError) as caught:
        open_store(str(path))
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    return text


@pytest.mark.parametrize("subdir", [False, True])
def test_a_database_is_found_by_what_it_is_and_not_by_its_name(tmp_path: Path, subdir: bool) -> None:
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


def test_a_missing_file_and_a_broken_link_are_told_apart(tmp_path: Path) -> None:
    assert "no such file or folder" in refusal(tmp_path / "nothing")
    (tmp_path / "link").symlink_to("elsewhere")
    assert "a link to elsewhere" in refusal(tmp_path / "link")


def test_a_path_that_cannot_be_followed_says_why(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert "Too many levels of symbolic links" in refusal(tmp_path / "loop")
    (tmp_path / "file").touch()
    assert "Not a directory" in refusal(tmp_path / "file" / "db")


def test_a_folder_without_data_mdb_says_what_it_has(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d", "e", "f"):
        (tmp_path / name).touch()
    assert "it has a, b, c, d, e, ..." in refusal(tmp_path)
    (tmp_path / "empty").mkdir()
    assert "it has nothing" in refusal(tmp_path / "empty")


def test_an_unreadable_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    os.mkfifo(path)
    assert "neither a file nor a folder" in refusal(path)


WRONG = {
    "Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
    "gzip": b"\x1f\x8b" + bytes(100),
    "zip archive": b"PK\x03\x04" + bytes(100),
    "zstd": b"\x28\xb5\x2f\xfd" + bytes(100),
    "web page": b"\n<!DOCTYPE html><html><body>404</body></html>",
    "only zeros": bytes(20_000),
    "Parquet": b"PAR1" + bytes(100),
    "SQLite": b"SQLite format 3\0" + bytes(100),
    "not an LMDB: it begins with 68 65 6c 6c 6f": b"hello",
    "empty (0 bytes)": b"",
}


@pytest.mark.parametrize("reason", WRONG)
def test_a_file_of_another_kind_is_named_for_what_it_is(tmp_path: Path, reason: str) -> None:
    path = tmp_path / "db"
    path.write_bytes(WRONG[reason])
    assert reason in refusal(path)


def test_a_tar_archive_is_named_for_what_it_is(tmp_path: Path) -> None:
    filled(tmp_path / "inner")
    with tarfile.open(tmp_path / "db", "w") as archive:
        archive.add(tmp_path / "inner", "inner")
    assert "tar archive" in refusal(tmp_path / "db")


@pytest.mark.parametrize("keep", [0.9, 0.5, 8192, 4096, 100])
def test_a_truncated_database_tells_both_sizes(tmp_path: Path, keep: float) -> None:
    path = filled(tmp_path / "db")
    size = int(path.stat().st_size * keep) if keep < 1 else int(keep)
    os.truncate(path, size)
    text = refusal(path)
    assert "cut short" in text
    if size >= 4096:
        assert f"has {size}" in text
    assert not is_sound(str(path))


def test_a_database_larger_than_its_pages_is_fine(tmp_path: Path) -> None:
    path = filled(tmp_path / "db")
    with path.open("ab") as file:
        file.write(b"x" * 1000)
    open_store(str(path)).close()


def test_other_byte_order_and_other_versions_are_told(tmp_path: Path) -> None:
    path = filled(tmp_path / "db")
    data = bytearray(path.read_bytes())
    swapped = data.copy()
    swapped[16:20] = swapped[16:20][::-1]
    path.write_bytes(swapped)
    assert "other byte order" in refusal(path)
    data[20:24] = struct.pack("=I", 2)
    path.write_bytes(data)
    assert "data version 2" in refusal(path)


def test_a_page_overwritten_in_the_middle_is_an_error_or_a_wrong_value_but_no_crash_of_open(tmp_path: Path) -> None:
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
    """Spoils the last leaf page, and older ones like it. Returns a key that lies there and one that doesn't."""
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


MOUNTS = """\
22 27 0:21 / / rw - ext4 /dev/sda1 rw
30 22 0:30 / /mnt/data rw,relatime shared:1 - nfs4 server:/data rw
31 22 0:31 / /mnt/data/fast rw - xfs /dev/nvme0 rw
32 22 0:32 / /mnt/a\\040b rw - fuse.sshfs me@host rw
33 22 0:33 / /over rw - fuse.fuse-overlayfs x rw
nonsense
"""


@pytest.mark.parametrize(
    ("path", "kind", "network"),
    [
        ("/home/x", "ext4", False),
        ("/mnt/data/x", "nfs4", True),
        ("/mnt/database", "ext4", False),
        ("/mnt/data/fast/x", "xfs", False),
        ("/mnt/a b/c", "fuse.sshfs", True),
        ("/over/x", "fuse.fuse-overlayfs", False),
    ],
)
def test_reading_ahead_depends_on_the_filesystem(path: str, kind: str, network: bool) -> None:
    assert _mount_type(path, MOUNTS) == kind
    assert on_network(path, MOUNTS) is network


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
        writer.put([(b"\0", b"%d" % first)], [(b"k%04d" % i, value) for i in range(first, first + 40)])
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
        with pytest.raises(SourceError, match="a key of 512 bytes: keys of an LMDB have at most 511"):
            store.get(b"k" * 512)
        assert store.get(b"k" * 511) is None
        assert bytes(store.get(b"a") or b"") == b"b"
    finally:
        store.close()
