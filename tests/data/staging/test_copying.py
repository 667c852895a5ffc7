"""A copy on the local disk is whole and right, or it is not there; what a kill left is continued."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loaderd.config.staging import DAY_S, StageConfig
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
        self.notes: list[str] = []

    def tick(self, *what: Any) -> None:
        self.told.append(what)

    def copy(self, tick: Any = None) -> Path:
        return Path(copy_of(str(self.database), self.folder, tick or self.tick, self.notes.append))

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
    assert place.files() == ["checked", "mdb", "sums", "used"]
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


def spoil(copy: Path, *, touch: bool = True) -> None:
    """Write into a copy, as a person does, or as a disk does, which says nothing."""
    was = copy.stat()
    with copy.open("r+b") as file:
        file.seek(copying.PIECE + 1000)
        file.write(b"damage")
    if touch:
        os.utime(copy, (1, 1))
    else:
        state = Path(f"{str(copy).removesuffix('.mdb')}.checked")
        state.write_text(
            state.read_text().replace(f"{was.st_mtime_ns} {was.st_ctime_ns}", times_of(copy))
        )


def times_of(copy: Path) -> str:
    now = copy.stat()
    return f"{now.st_mtime_ns} {now.st_ctime_ns}"


def test_a_copy_that_was_written_to_gets_its_bytes_again(place: Place) -> None:
    copy = place.copy()
    spoil(copy)
    place.told.clear()
    assert place.copy() == copy
    assert copy.read_bytes() == place.database.read_bytes()
    written = {done // copying.PIECE for what, done, _ in place.told if what == "staging" and done}
    assert written == {1}, "the piece that was damaged, and no other"
    (note,) = place.notes
    assert note.startswith(f"{copy}, the staged copy of {place.database}, was damaged; 1 of ")


@pytest.mark.parametrize("days", [29, 31])
def test_what_a_disk_has_lost_is_found_when_the_copy_is_old(place: Place, days: int) -> None:
    copy = place.copy()
    spoil(copy, touch=False)
    state = place.one(".checked")
    os.utime(state, (then := state.stat().st_mtime - days * DAY_S, then))
    place.copy()
    assert (copy.read_bytes() == place.database.read_bytes()) is (days > 30)


def test_a_first_page_that_the_disk_has_lost_is_seen_at_once(place: Place) -> None:
    copy = place.copy()
    with copy.open("r+b") as file:
        file.write(bytes(64))
    spoil(copy, touch=False)
    place.copy()
    assert copy.read_bytes() == place.database.read_bytes()


def test_a_copy_that_was_only_touched_is_compared_and_stays(place: Place) -> None:
    copy = place.copy()
    os.utime(copy, (1, 1))
    before = copy.stat()
    place.told.clear()
    place.copy()
    assert {what for what, _, _ in place.told} == {"checking the staged copy,"}
    assert copy.stat() == before
    place.told.clear()
    place.copy()
    assert not place.told, "it is known now"


def seen_before(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
    """Something happens between the look whether there is a copy and its opening."""
    looked = os.path.lexists

    def lexists(path: str) -> bool:
        monkeypatch.setattr(os.path, "lexists", looked)
        found = looked(path)
        meanwhile()
        return found

    monkeypatch.setattr(os.path, "lexists", lexists)


def test_a_copy_that_another_process_begins_to_make_good_is_not_written_over(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = place.copy()
    spoil(copy)
    before = copy.stat().st_ino
    seen_before(monkeypatch, lambda: copy.rename(copy.with_suffix(".part")))
    assert place.copy().read_bytes() == place.database.read_bytes()
    assert copy.stat().st_ino == before, "the other process writes to this file"


def test_a_copy_that_another_process_has_just_made_is_not_made_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = place.copy()
    before = copy.stat().st_ino
    part = copy.with_suffix(".part")
    copy.rename(part)
    seen_before(monkeypatch, lambda: part.rename(copy))
    place.copy()
    assert copy.stat().st_ino == before, "the other process reads this file"
    assert not part.exists()


def cut(copy: Path) -> None:
    os.truncate(copy, copy.stat().st_size // 2)


def empty(copy: Path) -> None:
    os.truncate(copy, 0)


def another(copy: Path) -> None:
    other = copy.with_name("other")
    other.write_bytes(os.urandom(copy.stat().st_size))
    other.rename(copy)


def folder(copy: Path) -> None:
    copy.unlink()
    copy.mkdir()


def fifo(copy: Path) -> None:
    copy.unlink()
    os.mkfifo(copy)


@pytest.mark.parametrize("spoiled", [cut, empty, another, folder, fifo])
def test_what_is_no_copy_is_replaced_by_one(place: Place, spoiled: Callable[[Path], None]) -> None:
    copy = place.copy()
    spoiled(copy)
    assert place.copy() == copy
    assert copy.read_bytes() == place.database.read_bytes()
    assert len(place.notes) == 1


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_link_in_the_place_of_a_copy_is_removed_and_never_written_through(
    place: Place, link: Callable[[Path, Path], None]
) -> None:
    copy = place.copy()
    other = place.database.with_name("other.lmdb")
    other.write_bytes(b"of somebody else" * 100)
    before = other.read_bytes()
    copy.unlink()
    link(other, copy)
    assert place.copy().read_bytes() == place.database.read_bytes()
    assert other.read_bytes() == before


def test_a_copy_without_the_hashes_of_its_pieces_is_made_anew(place: Place) -> None:
    copy = place.copy()
    spoil(copy)
    place.one(".sums").unlink()
    place.copy()
    assert copy.read_bytes() == place.database.read_bytes()


def test_a_folder_with_files_in_the_place_of_a_copy_is_told_and_not_removed(place: Place) -> None:
    copy = place.copy()
    folder(copy)
    (copy / "notes").touch()
    with pytest.raises(SourceError, match=r"\.mdb: Directory not empty; remove it, or set"):
        place.copy()


def test_a_database_that_is_cut_short_meanwhile_is_told_and_leaves_nothing(place: Place) -> None:
    def tick(*what: Any) -> None:
        os.truncate(place.database, copying.PIECE)

    with pytest.raises(SourceError, match=r"train\.lmdb: was cut short while it was copied"):
        place.copy(tick)
    assert place.files() == []


@pytest.mark.parametrize("when", ["staging", "checking the staged copy,"])
def test_a_folder_that_is_removed_meanwhile_is_named_and_not_the_database(
    place: Place, when: str
) -> None:
    def tick(what: str, *_: Any) -> None:
        if what == when:
            shutil.rmtree(place.folder.path, ignore_errors=True)

    with pytest.raises(SourceError) as told:
        place.copy(tick)
    assert str(told.value).startswith(place.folder.path)
    assert "was removed" in str(told.value)


def test_a_database_that_cannot_be_read_is_named_and_not_the_folder(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int, at: int, size: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(copying, "_read", broken)
    with pytest.raises(SourceError, match=r"^\S*train\.lmdb: cannot be read: Input/output error$"):
        place.copy()


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
        if "waiting for" in what[0]:
            os.close(fd)
        place.tick(*what)

    assert place.copy(tick).read_bytes() == place.database.read_bytes()
    assert place.told[0][:2] == (
        f"waiting for pid {os.getpid()}: staging",
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


def test_who_holds_the_folder_is_told(place: Place) -> None:
    place.copy()
    fd = os.open(place.folder.file("lock", ""), os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)

    def tick(*what: Any) -> None:
        os.close(fd)
        place.tick(*what)

    place.told.clear()
    place.copy(tick)
    (told,) = place.told
    assert told[0] == f"waiting for pid {os.getpid()}, which holds the stage folder:"
