from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loaderd.system import control_socket as module
from loaderd.system.control_socket import MAX_SILENT, Control, Peer
from loaderd.system.loop import Loop
from loaderd.system.peer_credentials import OVERFLOW_UID, Cred, Gate, maps_everybody
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
        self.control: Control
        self.sockets: list[socket.socket] = []

    def open(self, *, gate: Gate | None = None, **others: Any) -> House:
        self.control = Control(
            self.loop,
            self.path,
            gate=gate or Gate(ME),
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
def house(loop: Loop, tmp_path: Path, log: Lines) -> Iterator[House]:
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


def test_a_hello_is_heard_however_it_is_cut(house: House, until: Until) -> None:
    client = house.open().connect()
    for byte in codec.frame(HELLO):
        client.send(bytes([byte]))
        house.loop.turn(0)
    until(lambda: house.heard)
    peer, message = house.heard[0]
    assert message == HELLO
    assert peer.cred == Cred(os.getpid(), ME)
    client.close()
    until(lambda: house.ended == [peer])
    assert not house.control.peers


def test_an_answer_comes_with_its_descriptor(house: House, until: Until) -> None:
    client = house.open().connect()
    client.send(codec.frame(HELLO))
    until(lambda: house.heard)
    fd = os.memfd_create("x")
    os.write(fd, b"data")
    house.control.send(house.heard[0][0], Starting("now"), (fd,))
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
    "not a client's": codec.frame(Bye("x")),
    "two at once": codec.frame(HELLO) + codec.frame(HELLO),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_is_dropped_and_said_once(house: House, until: Until, what: str) -> None:
    house.open()
    for _ in range(3):
        client = house.connect()
        client.send(GARBAGE[what])
        until(lambda client=client: is_ended(client))
    assert house.heard == []
    assert house.log.count("dropped") == 1


def test_who_speaks_out_of_turn_is_dropped_and_its_end_told(house: House, until: Until) -> None:
    client = house.open().connect()
    client.send(codec.frame(HELLO))
    until(lambda: house.heard)
    client.send(b"more")
    until(lambda: house.ended)
    assert house.ended == [house.heard[0][0]]


def test_a_silent_connection_is_dropped_after_its_time(house: House, until: Until, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.05)
    silent, half = house.open().connect(), house.connect()
    half.send(codec.frame(HELLO)[:9])
    until(lambda: is_ended(silent) and is_ended(half))
    assert house.ended == []
    assert not house.control.peers


def test_silent_connections_are_capped_and_keep_nobody_out(house: House, until: Until) -> None:
    house.open()
    crowd = [house.connect() for _ in range(3 * MAX_SILENT)]
    client = house.connect()
    client.send(codec.frame(HELLO))
    until(lambda: house.heard)
    assert len(house.control.peers) <= MAX_SILENT + 1
    assert sum(is_ended(sock) for sock in crowd) >= 2 * MAX_SILENT
    assert house.log.count("dropped") == 1


def test_a_stranger_is_refused_with_the_setting_on_both_sides(house: House, until: Until) -> None:
    house.open(gate=Gate(ME, allow_uids=(77,)), cred=lambda _: Cred(5, ME + 1000))
    client = house.connect()
    client.send(codec.frame(HELLO))
    until(lambda: house.log.count("refused"))
    (answer,), _ = read_all(client)
    assert isinstance(answer, Rejected)
    assert answer.error == "Refused"
    assert str(ME + 1000) in answer.text
    assert "allow_uids" in answer.text
    assert str(ME + 1000) in house.log.all[0][1]
    assert house.heard == []


def test_a_rejection_is_read_in_full_although_the_client_has_said_more(house: House, until: Until) -> None:
    client = house.open().connect()
    client.send(codec.frame(HELLO))
    until(lambda: house.heard)
    client.send(b"x" * 10_000)  # unread, it would turn our end into a reset that swallows the answer
    house.control.reject(house.heard[0][0], "ConfigError", "no")
    found: list[Any] = []

    def ended() -> bool:
        messages, end = read_all(client)
        found.extend(messages)
        return end

    until(ended)
    assert found == [Rejected("ConfigError", "no")]
    client.close()
    until(lambda: house.ended)


def test_a_reader_that_does_not_read_is_dropped_before_much_piles_up(house: House, until: Until) -> None:
    client = house.open().connect()
    client.send(codec.frame(HELLO))
    until(lambda: house.heard)
    peer = house.heard[0][0]
    sent = 0
    while not peer.ended:
        house.control.send(peer, Report("x" * 1_000_000))
        assert peer.outbox_bytes <= module.MAX_OUT
        sent += 1
        assert sent < 100
    assert house.ended == [peer]
    assert "does not read" in house.log


def test_an_asker_that_reads_too_slowly_is_dropped(house: House, until: Until, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOW_S", 0.05)
    client = house.open().connect()
    client.send(codec.frame(Ask(PROTOCOL, "status")))
    until(lambda: house.heard)
    peer = house.heard[0][0]
    for _ in range(3):
        house.control.send(peer, Report("x" * 1_000_000))
    until(lambda: peer.ended)


def test_a_long_answer_reaches_a_slow_but_willing_reader(house: House, until: Until) -> None:
    client = house.open().connect()
    client.send(codec.frame(Ask(PROTOCOL, "status")))
    until(lambda: house.heard)
    peer = house.heard[0][0]
    bodies = [str(k) * 900_000 for k in range(4)]
    for body in bodies:
        house.control.send(peer, Report(body))
    house.control.finish(peer)
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


def test_a_trainer_whose_forked_child_keeps_the_socket_ends_with_its_process(house: House, until: Until) -> None:
    read, write = os.pipe()
    client = house.open(pidfd=lambda _: os.dup(read)).connect()
    client.send(codec.frame(HELLO))
    until(lambda: house.heard)
    os.write(write, b"dead")
    until(lambda: house.ended)
    os.close(read)
    os.close(write)


def test_descriptors_sent_by_a_peer_are_not_taken(house: House, until: Until) -> None:
    client = house.open().connect()
    before = len(os.listdir("/proc/self/fd"))
    socket.send_fds(client, [codec.frame(HELLO)], [0, 1, 2])
    until(lambda: house.heard)
    assert len(os.listdir("/proc/self/fd")) <= before + 2  # the connection and its process


def test_out_of_descriptors_turns_away_and_recovers(house: House, until: Until) -> None:
    import resource

    house.open()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = [house.connect() for _ in range(5)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(fd) for fd in os.listdir("/proc/self/fd")), hard))
    taken: list[int] = []
    try:
        try:
            while True:
                taken.append(os.dup(0))
        except OSError:
            pass
        before = house.loop.turns
        until(lambda: house.loop.turns > before + 10)
        for sock in waiting:
            assert is_ended(sock)
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert house.log.count("out of file descriptors") == 1
    client = house.connect()
    client.send(codec.frame(HELLO))
    until(lambda: house.heard)


def test_a_forked_child_of_the_daemon_keeps_no_connection_open(house: House, until: Until) -> None:
    client = house.open().connect()
    client.send(codec.frame(HELLO))
    until(lambda: house.heard)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    house.control.close()
    until(lambda: is_ended(client))
    with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
        house.connect()
    os.close(write)
    os.waitpid(pid, 0)


def test_after_it_stops_listening_nobody_gets_in_but_those_inside_stay(house: House, until: Until) -> None:
    client = house.open().connect()
    client.send(codec.frame(HELLO))
    until(lambda: house.heard)
    late = house.connect()
    house.control.stop_listening()
    until(lambda: is_ended(late))
    assert not os.path.exists(house.path)
    house.control.send(house.heard[0][0], Bye("drained"))
    assert read_all(client) == ([Bye("drained")], False)


@pytest.mark.parametrize(("gate", "mode"), [(Gate(ME), 0o600), (Gate(ME, allow_uids=(5,)), 0o666), (Gate(ME, allow_unmapped=True), 0o666)])
def test_the_sockets_mode_says_who_may_knock(house: House, gate: Gate, mode: int) -> None:
    house.open(gate=gate)
    assert os.stat(house.path).st_mode & 0o777 == mode


@pytest.mark.parametrize(
    ("gate", "uid", "allowed"),
    [
        (Gate(1000), 1000, True),
        (Gate(1000), 0, True),
        (Gate(1000), 1001, False),
        (Gate(1000, (1001,)), 1001, True),
        (Gate(1000, (1001,)), 1002, False),
        # in the initial namespace 65534 is just somebody called nobody
        (Gate(1000, (OVERFLOW_UID,)), OVERFLOW_UID, True),
        (Gate(OVERFLOW_UID), OVERFLOW_UID, True),
        # elsewhere it may be anybody, whatever else the lists say
        (Gate(0, (OVERFLOW_UID,), all_mapped=False), OVERFLOW_UID, False),
        (Gate(OVERFLOW_UID, all_mapped=False), OVERFLOW_UID, False),
        (Gate(0, (), True, all_mapped=False), OVERFLOW_UID, True),
        (Gate(0, (4321,), False, all_mapped=False), OVERFLOW_UID, False),
    ],
)
def test_who_may_attach(gate: Gate, uid: int, allowed: bool) -> None:
    assert (gate.refusal(uid) == "") == allowed


def test_an_unmapped_uid_is_told_the_word_to_write() -> None:
    assert "unmapped" in Gate(0, (4321,), False, all_mapped=False).refusal(OVERFLOW_UID)


def test_only_a_map_of_all_uids_makes_65534_a_name() -> None:
    assert maps_everybody("         0          0 4294967295\n")
    assert not maps_everybody("         0       1000          1\n")
    assert not maps_everybody("0 0 65536\n")
    assert not maps_everybody("")
