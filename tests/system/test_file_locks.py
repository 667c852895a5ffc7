"""Whether a locked file is still there; who has the lock is told by its number, where the kernel
shows it.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from loaderd.system import file_locks
from loaderd.system.file_locks import HIDDEN, holder, lies_at


def test_a_file_that_was_renamed_or_removed_does_not_lie_at_its_path(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("w") as file, path.open() as again:
        assert lies_at(file.fileno(), str(path))
        assert lies_at(again.fileno(), str(path))
        path.rename(tmp_path / "b")
        assert not lies_at(file.fileno(), str(path))
        with path.open("w") as other:
            assert not lies_at(file.fileno(), str(path))
            path.unlink()
            assert not lies_at(other.fileno(), str(path))


def test_a_holder_that_the_system_does_not_show_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fd = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert holder(fd) == f"pid {os.getpid()}"
    monkeypatch.setattr(file_locks, "LOCKS", str(tmp_path / "none"))
    assert holder(fd) == HIDDEN
    os.close(fd)


def test_of_two_files_with_one_number_the_one_on_this_device_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fd = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    found = os.fstat(fd)
    here = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    lines = [
        f"1: FLOCK  ADVISORY  WRITE 4000001 ff:ff:{found.st_ino} 0 EOF",
        f"2: FLOCK  ADVISORY  WRITE 4000002 {here} 0 EOF",
        f"2: -> FLOCK  ADVISORY  WRITE 4000003 {here} 0 EOF",
        f"3: POSIX  ADVISORY  WRITE 4000004 {here} 0 EOF",
    ]
    (tmp_path / "locks").write_text("\n".join(lines))
    monkeypatch.setattr(file_locks, "LOCKS", str(tmp_path / "locks"))
    assert holder(fd) == "pid 4000002"
    (tmp_path / "locks").write_text(lines[0])
    assert holder(fd) == "pid 4000001", "some file systems show another device"
    os.close(fd)
