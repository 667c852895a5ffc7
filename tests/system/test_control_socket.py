from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loaderd.system import control_socket as module
from loaderd.system.control_socket import MAX_SILENT, ControlListener, Peer
from loaderd.system.loop import Loop
from loaderd.system.peer_credentials import OVERFLOW_UID, PeerCredentials, PeerGate, maps_everybody
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.loop_fixtures import Lines
from loaderd_wire import codec
from loaderd_wire.messages import PROTOCOL, Ask, Bye, Hello, Rejected, Report, Starting

Until = Callable[[Callable[[], object]], None]
HELLO = Hello(PROTOCOL, "train", None, None, None, 0, 1, 4, None, 0, {}, {}, "")
ME = os.geteuid()


class House:
    """A control socket whose owner notes what it is told."""

    def __init__(self, loop: Loop, path: Path, log: Lines) -> None:
        self.path = str(path / "d.sock")
        self.heard: list[tuple[Peer, Any]] = []
        self.ended: list[Peer] = []
        self.loop, self.log = loop, log
        self.control: ControlListener
        self.sockets: list[socket.socket] = []

    def open(self, *, gate: PeerGate | None = None, **others: Any) -> House:
        self.control = ControlListener(
            self.loop,
            self.path,
            gate=gate or PeerGate(ME),
            on_message=lambda peer, message: self.heard.append((peer, message)),
            on_end=self.ended.append,
            log=self.log,
            **others,
        )
        return self

    def connect(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        self.sockets.append(made)
        made.settimeout(DEADLINE_S)
        made.connect(self.path)
        return made


@pytest.fixture
def harness(loop: Loop, tmp_path: Path, log: Lines) -> Iterator[House]:
    made = House(loop, tmp_path, log)
    yield made
    made.control.close()
    for sock in made.sockets:
        sock.close()
    assert os.listdir(tmp_path) == []


def read_all(sock: socket.socket) -> tuple[list[Any], bool]:
    """(messages, at its end) of what has arrived."""
    sock.setblocking(False)
    buffer = bytearray()
    ended = False
    try:
        while data := sock.recv(1 << 16):
            buffer += data
        ended = True
    except BlockingIOError:
        pass
    except ConnectionResetError:
        ended = True
    found: list[Any] = []
    while (message := codec.unframe(buffer)) is not None:
        found.append(message)
    return found, ended


def is_ended(sock: socket.socket) -> bool:
    return read_all(sock)[1]


def test_a_hello_is_heard_however_it_is_cut(harness: House, until: Until) -> None:
    client = harness.open().connect()
    for byte in codec.frame(HELLO):
        client.send(bytes([byte]))
        harness.loop.turn(0)
    until(lambda: harness.heard)
    peer, message = harness.heard[0]
    assert message == HELLO
    assert peer.cred == PeerCredentials(os.getpid(), ME)
    client.close()
    until(lambda: harness.ended == [peer])
    assert not harness.control.peers


def test_an_answer_comes_with_its_descriptor(harness: House, until: Until) -> None:
    client = harness.open().connect()
    client.send(codec.frame(HELLO))
    until(lambda: harness.heard)
    fd = os.memfd_create("x")
    os.write(fd, b"data")
    harness.control.send(harness.heard[0][0], Starting("now"), (fd,))
    os.close(fd)
    data, fds, _, _ = socket.recv_fds(client, 1 << 16, 1)
    assert codec.unframe(bytearray(data)) == Starting("now")
    assert os.pread(fds[0], 10, 0) == b"data"
    os.close(fds[0])


GARBAGE = {
    "random": b"\x05\x00\x00\x00abcde",
    "huge": struct.pack("<I", 0xFFFFFFFF),
    "over the limit of a first message": struct.pack("<I", module.MAX_IN + 1),
    "nothing": struct.pack("<I", 0),
    "not a message that a client may send": codec.frame(Bye("x")),
    "two at once": codec.frame(HELLO) + codec.frame(HELLO),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_is_dropped_and_said_once(harness: House, until: Until, what: str) -> None:
    harness.open()
    for _ in range(3):
        client = harness.connect()
        client.send(GARBAGE[what])
        until(lambda client=client: is_ended(client))
    assert harness.heard == []
    assert harness.log.count("dropped") == 1


def test_who_speaks_out_of_turn_is_dropped_and_its_end_told(harness: House, until: Until) -> None:
    client = harness.open().connect()
    client.send(codec.frame(HELLO))
    until(lambda: harness.heard)
    client.send(b"more")
    until(lambda: harness.ended)
    assert harness.ended == [harness.heard[0][0]]


def test_a_silent_connection_is_dropped_after_its_time(
    harness: House, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.05)
    silent, half = harness.open().connect(), harness.connect()
    half.send(codec.frame(HELLO)[:9])
    until(lambda: is_ended(silent) and is_ended(half))
    assert harness.ended == []
    assert not harness.control.peers


def test_silent_connections_are_capped_and_keep_nobody_out(harness: House, until: Until) -> None:
    harness.open()
    crowd = [harness.connect() for _ in range(3 * MAX_SILENT)]
    client = harness.connect()
    client.send(codec.frame(HELLO))
    until(lambda: harness.heard)
    assert len(harness.control.peers) <= MAX_SILENT
    assert sum(is_ended(sock) for sock in crowd) > 2 * MAX_SILENT
    assert harness.log.count("dropped") == 1


def test_a_stranger_is_refused_with_the_setting_on_both_sides(harness: House, until: Until) -> None:
    harness.open(gate=PeerGate(ME, allow_uids=(77,)), cred=lambda _: PeerCredentials(5, ME + 1000))
    client = harness.connect()
    client.send(codec.frame(HELLO))
    until(lambda: harness.log.count("refused"))
    (answer,), _ = read_all(client)
    assert isinstance(answer, Rejected)
    assert answer.error == "RefusedError"
    assert str(ME + 1000) in answer.text
    assert "allow_uids" in answer.text
    assert str(ME + 1000) in harness.log.all[0][1]
    assert harness.heard == []


def test_a_rejection_is_read_in_full_although_the_client_has_said_more(
    harness: House, until: Until
) -> None:
    client = harness.open().connect()
    client.send(codec.frame(HELLO))
    until(lambda: harness.heard)
    # unread, it would turn our end into a reset that swallows the answer
    client.send(b"x" * 100_000)
    harness.control.reject(harness.heard[0][0], "ConfigError", "no")
    found: list[Any] = []

    def ended() -> bool:
        messages, end = read_all(client)
        found.extend(messages)
        return end

    until(ended)
    assert found == [Rejected("ConfigError", "no")]
    client.close()
    until(lambda: harness.ended)
    assert harness.log.count("dropped") == 0


def test_a_reader_that_does_not_read_is_dropped_before_much_piles_up(
    harness: House, until: Until
) -> None:
    client = harness.open().connect()
    client.send(codec.frame(HELLO))
    until(lambda: harness.heard)
    peer = harness.heard[0][0]
    sent = 0
    while not peer.ended:
        harness.control.send(peer, Report("x" * 1_000_000))
        assert peer.outbox_bytes <= module.MAX_OUT
        sent += 1
        assert sent < 100
    assert harness.ended == [peer]
    assert "does not read" in harness.log


def test_a_rejected_client_that_stays_is_seen_off(
    harness: House, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = harness.open().connect()
    client.send(codec.frame(HELLO))
    until(lambda: harness.heard)
    peer = harness.heard[0][0]
    monkeypatch.setattr(module, "SILENT_S", 0.05)
    harness.control.reject(peer, "RefusedError", "no")
    until(lambda: peer.ended)


def test_descriptors_that_wait_for_a_reader_are_closed_with_it(
    harness: House, until: Until
) -> None:
    client = harness.open().connect()
    client.send(codec.frame(HELLO))
    until(lambda: harness.heard)
    peer = harness.heard[0][0]
    while not peer.outbox:
        harness.control.send(peer, Report("x" * 1_000_000))
    with open(os.devnull) as file:
        harness.control.send(peer, Report(""), (file.fileno(),))
    (copy,) = peer.outbox[-1][1]
    assert os.fstat(copy)
    harness.control.drop(peer)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(copy)


def test_an_asker_that_reads_too_slowly_is_dropped(
    harness: House, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLOW_S", 0.05)
    client = harness.open().connect()
    client.send(codec.frame(Ask(PROTOCOL, "status")))
    until(lambda: harness.heard)
    peer = harness.heard[0][0]
    for _ in range(3):
        harness.control.send(peer, Report("x" * 1_000_000))
    until(lambda: peer.ended)


def test_a_long_answer_reaches_a_slow_but_willing_reader(harness: House, until: Until) -> None:
    client = harness.open().connect()
    client.send(codec.frame(Ask(PROTOCOL, "status")))
    until(lambda: harness.heard)
    peer = harness.heard[0][0]
    bodies = [str(k) * 900_000 for k in range(4)]
    for body in bodies:
        harness.control.send(peer, Report(body))
    harness.control.finish(peer)
    client.setblocking(False)
    got = bytearray()

    def ended() -> bool:
        try:
            data = client.recv(50_000)
        except BlockingIOError:
            return False
        got.extend(data)
        return not data

    until(ended)
    assert [codec.unframe(got) for _ in bodies] == [Report(body) for body in bodies]


def test_a_trainer_whose_forked_child_keeps_the_socket_ends_with_its_process(
    harness: House, until: Until
) -> None:
    read, write = os.pipe()
    client = harness.open(pidfd=lambda _: os.dup(read)).connect()
    client.send(codec.frame(HELLO))
    until(lambda: harness.heard)
    os.write(write, b"dead")
    until(lambda: harness.ended)
    os.close(read)
    os.close(write)


def test_descriptors_sent_by_a_peer_are_not_taken(harness: House, until: Until) -> None:
    client = harness.open().connect()
    before = len(os.listdir("/proc/self/fd"))
    socket.send_fds(client, [codec.frame(HELLO)], [0, 1, 2])
    until(lambda: harness.heard)
    assert len(os.listdir("/proc/self/fd")) <= before + 2  # the connection and its process


def test_out_of_descriptors_turns_away_and_recovers(harness: House, until: Until) -> None:
    import resource

    harness.open()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = [harness.connect() for _ in range(5)]
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(int(fd) for fd in os.listdir("/proc/self/fd")), hard)
    )
    taken: list[int] = []
    try:
        try:
            while True:
                taken.append(os.dup(0))
        except OSError:
            pass
        before = harness.loop.turns
        until(lambda: harness.loop.turns > before + 10)
        for sock in waiting:
            assert is_ended(sock)
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert harness.log.count("out of file descriptors") == 1
    client = harness.connect()
    client.send(codec.frame(HELLO))
    until(lambda: harness.heard)


def test_a_forked_child_of_the_daemon_keeps_no_connection_open(
    harness: House, until: Until
) -> None:
    client = harness.open().connect()
    client.send(codec.frame(HELLO))
    until(lambda: harness.heard)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    harness.control.close()
    until(lambda: is_ended(client))
    with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
        harness.connect()
    os.close(write)
    os.waitpid(pid, 0)


def test_after_it_stops_listening_nobody_gets_in_but_those_inside_stay(
    harness: House, until: Until
) -> None:
    client = harness.open().connect()
    client.send(codec.frame(HELLO))
    until(lambda: harness.heard)
    late = harness.connect()
    harness.control.stop_listening()
    until(lambda: is_ended(late))
    assert not os.path.exists(harness.path)
    harness.control.send(harness.heard[0][0], Bye("drained"))
    assert read_all(client) == ([Bye("drained")], False)


@pytest.mark.parametrize(
    ("gate", "mode"),
    [
        (PeerGate(ME), 0o600),
        (PeerGate(ME, allow_uids=(5,)), 0o666),
        (PeerGate(ME, allow_unmapped=True), 0o666),
    ],
)
def test_the_sockets_mode_says_who_may_knock(harness: House, gate: PeerGate, mode: int) -> None:
    harness.open(gate=gate)
    assert os.stat(harness.path).st_mode & 0o777 == mode


@pytest.mark.parametrize(
    ("gate", "uid", "allowed"),
    [
        (PeerGate(1000), 1000, True),
        (PeerGate(1000), 0, True),
        (PeerGate(1000), 1001, False),
        (PeerGate(1000, (1001,)), 1001, True),
        (PeerGate(1000, (1001,)), 1002, False),
        # in the initial namespace 65534 is just somebody called nobody
        (PeerGate(1000, (OVERFLOW_UID,)), OVERFLOW_UID, True),
        (PeerGate(OVERFLOW_UID), OVERFLOW_UID, True),
        # elsewhere it may be anybody, whatever else the lists say
        (PeerGate(0, (OVERFLOW_UID,), all_mapped=False), OVERFLOW_UID, False),
        (PeerGate(OVERFLOW_UID, all_mapped=False), OVERFLOW_UID, False),
        (PeerGate(0, (), True, all_mapped=False), OVERFLOW_UID, True),
        (PeerGate(0, (4321,), False, all_mapped=False), OVERFLOW_UID, False),
    ],
)
def test_who_may_attach(gate: PeerGate, uid: int, allowed: bool) -> None:
    assert (gate.refusal(uid) == "") == allowed


def test_an_unmapped_uid_is_told_the_word_to_write() -> None:
    assert "unmapped" in PeerGate(0, (4321,), False, all_mapped=False).refusal(OVERFLOW_UID)


def test_only_a_map_of_all_uids_makes_65534_a_name() -> None:
    assert maps_everybody("         0          0 4294967295\n")
    assert not maps_everybody("         0       1000          1\n")
    assert not maps_everybody("0 0 65536\n")
    assert not maps_everybody("")
