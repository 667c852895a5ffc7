"""A forked child keeps nothing open whose end is to say that its parent is gone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loaderd.system.control_socket import ControlListener
from loaderd.system.http import HttpServer, Page
from loaderd.system.lockfile import LockFile
from loaderd.system.loop import Loop
from loaderd.system.memfd import SegmentStore
from loaderd.system.peer_credentials import PeerGate
from loaderd_testing.loop_fixtures import Lines
from loaderd_wire.messages import Segment

Until = Callable[[Callable[[], object]], None]
Owner = LockFile | HttpServer | ControlListener | SegmentStore


def opened() -> dict[str, str]:
    """What this process has open: number -> what it leads to."""
    found: dict[str, str] = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue  # that of the listing itself
    return found


@pytest.fixture(params=["lock", "http", "control", "segments"])
def owner(
    request: pytest.FixtureRequest, loop: Loop, tmp_path: Path, log: Lines, until: Until
) -> Iterator[Owner]:
    made: Owner
    if request.param == "lock":
        made = LockFile(str(tmp_path / "d.sock"))
    elif request.param == "http":
        made = HttpServer(loop, ("127.0.0.1", 0), {"/": lambda: Page(200, "")})
    elif request.param == "control":
        made = ControlListener(
            loop,
            str(tmp_path / "d.sock"),
            gate=PeerGate(os.geteuid()),
            on_message=lambda peer, message: None,
            on_end=lambda peer: None,
            log=log,
        )
    else:
        made, reserved = SegmentStore(loop), list[int]()
        made.reserve(1, Segment(7, 5, 4096, 64, 0), lambda fd, error: reserved.append(fd))
        until(lambda: reserved)
    yield made
    made.close()


def test_what_an_owner_has_open_is_closed_in_a_child_and_not_in_its_parent(owner: Owner) -> None:
    before = opened()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, "\n".join(opened()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        left = set(told.read().split())
    assert os.waitpid(pid, 0) == (pid, 0)
    closed = {name for fd, name in before.items() if fd not in left}
    kind = {LockFile: "d.sock.lock", SegmentStore: "memfd:"}.get(type(owner), "socket:[")
    assert any(kind in name for name in closed), (before, left)
    assert opened() == before
