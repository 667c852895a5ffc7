"""A copy on the local disk is whole and right, or it is not there; what a kill left is continued."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from loaderd.config.staging import StageConfig
from loaderd.data.errors import SourceError
from loaderd.data.lmdb.open_stores import open_store
from loaderd.data.staging import copying
from loaderd.data.staging.copying import copy_of
from loaderd.data.staging.folder import StageFolder
from loaderd_testing.database_builders import filled


class Place:
    """A database, a folder for copies, and what was told of a copy."""

    def __init__(self, folder: Path) -> None:
        self.database = filled(folder / "train.lmdb")
        (folder / "local").mkdir()
        self.folder = StageFolder(StageConfig(str(folder / "local"), 0, 0.0, "us"))
        self.told: list[tuple[str, int, int]] = []

    def tick(self, *what: Any) -> None:
        self.told.append(what)

    def copy(self, tick: Any = None) -> Path:
        return Path(copy_of(str(self.database), self.folder, tick or self.tick))

    def files(self) -> list[str]:
        """Endings of what lies in the folder, without the lists of users."""
        ends = {name.partition(".")[2] for name in os.listdir(self.folder.path)}
        return sorted(ends - {"", "users"})

    def one(self, end: str) -> Path:
        (found,) = Path(self.folder.path).glob(f"*{end}")
        return found

    def killed_at(self, piece: int) -> None:
        """Copy in a process that is killed when it begins with this piece."""

        def tick(what: str, done: int, of: int) -> None:
            if what == "staging" and done == piece * copying.PIECE:
                os.kill(os.getpid(), signal.SIGKILL)

        pid = os.fork()
        if pid == 0:
            try:
                self.copy(tick)
            finally:
                os._exit(1)
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(copying, "PIECE", 256 << 10)
    monkeypatch.setattr(copying, "READ", 64 << 10)
    return Place(tmp_path)


def test_a_copy_has_every_byte_and_nothing_else_is_left(place: Place) -> None:
    copy = place.copy()
    assert copy.name.startswith("train-")
    assert copy.read_bytes() == place.database.read_bytes()
    assert place.files() == ["mdb", "used"]
    assert {what for what, _, _ in place.told} == {"staging", "checking the staged copy,"}
    assert {of for _, _, of in place.told} == {copy.stat().st_size}


def test_a_copy_that_is_there_is_not_made_again(place: Place) -> None:
    copy, made = place.copy(), len(place.told)
    before = copy.stat()
    assert place.copy() == copy
    assert len(place.told) == made
    assert copy.stat() == before, "a change of its times would make workers look into it"


def test_what_a_killed_process_has_copied_is_not_copied_again(place: Place) -> None:
    place.killed_at(2)
    assert place.files() == ["part", "sums", "used"]
    copy = place.copy()
    first = min(done for what, done, _ in place.told if what == "staging" and done)
    assert first >= 2 * copying.PIECE
    assert copy.read_bytes() == place.database.read_bytes()


def test_a_piece_that_was_damaged_after_the_kill_is_copied_again(place: Place) -> None:
    place.killed_at(2)
    with place.one(".part").open("r+b") as part:
        part.seek(1000)
        part.write(b"damage")
    with place.one(".sums").open("ab") as sums:
        sums.write(b"half a sum"[:7])  # of the piece that was being copied
    assert place.copy().read_bytes() == place.database.read_bytes()


def test_a_disk_that_returns_other_bytes_is_told(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, at, *_: os.pwrite(fd, b"rotten", at))
    with pytest.raises(SourceError, match="the disk returns other bytes than were written"):
        place.copy()
    assert "mdb" not in place.files()


def test_a_database_that_is_written_to_meanwhile_is_told(place: Place) -> None:
    def tick(*what: Any) -> None:
        os.utime(place.database)

    with pytest.raises(SourceError, match=r"train\.lmdb: was written to while it was copied"):
        place.copy(tick)
    assert place.files() == []


def test_a_database_that_has_changed_has_another_copy(place: Place) -> None:
    first = place.copy()
    os.utime(place.database, (1, 1))
    assert place.copy() != first


def test_a_database_that_was_enlarged_in_advance_takes_no_more_space(place: Place) -> None:
    used = place.database.stat().st_size
    os.truncate(place.database, 1 << 40)
    copy = place.copy()
    assert copy.stat().st_size == 1 << 40
    assert copy.stat().st_blocks * 512 <= 2 * used
    store = open_store(str(copy))
    assert store.get(b"0299") is not None
    store.close()


def test_who_waits_for_another_process_tells_how_far_that_is(place: Place) -> None:
    place.killed_at(2)
    fd = os.open(place.one(".part"), os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)

    def tick(*what: Any) -> None:
        if "waiting for another process" in what[0]:
            os.close(fd)
        place.tick(*what)

    assert place.copy(tick).read_bytes() == place.database.read_bytes()
    assert place.told[0][:2] == (
        "waiting for another process that is staging",
        2 * copying.PIECE,
    )


def test_a_disk_that_fills_up_is_told_and_not_kept_full(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(SourceError, match=r"no space left on the disk .*\[daemon\] stage"):
        place.copy()
    assert place.files() == []
