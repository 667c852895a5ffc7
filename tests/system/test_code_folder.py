"""What of a folder with code stays where it is."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from loaderd.system import code_folder
from loaderd.system.code_folder import LARGE, NO_CODE, CannotTravel, left_behind


def left(folder: Path) -> list[str]:
    """Those patterns that are not always there."""
    found = left_behind(str(folder))
    assert found[: len(NO_CODE)] == NO_CODE
    return sorted(found[len(NO_CODE) :])


def large(path: Path) -> None:
    path.touch()
    os.truncate(path, LARGE + 1)


def test_code_and_what_lies_beside_it_travels(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "mine.py").write_text("x = 1")
    (tmp_path / "words.json").write_text("{}")
    (tmp_path / "gone").symlink_to("nothing")
    assert left(tmp_path) == []


def test_a_large_file_stays_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a[1]*?.bin", "!b", "in/c .bin "):
        large(tmp_path / name)
    assert left(tmp_path) == ["/!b", "/a\\[1\\]\\*\\?.bin", "/in/c[ ].bin[ ]"]


def test_what_is_no_file_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "d.zmq"))
        assert left(tmp_path) == ["/d.zmq", "/pipe"]


def test_a_name_that_is_no_text_stays(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\xfe.py")
    (tmp_path / name).touch()
    assert left(tmp_path) == ["/" + name]


def test_links_to_folders_that_they_lie_in_stay(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name, to in {"me": ".", "you": ".", "a/up": "..", "a/b": "."}.items():
        (tmp_path / name).symlink_to(to)
    assert left(tmp_path) == ["/a/b", "/a/up", "/me", "/you"]


def test_of_a_folder_behind_a_link_the_large_files_stay(tmp_path: Path) -> None:
    package, folder = tmp_path / "package", tmp_path / "folder"
    package.mkdir()
    folder.mkdir()
    (package / "mine.py").touch()
    large(package / "weights")
    (folder / "mine").symlink_to(package)
    assert left(folder) == ["/mine/weights"]


def test_a_folder_of_data_behind_a_link_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_folder, "MOST_BYTES", 3 * 1000)
    monkeypatch.setattr(code_folder, "MOST_FILES", 20)
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, files, size in (("many", 21, 0), ("much", 4, 1000), ("code", 3, 1000)):
        (tmp_path / name).mkdir()
        for number in range(files):
            (tmp_path / name / str(number)).write_bytes(b"x" * size)
        (folder / name).symlink_to(tmp_path / name)
    assert left(folder) == ["/many", "/much"]


def test_a_folder_of_too_many_files_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_folder, "MOST_FILES", 20)
    for number in range(20):
        (tmp_path / str(number)).touch()
    assert left(tmp_path) == []
    (tmp_path / "20").touch()
    with pytest.raises(CannotTravel, match=rf"^{tmp_path} has more than 20 files, and travels to"):
        left(tmp_path)


@pytest.mark.parametrize("link", [False, True])
def test_a_folder_that_is_removed_while_it_is_looked_at_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: bool
) -> None:
    code, going, scan = tmp_path / "code", tmp_path / "going", os.scandir
    code.mkdir()
    (code / "checkpoint.tmp").symlink_to(going) if link else (code / "checkpoint.tmp").mkdir()
    going.mkdir()

    def remove(path: str) -> Any:
        if path.endswith("checkpoint.tmp"):
            (going if link else code / "checkpoint.tmp").rmdir()
        return scan(path)

    monkeypatch.setattr(os, "scandir", remove)
    assert left(code) == []
