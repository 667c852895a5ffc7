from __future__ import annotations

import functools
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


EVENTS = module.EventStream(lambda: "data: first\n\n", lambda: "data: then\n\n")


@pytest.fixture
def live(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpServer]:
    monkeypatch.setattr(module, "EVENT_S", 0.01)
    page = Page(200, "secret\n", headers=("X-Own: yes",))
    pages = {"/events": lambda: EVENTS, "/page": lambda: page, "/metrics": lambda: page}
    made = HttpServer(loop, ("127.0.0.1", 0), pages, guarded=("/events", "/page"))
    yield made
    made.close()


class Reader:
    """Of events."""

    def __init__(self, live: HttpServer) -> None:
        self.client = ask(live, b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.got = bytearray()
        self.ended = False

    def has(self, part: bytes, times: int = 1) -> bool:
        try:
            while data := self.client.recv(1 << 16):
                self.got.extend(data)
            self.ended = True
        except BlockingIOError:
            pass
        except ConnectionResetError:
            self.ended = True
        return self.got.count(part) >= times


def test_events_go_to_all_readers_until_they_leave(live: HttpServer, until: Until) -> None:
    readers = [Reader(live), Reader(live)]
    for reader in readers:
        until(functools.partial(reader.has, b"data: then", 3))
        assert reader.got.count(b"data: first") == 1
        assert b"text/event-stream" in reader.got
        assert b"Content-Length" not in reader.got
    for reader in readers:
        reader.client.close()
    until(lambda: not live._clients)
    until(lambda: live._tick is None)  # nothing wakes up for nobody


def test_readers_are_bounded(
    live: HttpServer, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_READERS", 1)
    reader = Reader(live)
    until(functools.partial(reader.has, b"first"))
    got = answer(ask(live, b"GET /events HTTP/1.1\r\n\r\n"), until)
    assert b" 503 " in got
    assert b"close one" in got
    reader.client.close()


def test_a_reader_that_reads_nothing_is_dropped_and_others_go_on(
    loop: Loop, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EVENT_S", 0.01)
    monkeypatch.setattr(module, "CLIENT_S", 0.2)
    long = module.EventStream(lambda: LONG, lambda: LONG)
    made = HttpServer(loop, ("127.0.0.1", 0), {"/events": lambda: EVENTS, "/long": lambda: long})
    idle = ask(made, b"GET /long HTTP/1.1\r\n\r\n")
    until(lambda: len(made._clients) == 1)
    busy = Reader(made)
    until(lambda: len(made._clients) == 2)
    until(lambda: len(made._clients) == 1)
    seen = busy.got.count(b"then")
    until(lambda: busy.has(b"then", seen + 3))
    idle.close()
    busy.client.close()
    made.close()


@pytest.mark.parametrize(
    ("host", "path", "status"),
    [
        (b"127.0.0.1:9470", b"/page", b"200"),
        (b"[::1]:9470", b"/page", b"200"),
        (b"10.1.2.3", b"/page", b"200"),
        (b"LOCALHOST:1", b"/page", b"200"),
        (b"evil.example", b"/page", b"403"),
        (b"evil.example:9470", b"/events", b"403"),
        (b"localhost.evil.example", b"/page", b"403"),
        (b"daemon.training.svc:9470", b"/metrics", b"200"),  # as Prometheus may be told
    ],
)
def test_a_page_for_people_answers_only_to_this_machines_names(
    live: HttpServer, until: Until, host: bytes, path: bytes, status: bytes
) -> None:
    got = answer(ask(live, b"GET %s HTTP/1.1\r\nhost: %s\r\n\r\n" % (path, host)), until)
    assert got.split()[1] == status
    assert (b"secret" in got) == (status == b"200")
    assert (b"X-Own: yes" in got) == (status == b"200")


def test_a_page_that_raises_is_an_answer_of_500_and_one_line_a_minute(
    loop: Loop, until: Until
) -> None:
    said: list[str] = []
    failing = module.EventStream(lambda: str(1 // 0), lambda: "")
    pages = {"/page": lambda: Page(200, str(1 // 0)), "/events": lambda: failing}
    made = HttpServer(
        loop, ("127.0.0.1", 0), pages, log=lambda level, event, text, **_: said.append(text)
    )
    for path in (b"/page", b"/events", b"/page"):
        got = answer(ask(made, b"GET %s HTTP/1.1\r\n\r\n" % path), until)
        assert got.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
        assert b"the log says why" in got
    (line,) = said
    assert "a page of the metrics address failed" in line
    assert "ZeroDivisionError" in line.splitlines()[-1]
    assert not made._clients
    made.close()


def test_a_stream_of_events_that_raises_ends_for_its_readers_alone(
    live: HttpServer, until: Until
) -> None:
    bad = module.EventStream(lambda: "data: first\n\n", lambda: str(1 // 0))
    live._pages = {**live._pages, "/bad": lambda: bad}
    reader = Reader(live)
    assert answer(ask(live, b"GET /bad HTTP/1.1\r\n\r\n"), until).endswith(b"data: first\n\n")
    seen = reader.got.count(b"then")
    until(lambda: reader.has(b"then", seen + 3))
    reader.client.close()


def test_text_that_cannot_be_encoded_is_sent_with_escapes(loop: Loop, until: Until) -> None:
    made = HttpServer(loop, ("127.0.0.1", 0), {"/": lambda: Page(200, "a\udcff")})
    assert answer(ask(made, b"GET / HTTP/1.1\r\n\r\n"), until).endswith(b"a\\udcff")
    made.close()


def test_an_event_is_made_and_encoded_once_for_all_readers(
    loop: Loop, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has to be read by somebody slow: eight readers must not take eight times the memory."""
    monkeypatch.setattr(module, "EVENT_S", 0.01)
    events = module.EventStream(lambda: "data: first\n\n", lambda: LONG)
    made = HttpServer(loop, ("127.0.0.1", 0), {"/events": lambda: events})
    readers = [ask(made, b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(3)]
    until(lambda: sum(bool(each.answer) for each in made._clients) == 3)
    waiting = {id(each.answer.obj) for each in made._clients if each.answer is not None}
    assert len(waiting) == 1
    for reader in readers:
        reader.close()
    made.close()


def test_a_long_answer_is_sent_piece_by_piece(metrics: HttpServer, loop: Loop) -> None:
    client = ask(metrics, b"GET /long HTTP/1.1\r\n\r\n")
    while not any(each.answer for each in metrics._clients):
        loop.turn(1)
    (one,) = metrics._clients
    assert one.answer is not None
    assert len(one.answer) > len(LONG) - module.SENT
    client.close()
