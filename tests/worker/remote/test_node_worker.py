"""What an actor hands to its worker process, and what it answers."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from loaderd.config.stream import StreamConfig
from loaderd.engine import channel
from loaderd.engine.messages import ORDERS, Probe, Setup, WorkerBooted
from loaderd.worker.remote import child
from loaderd.worker.remote.node_worker import NodeWorker


def test_a_worker_is_dead_while_a_fork_of_it_still_has_its_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C code forks without Python's hooks: such a child keeps every descriptor."""
    kept: list[socket.socket] = []

    def pair() -> tuple[socket.socket, socket.socket]:
        ours, its = channel.pair()
        kept.extend((ours, its.dup()))
        return ours, its

    monkeypatch.setattr(child, "pair", pair)
    before, children = _open(), _children()
    try:
        node = NodeWorker()
        setup = ORDERS.encode(Setup((), "", "", 1, 0, "none"))
        (booted,) = node.boot(setup, {"PYTHONPATH": os.pathsep.join(sys.path)}, False).messages
        assert isinstance(ORDERS.decode(booted), WorkerBooted)
        (pid,) = _children() - children
        os.kill(pid, signal.SIGKILL)
        plan = StreamConfig("train", dataset="mine:Numbers").to_json()
        death = node.ask([ORDERS.encode(Probe("train", plan=plan))]).death
        assert death is not None
        assert death.status == signal.SIGKILL
    finally:
        for each in kept:
            each.close()
        for fd in _open() - before:
            os.close(fd)


def _children() -> set[int]:
    return set(map(int, Path("/proc/thread-self/children").read_text().split()))


def _open() -> set[int]:
    """Open descriptors, without the one that lists them."""
    return {int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}
