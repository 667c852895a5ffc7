"""What is no database, or not all of one, is told by what it is, before the library opens it."""

from __future__ import annotations

import os
import struct
import tarfile
from pathlib import Path

import pytest

from loaderd.data.lmdb.file_facts import _mount_type, is_sound, on_network
from loaderd.data.lmdb.open_stores import open_store
from loaderd_testing.database_builders import filled, refusal


def test_a_missing_file_and_a_broken_link_are_told_apart(tmp_path: Path) -> None:
    assert "no such file or folder" in refusal(tmp_path / "nothing")
    (tmp_path / "link").symlink_to("elsewhere")
    assert "a link to elsewhere" in refusal(tmp_path / "link")


def test_a_missing_file_is_told_with_what_its_path_may_have_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("configs", "data"):
        (tmp_path / folder).mkdir()
    filled(tmp_path / "data" / "train.lmdb")
    monkeypatch.chdir(tmp_path)
    assert f"; there is {tmp_path}/data/train.lmdb: a relative path in a config begins at the " in (
        refusal(tmp_path / "configs" / "data" / "train.lmdb")
    )
    assert f"; did you mean {tmp_path}/data/train.lmdb?" in refusal(tmp_path / "data/trian.lmdb")
    assert f"; there is no folder {tmp_path}/date either" in refusal(tmp_path / "date/a.lmdb")
    assert refusal(tmp_path / "data" / "quite-other").endswith("no such file or folder")


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
    assert "it has nothing; `loaderd pack` makes one of photos" in refusal(tmp_path / "empty")


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
    "loaderd pack parquet": b"PAR1" + bytes(100),
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
    assert "tar archive: unpack it first, or pack shards with" in refusal(tmp_path / "db")


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


def test_a_folder_of_databases_names_them(tmp_path: Path) -> None:
    for name in ("MJ_train", "ST"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.mdb").write_bytes(b"")
    (tmp_path / "data.0000.lmdb").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("")
    assert refusal(tmp_path).endswith("name one: MJ_train, ST, data.0000.lmdb")
