"""Copies that nobody uses make room for others, and those in use never do."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from loaderd.config.staging import DAY_S, StageConfig
from loaderd.data.errors import SourceError
from loaderd.data.staging.folder import StageClaim, StageFolder, amounts

MB = 1_000_000


class Disk:
    """A folder with copies of 1 MB, the first one unused for the longest time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.claims: list[StageClaim] = []

    def folder(self, user: str = "us", *, limit: int = 0, days: float = 0) -> StageFolder:
        return StageFolder(StageConfig(str(self.path), limit, days * DAY_S, user))

    def claim(self, user: str) -> StageClaim:
        self.claims.append(StageClaim(StageConfig(str(self.path), 0, 0.0, user)))
        return self.claims[-1]

    def add(self, *names: str) -> None:
        for number, name in enumerate(names):
            for end in (".mdb", ".mdb.loaderd-keys"):
                Path(self.folder().file(name, end)).write_bytes(bytes(MB // 2))
            used = Path(self.folder().file(name, ".used"))
            used.touch()
            os.utime(used, (1000 + number, 1000 + number))

    def copies(self) -> list[str]:
        return sorted(path.stem for path in Path(self.folder().path).glob("*.mdb"))

    def reserve(self, folder: StageFolder, need: int = MB) -> None:
        fd = os.open(folder.file("new", ".part"), os.O_RDWR | os.O_CREAT)
        try:
            folder.reserve(fd, "new", need, lambda who: None)
        finally:
            os.close(fd)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    yield made
    for claim in made.claims:
        claim.close()


def test_a_file_of_a_copy_that_another_process_removes_at_that_moment_is_gone_as_well(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.add("a")
    part, listed = Path(disk.folder().file("a", ".mdb.loaderd-keysx.part")), os.listdir

    def before_it_goes(path: str) -> list[str]:
        part.touch()
        names = listed(path)
        part.unlink()
        return names

    monkeypatch.setattr(os, "listdir", before_it_goes)
    disk.reserve(disk.folder(limit=MB))
    monkeypatch.undo()
    assert disk.copies() == []


def test_the_longest_unused_copy_goes_first_with_what_lies_beside_it(disk: Disk) -> None:
    disk.add("b", "a", "c")
    disk.reserve(disk.folder(limit=int(3.2 * MB)))
    assert disk.copies() == ["a", "c"]
    assert not [name for name in os.listdir(disk.folder().path) if name.startswith("b.")]


def test_a_copy_that_a_living_daemon_uses_stays(disk: Disk) -> None:
    disk.add("a", "b", "c")
    disk.claim("them")
    disk.folder("them").use("a", lambda who: None)
    disk.folder("dead").use("b", lambda who: None)
    os.utime(disk.folder().file("b", ".used"), (1, 1))
    disk.reserve(disk.folder(limit=int(3.2 * MB)))
    assert disk.copies() == ["a", "c"]


def test_what_a_daemon_used_is_free_when_it_has_gone(disk: Disk) -> None:
    disk.add("a", "b")
    disk.claim("them")
    disk.folder("them").use("a", lambda who: None)
    os.utime(disk.folder().file("a", ".used"), (1, 1))
    disk.claims.pop().close()
    assert os.stat(disk.folder().file("a", ".used")).st_mtime > 2000, "used until it was closed"
    disk.reserve(disk.folder(limit=int(1.2 * MB)))
    assert disk.copies() == []


def test_a_new_daemon_does_not_hold_what_an_earlier_one_used(disk: Disk) -> None:
    disk.add("a")
    disk.folder("us").use("a", lambda who: None)
    disk.claim("us")
    disk.reserve(disk.folder(limit=int(1.2 * MB)))
    assert disk.copies() == []


def test_two_containers_whose_sockets_have_one_path_hold_both(disk: Disk) -> None:
    disk.add("a")
    disk.claim("us")
    disk.folder("us").use("a", lambda who: None)
    disk.claim("us").close()
    disk.claims.pop()
    with pytest.raises(SourceError, match="copies in use have"):
        disk.reserve(disk.folder(limit=int(1.2 * MB)))
    assert disk.copies() == ["a"]


def test_a_limit_that_copies_in_use_leave_no_room_in_is_told_with_numbers(disk: Disk) -> None:
    disk.claim("us")
    disk.folder("us").use("new", lambda who: None)
    with pytest.raises(SourceError, match=r"no space for a copy of 5 MB: stage_limit is 4 MB"):
        disk.reserve(disk.folder(limit=4 * MB), 5 * MB)
    assert [name for name in os.listdir(disk.folder().path) if name.startswith("new.")] == []


def test_the_list_of_a_daemon_that_has_gone_long_ago_is_removed(disk: Disk) -> None:
    disk.claim("living")
    for user in ("living", "gone", "just gone"):
        disk.folder(user).use("a", lambda who: None)
        if user != "just gone":
            os.utime(disk.folder().file(user, ".users"), (1, 1))
    disk.reserve(disk.folder())
    lists = sorted(path.stem for path in Path(disk.folder().path).glob("*.users"))
    assert lists == ["just gone", "living"]


def test_a_full_disk_takes_unused_copies_and_then_is_told(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        if disk.copies():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    disk.add("a", "b")
    disk.reserve(disk.folder())
    assert disk.copies() == []
    disk.add("a")
    disk.claim("them")
    disk.folder("them").use("a", lambda who: None)
    with pytest.raises(SourceError, match=r"the disk has .* free \(No space left on device\)"):
        disk.reserve(disk.folder())


def test_a_copy_goes_for_its_age(disk: Disk) -> None:
    disk.add("a", "b")
    os.utime(disk.folder().file("b", ".used"))
    disk.reserve(disk.folder(days=30))
    assert disk.copies() == ["b"]


def test_a_folder_that_others_can_write_to_is_not_used(disk: Disk) -> None:
    os.chmod(disk.folder().path, 0o777)
    with pytest.raises(SourceError, match="is not a folder that only this user can write to"):
        disk.folder()


def test_a_stage_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"make the folder, or set another \[daemon\] stage"):
        StageFolder(StageConfig(str(tmp_path / "none"), 0, 0.0, "us"))


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ((3.1e9, 120e9), "3.1 of 120 GB"),
        ((0, 999), "0 of 999 B"),
        ((512_000, 2_000_000), "0.512 of 2 MB"),
        ((1e12, 4.25e12), "1 of 4.25 TB"),
        ((5e14, 5e15), "500 of 5000 TB"),
    ],
)
def test_sizes_have_one_unit(counts: tuple[float, ...], told: str) -> None:
    assert " of ".join(amounts(*counts)) == told
