"""The search for what a test left behind finds it, wherever it hangs."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from loaderd_testing.deadlines import until
from loaderd_testing.leaks import Leaks


@pytest.fixture
def folder() -> Path:
    """The one of this run."""
    return Path(os.environ["XDG_RUNTIME_DIR"])


@contextmanager
def started(command: str, **options: object) -> Iterator[int]:
    """The pid that this shell command prints; that process is killed at the end."""
    with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, **options) as shell:  # type: ignore[call-overload]
        assert shell.stdout is not None
        pid = int(shell.stdout.readline())
        try:
            yield pid
        finally:
            os.kill(pid, signal.SIGKILL)
            shell.kill()


def test_a_child_that_was_not_waited_for_is_found(folder: Path) -> None:
    leaks = Leaks(folder)
    child = subprocess.Popen(["true"])
    until(
        "it in the list",
        lambda: [what for what in leaks.found() if f"process {child.pid} " in what],
    )
    child.wait()
    assert leaks.found() == []


def test_a_grandchild_is_found_although_its_environment_is_empty(folder: Path) -> None:
    leaks = Leaks(folder)
    with started("env -i sleep 1000 & echo $!; wait") as pid:
        assert [what for what in leaks.found() if f"process {pid} " in what]
    until("nothing in the list", lambda: leaks.found() == [])


def test_an_orphan_with_a_session_of_its_own_is_found(folder: Path) -> None:
    leaks = Leaks(folder)
    with started("setsid sleep 1000 >/dev/null & echo $!") as pid:
        until(
            "its parent's end",
            lambda: f"PPid:\t{os.getpid()}" not in Path(f"/proc/{pid}/status").read_text(),
        )
        found = until(
            "it in the list", lambda: [what for what in leaks.found() if f"process {pid} " in what]
        )
        assert "sleep 1000" in found[0]
    until("nothing in the list", lambda: leaks.found() == [])


def test_a_memfd_its_mapping_and_a_socket_are_found(folder: Path) -> None:
    leaks = Leaks(folder)
    with ExitStack() as stack:
        fd = os.memfd_create("planted")
        os.ftruncate(fd, 4096)
        assert [what for what in leaks.found() if "/memfd:planted" in what]
        stack.enter_context(mmap.mmap(fd, 4096))  # keeps a descriptor of its own
        os.close(fd)
        assert [what.split()[0] for what in leaks.found()] == ["fd", "mapping"]
    one, other = socket.socketpair()
    with one, other:
        assert len(leaks.found()) == 2
    assert leaks.found() == []


@pytest.mark.parametrize("where", ["tmp", "loaderd"])
def test_a_file_is_found_but_a_lock_is_not(folder: Path, where: str) -> None:
    leaks = Leaks(folder)
    (folder / where).mkdir(exist_ok=True, mode=0o700)
    (folder / where / "d.sock.lock").touch()
    assert leaks.found() == []
    (folder / where / "d.sock").touch()
    assert leaks.found() == [f"file {folder}/{where}/d.sock"]
    (folder / where / "d.sock").unlink()
    (folder / where / "d.sock.lock").unlink()


def test_a_folder_that_is_removed_while_it_is_looked_at_is_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaks, going, scan = Leaks(folder), folder / "tmp" / "going", os.scandir
    going.mkdir()

    def remove(path: str = ".") -> Any:
        if os.fspath(path) == str(going):
            going.rmdir()
        return scan(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", remove)
        leaks.found()
    assert not going.exists()
    assert leaks.found() == []
