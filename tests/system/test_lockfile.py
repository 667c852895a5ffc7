from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from loaderd.system import lockfile
from loaderd.system.lockfile import AlreadyServed, CannotServe, LockFile, prepare_folder

HOLD = """
import sys
from loaderd.system import lockfile
from loaderd.system.lockfile import LockFile
lock = LockFile(sys.argv[1])
print("held", flush=True)
sys.stdin.readline()
"""


def test_a_second_daemon_on_the_same_path_is_told_who_holds_it(tmp_path: Path) -> None:
    path = str(tmp_path / "d.sock")
    with (
        LockFile(path),
        pytest.raises(CannotServe, match=rf"^already running.*{os.getpid()}.*{path}"),
    ):
        LockFile(path)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_ends_with_its_killed_holder_and_its_sockets_are_swept(tmp_path: Path) -> None:
    path = str(tmp_path / "d.sock")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(CannotServe, match=str(holder.pid)):
            LockFile(path)
        holder.kill()
    for name in (path, path + ".zmq"):
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(name)
    with LockFile(path):
        assert [p.name for p in tmp_path.iterdir()] == ["d.sock.lock"]
        assert (tmp_path / "d.sock.lock").read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize("name", ["d.sock", "d.sock.zmq"])
def test_a_regular_file_at_a_sockets_path_is_left_as_it_is(tmp_path: Path, name: str) -> None:
    victim = tmp_path / name
    victim.write_text("thesis")
    other = tmp_path / ("d.sock" if name != "d.sock" else "d.sock.zmq")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(other))
    with pytest.raises(CannotServe, match="not a socket"):
        LockFile(str(tmp_path / "d.sock"))
    assert victim.read_text() == "thesis"
    assert other.exists()
    assert not (tmp_path / "d.sock.lock").exists()


def test_a_lock_file_removed_by_its_holder_is_not_mistaken_for_a_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "d.sock")
    first = LockFile(path)
    first.close()
    with LockFile(path), pytest.raises(CannotServe):
        LockFile(path)


def test_a_lock_whose_former_holder_removes_its_file_at_that_moment_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "d.sock")
    flock = lockfile.fcntl.flock

    def after_the_removal(fd: int, how: int) -> None:
        monkeypatch.undo()
        os.unlink(path + ".lock")
        flock(fd, how)

    monkeypatch.setattr(lockfile.fcntl, "flock", after_the_removal)
    with LockFile(path), pytest.raises(CannotServe):
        LockFile(path)


@pytest.mark.parametrize("crowded", [False, True])
def test_a_daemon_whose_lock_file_was_removed_keeps_its_socket(
    tmp_path: Path, crowded: bool
) -> None:
    path = tmp_path / "d.sock"
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(socket.socket(socket.AF_UNIX))
        daemon.bind(str(path))
        daemon.listen(0)
        while crowded:
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            crowded = client.connect_ex(str(path)) == 0
        with pytest.raises(CannotServe, match="its lock file was removed; stop that one first"):
            LockFile(str(path))
        assert [p.name for p in tmp_path.iterdir()] == ["d.sock"]


def test_a_daemon_whose_lock_file_was_removed_does_not_remove_its_successors(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "d.sock")
    first = LockFile(path)
    os.unlink(path + ".lock")
    with LockFile(path):
        first.close()
        with pytest.raises(CannotServe):
            LockFile(path)


def test_a_symlink_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("keep")
    (tmp_path / "d.sock.lock").symlink_to(tmp_path / "target")
    with pytest.raises(CannotServe):
        LockFile(str(tmp_path / "d.sock"))
    assert (tmp_path / "target").read_text() == "keep"


def test_the_default_folder_is_made_private(tmp_path: Path) -> None:
    socket_path = str(tmp_path / "loaderd" / "d.sock")
    prepare_folder(socket_path, uid=os.getuid(), default=True, others=False)
    assert (tmp_path / "loaderd").stat().st_mode & 0o777 == 0o700
    prepare_folder(socket_path, uid=os.getuid(), default=True, others=False)


@pytest.mark.parametrize("fault", ["mode", "group", "owner", "symlink"])
def test_a_default_folder_that_others_could_have_made_is_not_used(
    tmp_path: Path, fault: str
) -> None:
    folder = tmp_path / "loaderd"
    if fault == "symlink":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir(mode=0o700)
        folder.chmod({"mode": 0o701, "group": 0o710, "owner": 0o700}[fault])
    uid = os.getuid() + (1 if fault == "owner" else 0)
    with pytest.raises(
        CannotServe,
        match="is not a folder"
        if fault == "symlink"
        else "not used, because other users could replace it",
    ):
        prepare_folder(str(folder / "d.sock"), uid=uid, default=True, others=False)


def test_a_folder_that_other_users_cannot_pass_is_refused_when_they_are_to_attach(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    folder.chmod(0o700)
    prepare_folder(str(folder / "d.sock"), uid=os.getuid(), default=False, others=False)
    with pytest.raises(CannotServe, match="allow_uids"):
        prepare_folder(str(folder / "d.sock"), uid=os.getuid(), default=False, others=True)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotServe, match="nowhere"):
        prepare_folder(
            str(tmp_path / "nowhere" / "d.sock"), uid=os.getuid(), default=False, others=False
        )


def test_a_lock_that_is_shared_is_free_only_when_both_have_let_it_go(tmp_path: Path) -> None:
    path = str(tmp_path / "d.sock")
    old = LockFile(path)
    new = LockFile(path, os.dup(old.fd))
    old.lend()
    with pytest.raises(AlreadyServed):
        new.retake()
    new = LockFile(path, os.dup(old.fd))
    old.close()
    assert Path(new.path).exists()
    with pytest.raises(AlreadyServed):
        LockFile(path)
    new.retake()
    new.close()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_was_taken_back_goes_with_its_file(tmp_path: Path) -> None:
    lock = LockFile(str(tmp_path / "d.sock"))
    lock.lend()
    Path(lock.path).write_text("1\n")
    lock.take_back()
    assert Path(lock.path).read_text() == f"{os.getpid()}\n"
    lock.close()
    assert list(tmp_path.iterdir()) == []
