"""Peers that mean harm, beyond those of test_peers: admitted clients that lie, flood, or do not
listen, and crowds at both sockets.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from loaderd_testing.daemon_harness import Site, alive, digest, plain, take, until
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_wire import codec
from loaderd_wire.messages import (
    PROTOCOL,
    Ask,
    Failure,
    Hello,
    Progress,
    Rejected,
    Released,
    Welcome,
)

GREETING = {
    "protocol": PROTOCOL,
    "stream": "train",
    "batch_size": None,
    "seed": None,
    "drop_last": None,
    "rank": 0,
    "world_size": 1,
}
GREETING |= {
    "prefetch": 4,
    "fields": None,
    "held_bytes": 0,
    "order": {},
    "content": {},
    "config": "",
}
QUIET_LINES = 6  # of a log, for whatever a peer does a hundred times within a minute


def rss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} is gone")


def fd_count(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


class Liar:
    """A client made from the wire alone: it says hello as anybody would, and then what it likes."""

    def __init__(self, site: Site, **changes: Any) -> None:
        self.raw = socket.socket(socket.AF_UNIX)
        self.raw.settimeout(DEADLINE_S)
        self.raw.connect(str(site.socket))
        self.raw.sendall(codec.frame(Hello(**{**GREETING, **changes})))
        buffer = bytearray()
        while (answer := codec.unframe(buffer)) is None:
            data, fds, _, _ = socket.recv_fds(self.raw, 65536, 4)
            for fd in fds:
                os.close(fd)
            if not data:
                break
            buffer += data
        self.answer: Welcome | Rejected | None = answer
        self.context = zmq.Context()
        self.dealer = self.context.socket(zmq.DEALER)
        self.dealer.linger = 0
        self.dealer.sndtimeo = 20_000
        if isinstance(self.answer, Welcome):
            self.dealer.plain_username = b"%d" % self.answer.session
            self.dealer.plain_password = self.answer.token
        self.dealer.connect(f"ipc://{site.socket}.zmq")
        self.seq = 0

    def say(self, **changes: Any) -> None:
        assert isinstance(self.answer, Welcome)
        self.seq += 1
        said = {
            "session": self.answer.session,
            "seq": self.seq,
            "plan": 1,
            "epoch": 0,
            "position": 0,
            "step": 0,
        }
        said |= {
            "taken": 0,
            "have": 0,
            "again": False,
            "ping": False,
            "waiting": True,
            "released": (),
        }
        self.dealer.send(codec.WIRE.encode(Progress(**{**said, **changes})))

    def heard(self) -> Any:
        """The daemon has read all that was said before: it has answered a ping that came after it."""
        self.dealer.rcvtimeo = 20_000
        self.say(ping=True)
        while True:
            message = codec.WIRE.decode(self.dealer.recv())
            if getattr(message, "seq", None) == self.seq:
                return message

    def close(self) -> None:
        self.raw.close()
        self.dealer.close()
        self.context.term()

    def __enter__(self) -> Liar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def lies(slots: int) -> dict[str, dict[str, Any]]:
    """Things that no client of ours says. None of them is true of a session that has just begun."""
    ahead = (1 << 40,) * slots
    return {
        "batches taken that were never made": {"taken": 1 << 30, "have": 1 << 30},
        "credits it does not have": {"taken": 7, "have": 7},
        "slots given back that it never had": {"released": (Released(1, ahead, ahead),)},
        "slots of a segment that is not there": {"released": (Released(1 << 50, ahead, ahead),)},
        "too many slots": {"released": (Released(1, ahead * 100, ahead * 100),)},
        "the same slots a thousand times": {
            "released": (Released(1, (0,) * slots, (0,) * slots),) * 1000
        },
        "a place behind the end": {"position": 1 << 40},
        "no plan": {"plan": 0},
        "a plan that has been served already": {"plan": 1 << 40, "taken": 1 << 40},
        "everything again": {"again": True, "have": 1 << 60},
        "an epoch at the end of numbers": {"plan": 2, "epoch": 1 << 62, "position": 90},
        "a step at the end of numbers": {"plan": 2, "step": 1 << 62},
    }


def went_on(site: Site, loader: Any, got: list[dict[str, Any]], undisturbed: str) -> None:
    assert digest(got + take(loader)) == undisturbed
    assert site.process.poll() is None
    assert "the daemon has failed" not in site.text()


@pytest.mark.parametrize("what", lies(1))
def test_an_admitted_client_that_lies_harms_nobody_and_is_logged_once(
    site: Site, undisturbed: str, what: str
) -> None:
    loader = site.write().serve().loader()
    got = take(loader)
    with Liar(site) as liar:
        assert isinstance(liar.answer, Welcome)
        lie = lies(liar.answer.segment.slots)[what]
        liar.say()
        before = rss(site.pid), len(site.text().splitlines())
        for _ in range(200):
            liar.say(**lie)
        liar.heard()
        went_on(site, loader, got, undisturbed)
        assert len(site.text().splitlines()) - before[1] <= QUIET_LINES, site.text()
        assert rss(site.pid) < before[0] + (6 << 20)
    until("the liar's session to end", lambda: len(site.status()["sessions"]) == 1)


def test_a_client_cannot_speak_for_another_session(daemon: Site, undisturbed: str) -> None:
    loader = daemon.loader()
    got = take(loader)
    victim = daemon.status()["sessions"][0]["session"]
    with Liar(daemon) as liar:
        slots = (1 << 20,) * 6
        for i in range(100):
            liar.say(
                session=victim,
                seq=1 << 40,
                plan=1 << 40,
                position=8 * (i % 10),
                released=(Released(1, slots, slots),),
            )
        liar.heard()
        went_on(daemon, loader, got, undisturbed)
    assert daemon.text().count(f"it names session {victim}") == 1


def test_a_client_that_never_reads_its_messages_costs_no_memory(
    site: Site, undisturbed: str
) -> None:
    loader = site.write().serve().loader()
    got = take(loader)
    with Liar(site) as liar:
        liar.heard()
        before = rss(site.pid)
        for _ in range(20_000):
            liar.say(ping=True, again=True)
        went_on(site, loader, got, undisturbed)
        assert rss(site.pid) < before + (6 << 20)
        assert len(site.status()["sessions"]) == 2


def test_a_flood_of_progress_delays_nobody_for_long_and_costs_no_memory(
    site: Site, undisturbed: str
) -> None:
    loader = site.write().serve().loader()
    got = take(loader)
    with Liar(site) as liar:
        liar.heard()
        before = rss(site.pid)
        batches = iter(loader)
        for turn in range(13):
            for _ in range(1500):
                liar.say(plan=2 + turn, position=turn, again=True)
            got.append(plain(next(batches)))
        assert next(batches, None) is None
        assert digest(got) == undisturbed
        assert rss(site.pid) < before + (6 << 20)


ODD = {
    "prefetch": [0, 1 << 20, 1 << 62],
    "batch_size": [0, 1 << 20, 1 << 62],
    "world_size": [0, 1 << 62],
    "rank": [1, 1 << 62],
    "seed": [1 << 62],
    "held_bytes": [1 << 62],
    "stream": ["", "x" * 100_000],
    "fields": [(), ("x",) * 1000, tuple(str(i) for i in range(20_000))],
    "order": [{str(i): "x" for i in range(5000)}],
    "config": ["/" + "x" * 100_000],
}


def test_a_hello_of_impossible_numbers_is_refused_or_served_and_never_the_end(
    site: Site, undisturbed: str
) -> None:
    loader = site.write().serve().loader()
    got = take(loader)
    before = rss(site.pid)
    for name, values in ODD.items():
        for value in values:
            with Liar(site, **{name: value}) as liar:
                if isinstance(liar.answer, Rejected):
                    assert liar.answer.error in (
                        "ConfigError",
                        "RefusedError",
                        "StreamChangedError",
                    ), (name, value, liar.answer)
                    assert len(liar.answer.text) < 5000
    went_on(site, loader, got, undisturbed)
    assert rss(site.pid) < before + (8 << 20)


def test_a_hello_told_byte_by_byte_is_not_waited_for(site: Site) -> None:
    site.write().serve()
    data = codec.frame(Hello(**GREETING))
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(0.2)
        raw.connect(str(site.socket))
        try:
            for at in range(len(data) - 1):
                raw.send(data[at : at + 1])
                with contextlib.suppress(TimeoutError):
                    assert raw.recv(1) == b""
                    return
        except (BrokenPipeError, ConnectionResetError):
            return  # it hung up between two bytes
    pytest.fail("a hello that takes half a minute was still being listened to")


def crowd(path: str, count: int, words: bytes) -> Iterator[socket.socket]:
    for _ in range(count):
        raw = socket.socket(socket.AF_UNIX)
        raw.setblocking(False)
        with contextlib.suppress(OSError):
            raw.connect(path)
            raw.send(words)
        yield raw


CROWD = {
    "silent": b"",
    "half a frame": struct.pack("<I", 50) + b"half",
    "garbage": os.urandom(500),
    "one routing id": b"\xe8" + bytes(range(250)) * 2,
}


@pytest.mark.parametrize("suffix", ["", ".zmq"])
@pytest.mark.parametrize("words", CROWD.values(), ids=CROWD)
def test_thousands_of_connections_leave_no_trace(
    site: Site, undisturbed: str, suffix: str, words: bytes
) -> None:
    loader = site.write().serve().loader()
    got = take(loader)
    site.settled()
    fds, lines = fd_count(site.pid), len(site.text().splitlines())
    for raw in crowd(f"{site.socket}{suffix}", 200, words):
        raw.close()
    until("the first of them to be gone", lambda: fd_count(site.pid) <= fds)
    memory = rss(site.pid)
    waiting: list[socket.socket] = []
    for raw in crowd(f"{site.socket}{suffix}", 2000, words):
        waiting.append(raw)
        if len(waiting) == 300:
            for one in waiting:
                one.close()
            waiting.clear()
    went_on(site, loader, got, undisturbed)
    for one in waiting:
        one.close()
    until("all of them to be gone", lambda: fd_count(site.pid) <= fds)
    until("what they took to be given back", lambda: rss(site.pid) < memory + (6 << 20))
    assert len(site.text().splitlines()) - lines <= QUIET_LINES, site.text()
    assert len(site.loader()) == 13


FLOOD = """
import os, select, socket, sys
while not select.select([sys.stdin], [], [], 0)[0]:  # until its parent closes the other end
    with socket.socket(socket.AF_UNIX) as raw:
        try:
            raw.connect(sys.argv[1])
            raw.send(os.urandom(200))
        except OSError:
            pass
"""
FLOOD_S = float(os.environ.get("LOADERD_FLOOD_S", "4"))
CALM = 200 << 20, 200  # bytes and descriptors of a daemon that is being flooded


def ticks(pid: int) -> int:
    """Processor time of a process so far."""
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))


@pytest.mark.parametrize("count", [2, 4])
def test_processes_that_send_random_bytes_without_end_change_nothing(
    site: Site, undisturbed: str, count: int
) -> None:
    """LOADERD_FLOOD_S makes it longer, by hand."""
    loader = site.write().serve().loader()
    got = take(loader)
    site.settled()
    fds = fd_count(site.pid)
    words = [sys.executable, "-c", FLOOD, f"{site.socket}.zmq"]
    floods = [subprocess.Popen(words, stdin=subprocess.PIPE) for _ in range(count)]
    batches, most = got, [0, 0]
    try:
        end = time.monotonic() + FLOOD_S
        while time.monotonic() < end:
            batches = take(loader)
            assert batches, "the stream has stopped"
            loader.set_epoch(1)
            most = [max(most[0], rss(site.pid)), max(most[1], fd_count(site.pid))]
            with contextlib.closing(site.loader()) as late:
                assert len(late) == 13
            select.select([], [], [], 0.02)
    finally:
        for flood in floods:
            assert flood.stdin is not None
            flood.stdin.close()
            flood.wait(DEADLINE_S)
    print(f"{count} processes for {FLOOD_S:.0f} s: {most[0] >> 20} MiB, {most[1]} descriptors")
    assert digest(got + batches) == undisturbed
    assert most[0] < CALM[0], f"{most[0] >> 20} MiB"
    assert most[1] < CALM[1], f"{most[1]} descriptors"
    until("the connections to be gone", lambda: fd_count(site.pid) <= fds)

    def rests() -> bool:
        before = ticks(site.pid)
        select.select([], [], [], 0.5)
        return ticks(site.pid) - before <= 2

    until("the daemon to rest", rests)
    assert site.process.poll() is None


def test_a_wrong_token_from_ever_new_peers_is_logged_once(site: Site, undisturbed: str) -> None:
    loader = site.write().serve().loader()
    got = take(loader)
    victim = site.status()["sessions"][0]["session"]
    lines = len(site.text().splitlines())
    with zmq.Context() as context:
        for _ in range(60):
            with context.socket(zmq.DEALER) as dealer:
                dealer.linger = 0
                dealer.plain_username, dealer.plain_password = b"%d" % victim, os.urandom(16)
                with dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH) as monitor:
                    dealer.connect(f"ipc://{site.socket}.zmq")
                    assert monitor.poll(int(DEADLINE_S * 1000))
                    dealer.disable_monitor()
    until("all of them to be seen", lambda: site.status()["garbage"] == 60)
    went_on(site, loader, got, undisturbed)
    assert site.text().count("a wrong token") == 1
    assert len(site.text().splitlines()) - lines <= QUIET_LINES, site.text()


def test_askers_that_do_not_listen_are_dropped(site: Site, undisturbed: str) -> None:
    loader = site.write().serve().loader()
    got = take(loader)
    site.settled()
    fds, memory = fd_count(site.pid), rss(site.pid)
    askers = list(crowd(str(site.socket), 300, codec.frame(Ask(PROTOCOL, "status"))))
    try:
        went_on(site, loader, got, undisturbed)
        until("all of them to be gone", lambda: fd_count(site.pid) <= fds)
        assert rss(site.pid) < memory + (8 << 20)
    finally:
        for raw in askers:
            raw.close()


def test_an_epoch_so_far_that_counting_on_has_no_number_for_it_kills_no_worker(
    daemon: Site, undisturbed: str
) -> None:
    loader = daemon.loader()
    got = take(loader)
    workers = set(daemon.settled())
    with Liar(daemon) as liar:
        liar.dealer.rcvtimeo = int(DEADLINE_S * 1000)
        liar.say(epoch=1 << 62, position=96)
        failure = codec.WIRE.decode(liar.dealer.recv())
        assert isinstance(failure, Failure)
        assert (failure.error, f"epoch {1 << 62}" in failure.text) == ("ProtocolError", True)
    with Liar(daemon) as liar:
        liar.dealer.rcvtimeo = int(DEADLINE_S * 1000)
        liar.say(epoch=3 << 60, position=96)
        epochs = [codec.WIRE.decode(liar.dealer.recv()).epoch for _ in range(3)]
        assert epochs == [3 << 60, (3 << 60) + 1, (3 << 60) + 1]
    went_on(daemon, loader, got, undisturbed)
    assert set(daemon.workers()) == workers


def test_a_daemon_short_of_descriptors_waits_for_some(site: Site, undisturbed: str) -> None:
    """RLIMIT_NOFILE is lowered from outside to what the daemon has open just now; workers die
    meanwhile, and a trainer comes.
    """
    loader = site.write(pause=0.002).serve().loader(reconnect_s=60)
    got = take(loader)
    site.settled()
    for pid in (site.pid, site.template()):
        workers = set(site.workers())
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(
            pid, resource.RLIMIT_NOFILE, (max(map(int, os.listdir(f"/proc/{pid}/fd"))) + 1, hard)
        )
        for worker in workers:
            site.kill(worker)
        # refused, or turned away
        with socket.socket(socket.AF_UNIX) as late, contextlib.suppress(OSError):
            late.settimeout(DEADLINE_S)
            late.connect(str(site.socket))
            late.sendall(codec.frame(Hello(**GREETING)))
            late.recv(1)
        until("the dead to be gone", lambda workers=workers: not any(map(alive, workers)))
        if alive(pid):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
        until("new workers", lambda workers=workers: len(set(site.workers()) - workers) == 2)
    went_on(site, loader, got, undisturbed)
    assert len(site.loader()) == 13
