"""Nobody waits for a file of the folder of copies without saying for whom."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from loaderd.data.errors import SourceError
from loaderd.data.staging.own_files import open_own, take_lock


def a_socket(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda path: os.symlink("a", path), a_socket]
)
def test_what_loaderd_cannot_have_made_gives_way_to_a_file(
    tmp_path: Path, make: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a path of a socket must be short
    make("x.used")
    fd = open_own("x.used")
    os.write(fd, b"text")
    os.close(fd)
    assert Path("x.used").read_text() == "text"
    assert os.listdir() == ["x.used"]


def test_a_folder_with_files_stays_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "lock" / "a").mkdir(parents=True)
    with pytest.raises(SourceError, match=r"/lock: Directory not empty; remove it, or"):
        open_own(str(tmp_path / "lock"))


def test_a_folder_that_has_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"/none was removed; start again"):
        open_own(str(tmp_path / "none" / "lock"))


def test_who_has_a_lock_is_told_with_its_number_until_it_lets_go(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    mine = open_own(path)
    ready, done = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        take_lock(open_own(path), print)
        os.write(ready[1], b"x")
        os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    told: list[str] = []

    def tick(who: str) -> None:
        told.append(who)
        if len(told) == 1:
            os.kill(pid, signal.SIGSTOP)
            os.waitpid(pid, os.WUNTRACED)
        elif len(told) == 2:
            os.kill(pid, signal.SIGCONT)
            os.write(done[1], b"x")
            os.waitpid(pid, 0)

    take_lock(mine, tick)
    assert told == [f"pid {pid}", f"pid {pid} (stopped; SIGCONT continues it)"]
    for fd in (mine, *ready, *done):
        os.close(fd)
