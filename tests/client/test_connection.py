"""A session's two sockets: what is heard, what is not, and what is never waited for."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loaderd_client import Loader, ProtocolError, StallError
from loaderd_client.connection import Connection
from loaderd_client.control_socket import MAX_FDS, ControlSocket
from loaderd_testing.daemon_harness import patiently
from loaderd_testing.fake_daemon import FakeDaemon, checked, epoch_indices, seen
from loaderd_wire import messages as m
from loaderd_wire.codec import MAX_MESSAGE, WIRE, frame

Fake = Callable[..., FakeDaemon]
Load = Callable[..., Loader[Any]]


def pull(batches: Iterator[Any]) -> None:
    for _ in batches:
        pass


def test_what_is_said_to_another_session_is_passed_over(fake: Fake, load: Load) -> None:
    daemon, loader = fake(), load(prefetch=1)
    batches = iter(loader)
    rows = checked(next(batches))
    daemon.send_raw(WIRE.encode(m.Failure(99, "StreamFailedError", "another's")))
    assert rows + seen(batches) == epoch_indices(0, daemon.rules)
    assert daemon._raw == b""


def test_a_message_over_the_limit_is_not_taken_in(fake: Fake, load: Load) -> None:
    daemon, loader = fake(), load(prefetch=1, timeout_s=3.0)
    batches = iter(loader)
    checked(next(patiently(batches)))
    daemon.rules.makes = False
    daemon.send_raw(b"\x00" * (MAX_MESSAGE + 1))
    with pytest.raises(StallError):
        pull(batches)
    assert daemon._raw == b""


def test_progress_that_cannot_be_sent_is_dropped_and_not_waited_for(tmp_path: Path) -> None:
    ours, daemons = socket.socketpair()
    connection = Connection(str(tmp_path / "nobody"), ControlSocket(ours), 1, b"t" * 16)
    try:
        for seq in range(3000):  # more than ZeroMQ keeps for a peer that is not there
            connection.send(m.Progress(1, seq, 1, 0, 0, 0, 0, 0, False, False, False, ()))
    finally:
        connection.close()
        daemons.close()


def test_a_segment_whose_memory_did_not_come_with_it_is_a_protocol_error() -> None:
    ours, daemons = socket.socketpair()
    ours.setblocking(False)
    control = ControlSocket(ours)
    daemons.sendall(frame(m.Segment(1, 3, 4096, 64, 0)))
    assert control.receive() == [m.Segment(1, 3, 4096, 64, 0)]
    with pytest.raises(ProtocolError, match="without its memory"):
        control.take_fd()
    control.close()
    daemons.close()


def test_descriptors_that_did_not_all_arrive_are_told_of() -> None:
    ours, daemons = socket.socketpair()
    ours.setblocking(False)
    control = ControlSocket(ours)
    with open(os.devnull) as file:
        daemons.sendmsg(
            [frame(m.Bye(""))],
            [
                (
                    socket.SOL_SOCKET,
                    socket.SCM_RIGHTS,
                    array.array("i", [file.fileno()] * (MAX_FDS + 2)),
                )
            ],
        )
    with pytest.raises(ProtocolError, match="ulimit -n"):
        control.receive()
    control.close()
    daemons.close()
