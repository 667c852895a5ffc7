"""Whoever can reach the sockets and means no good; and those who mean nothing at all: idle clients,
huge datasets.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path

import msgpack
import pytest
import zmq

from loaderd_client import Loader
from loaderd_testing.daemon_harness import Site, digest, plain, take, until
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_wire import codec
from loaderd_wire.messages import PROTOCOL, Hello, Progress, Rejected, Released


def connect(site: Site) -> socket.socket:
    raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    raw.settimeout(DEADLINE_S)
    raw.connect(str(site.socket))
    return raw


def is_dropped(raw: socket.socket) -> bool:
    """True once the daemon has closed this connection; whatever it said before is read and thrown
    away.
    """
    try:
        while raw.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


GARBAGE = {
    "random bytes": os.urandom(4096),
    "a huge frame": struct.pack("<I", 0xFFFFFFFF) + b"x" * 1000,
    "an empty frame": struct.pack("<I", 0),
    "a pickle": struct.pack("<I", 9) + b"\x80\x04\x8c\x02os\x94.\x00",
    "a map": struct.pack("<I", 1) + b"\x80",
    "a message only a daemon sends": codec.frame(Rejected("RefusedError", "you")),
    "a hello of wrong types": (lambda b: struct.pack("<I", len(b)) + b)(
        msgpack.packb([1, PROTOCOL, 5, 6])
    ),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_on_the_control_socket_is_dropped_and_harms_nobody(
    daemon: Site, undisturbed: str, what: str
) -> None:
    loader = daemon.loader()
    got = take(loader)
    before = daemon.text().count("dropped")
    for _ in range(3):
        with connect(daemon) as raw:
            raw.sendall(GARBAGE[what])
            assert is_dropped(raw)
    assert digest(got + take(loader)) == undisturbed
    assert daemon.text().count("dropped") - before <= 5


def test_a_silent_connection_is_dropped_within_seconds(daemon: Site) -> None:
    with connect(daemon) as raw:
        assert is_dropped(raw)
    assert len(daemon.loader()) == 13


def test_half_a_frame_is_dropped_within_seconds(daemon: Site) -> None:
    with connect(daemon) as raw:
        raw.sendall(struct.pack("<I", 100) + b"half")
        assert is_dropped(raw)
    assert len(daemon.loader()) == 13


def test_an_old_protocol_version_is_refused_by_name(daemon: Site) -> None:
    with connect(daemon) as raw:
        raw.sendall(
            codec.frame(
                Hello(PROTOCOL + 1, "train", None, None, None, 0, 1, 4, None, 0, {}, {}, "")
            )
        )
        buffer = bytearray()
        while (answer := codec.unframe(buffer)) is None:
            data = raw.recv(65536)
            assert data
            buffer += data
        assert isinstance(answer, Rejected)
        assert answer.error == "RefusedError"
        assert str(PROTOCOL + 1) in answer.text
        assert str(PROTOCOL) in answer.text


def test_a_flood_of_connections_does_not_keep_a_trainer_out(daemon: Site, undisturbed: str) -> None:
    loader = daemon.loader()
    got = take(loader)
    flood = []
    try:
        for _ in range(500):
            raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            raw.setblocking(False)
            if raw.connect_ex(str(daemon.socket)) == 0:
                flood.append(raw)
            else:
                raw.close()
        got += take(loader)
        assert digest(got) == undisturbed
        assert len(daemon.loader()) == 13
    finally:
        for raw in flood:
            raw.close()


def test_a_peer_without_a_token_gets_no_message_in(site: Site, undisturbed: str) -> None:
    loader = site.write().serve().loader()
    assert len(loader) == 13
    victim = site.status()["sessions"][0]["session"]
    got = []
    released = (
        Released(1, (1 << 40,) * 6, (1 << 40,) * 6),
        Released(2, (1 << 40,) * 6, (1 << 40,) * 6),
    )
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        for _ in range(2):
            for batch in loader:
                got.append(plain(batch))
                with contextlib.suppress(zmq.Again):  # libzmq gives the connection up for good
                    dealer.connect(f"ipc://{site.socket}.zmq")
                    dealer.send(os.urandom(200), zmq.NOBLOCK)
                    forged = Progress(
                        victim, 1 << 40, 1 << 30, 0, 0, 0, 0, 0, True, True, True, released
                    )
                    dealer.send(codec.WIRE.encode(forged), zmq.NOBLOCK)
        assert digest(got) == undisturbed
        assert not dealer.poll(0)
    assert site.status()["garbage"] == 0


def switches(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)


def test_an_idle_daemon_with_an_idle_client_sleeps(site: Site) -> None:
    loader = site.write().serve().loader()
    batches = iter(loader)
    next(batches)
    pids = [site.pid, site.template(), *site.workers()]

    def quiet() -> bool:
        before = [switches(p) for p in pids]
        waiting, _ = socket.socketpair()
        with waiting, _:
            waiting.settimeout(2.0)
            with pytest.raises(TimeoutError):
                waiting.recv(1)  # two seconds in which nobody asks for anything
        return sum(switches(p) for p in pids) - sum(before) <= 8

    until("two quiet seconds", quiet)


def rss(pid: int) -> int:
    line = next(
        x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS")
    )
    return int(line.split()[1]) * 1024


def test_memory_does_not_grow_with_the_dataset(site: Site) -> None:
    sizes = {}
    for n in (1_000, 1_000_000_000):
        site.write(n=n).serve()
        loader = site.loader()
        batches = iter(loader)
        for _ in range(20):
            next(batches)
        assert len(loader) == -(-n // 8)
        state = loader.state_dict()
        sizes[n] = [rss(site.pid), *[rss(w) for w in site.workers()]]
        loader.close()
        assert len(repr(state)) < 3000
        site.process.terminate()
        site.process.wait(DEADLINE_S)
    for small, large in zip(sizes[1_000], sizes[1_000_000_000], strict=False):
        assert large < small + (4 << 20)


def test_a_session_of_a_stream_that_is_not_there_names_those_that_are(daemon: Site) -> None:
    with pytest.raises(ValueError, match="no stream 'trian'; there are: train"):
        len(daemon.loader(stream="trian"))
    with pytest.raises(ValueError, match=r"100[\s\S]*200"):
        len(daemon.loader(batch_size=200, drop_last=True))
    with Loader(daemon.socket) as nameless, daemon.loader() as named:
        assert nameless.state_dict() == named.state_dict(), "it is the only one"
