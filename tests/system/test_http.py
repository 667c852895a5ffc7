from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loaderd.system import http as module
from loaderd.system import systemd
from loaderd.system.http import HttpServer, Page, parse_address
from loaderd.system.loop import Loop
from loaderd_testing.deadlines import DEADLINE_S

Until = Callable[[Callable[[], object]], None]
LONG = "x" * 3_000_000


@pytest.fixture
def metrics(loop: Loop) -> Iterator[HttpServer]:
    made = HttpServer(
        loop,
        ("127.0.0.1", 0),
        {"/metrics": lambda: Page(200, "loaderd_up 1\n"), "/long": lambda: Page(200, LONG)},
    )
    yield made
    made.close()


def ask(metrics: HttpServer, request: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", metrics.port), timeout=DEADLINE_S)
    client.sendall(request)
    client.setblocking(False)
    return client


def answer(client: socket.socket, until: Until) -> bytes:
    got = bytearray()

    def ended() -> bool:
        try:
            while data := client.recv(1 << 16):
                got.extend(data)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            pass
        return True

    until(ended)
    client.close()
    return bytes(got)


@pytest.mark.parametrize(
    ("request_line", "status", "part"),
    [
        (b"GET /metrics HTTP/1.1", b"200", b"loaderd_up 1"),
        (b"GET /metrics?x=1 HTTP/1.0", b"200", b"loaderd_up 1"),
        (b"GET / HTTP/1.1", b"404", b"/metrics"),
        (b"POST /metrics HTTP/1.1", b"405", b"GET"),
        (b"\x16\x03\x01", b"400", b"HTTP"),
    ],
)
def test_a_request_gets_its_page_or_its_error(
    metrics: HttpServer, until: Until, request_line: bytes, status: bytes, part: bytes
) -> None:
    head, _, body = answer(ask(metrics, request_line + b"\r\nHost: x\r\n\r\n"), until).partition(
        b"\r\n\r\n"
    )
    assert head.split()[1] == status
    assert part in body
    assert b"Content-Length: %d" % len(body) in head


def test_a_long_page_reaches_a_slow_reader_whole(metrics: HttpServer, until: Until) -> None:
    assert answer(ask(metrics, b"GET /long HTTP/1.1\r\n\r\n"), until).endswith(LONG.encode())


def test_a_request_without_end_is_refused(metrics: HttpServer, until: Until) -> None:
    assert b"400" in answer(ask(metrics, b"GET /" + b"x" * 20_000), until).split(b"\r\n")[0]


def test_a_client_that_says_nothing_is_dropped(
    loop: Loop, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLIENT_S", 0.05)
    made = HttpServer(loop, ("127.0.0.1", 0), {})
    assert answer(ask(made, b""), until) == b""
    made.close()


def test_clients_are_capped_and_keep_nobody_out(
    loop: Loop, metrics: HttpServer, until: Until
) -> None:
    crowd = []
    for _ in range(3 * module.MAX_CLIENTS):
        crowd.append(ask(metrics, b""))
        loop.turn(0)
    assert b"loaderd_up" in answer(ask(metrics, b"GET /metrics HTTP/1.1\r\n\r\n"), until)
    assert len(metrics._clients) <= module.MAX_CLIENTS
    for client in crowd:
        client.close()


def test_a_port_in_use_is_an_error_at_once(loop: Loop, metrics: HttpServer) -> None:
    with pytest.raises(OSError, match="in use"):
        HttpServer(loop, ("127.0.0.1", metrics.port), {})


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9470", ("127.0.0.1", 9470)),
        ("[::1]:80", ("::1", 80)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_an_address(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["9470", ":9470", "host", "host:", "host:99999", "host:x"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        parse_address(text)


def test_systemd_is_told_when_it_asked(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        assert systemd.notify("READY=1", {"NOTIFY_SOCKET": path})
        assert listener.recv(100) == b"READY=1"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        name = f"loaderd-test-{os.getpid()}"
        listener.bind("\0" + name)
        assert systemd.notify("STOPPING=1", {"NOTIFY_SOCKET": "@" + name})
        assert listener.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize(
    ("env", "every_s"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
        ({}, 0.0),
    ],
)
def test_systemd_hears_twice_as_often_as_it_expects(env: dict[str, str], every_s: float) -> None:
    assert systemd.watchdog_s(env, 7) == every_s


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"NOTIFY_SOCKET": ""},
        {"NOTIFY_SOCKET": "vsock:2:1"},
        {"NOTIFY_SOCKET": "/nowhere/at/all"},
    ],
)
def test_systemd_that_did_not_ask_or_is_gone_harms_nobody(env: dict[str, str]) -> None:
    assert not systemd.notify("READY=1", env)


def test_a_forked_child_gives_up_what_clients_its_parent_has(
    metrics: HttpServer, until: Until
) -> None:
    client = ask(metrics, b"GET /metrics")
    until(lambda: metrics._clients)
    copies = [one.sock for one in metrics._clients]
    metrics.disown()  # as in a child; here there is no parent that would go on
    assert [sock.fileno() for sock in copies] == [-1]
    metrics._clients.clear()
    client.close()
