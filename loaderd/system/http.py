"""A small HTTP endpoint in the loop.

It knows GET, gives one answer a connection, and is bounded in number, size and time. An answer may
be a stream of server-sent events, which goes on until its reader leaves or is too slow. What a page
raises ends that answer, and nothing else.
"""

from __future__ import annotations

import functools
import socket
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from loaderd.system.fork_hooks import closed_in_children
from loaderd.system.logs import WriteLog
from loaderd.system.loop import Loop, Timer
from loaderd.system.rate_limit import RateLimit

MAX_CLIENTS = 16
MAX_REQUEST = 8192  # bytes
CLIENT_S = 5.0  # from the connection to the end of the answer
ACCEPTS = 16  # in one turn
MAX_READERS = 8  # of events, at a time
EVENT_S = 1.0  # between two events
SENT = 256 << 10  # bytes of an answer that are sent in one turn
REASONS = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Page:
    """An answer.

    Attributes:
        status: HTTP's number.
        body: Text, sent as UTF-8.
        kind: Its content type.
        headers: Further ones, each a line.
    """

    status: int
    body: str
    kind: str = "text/plain; charset=utf-8"
    headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EventStream:
    """An answer that goes on: server-sent events, one every EVENT_S.

    Attributes:
        first: Makes what a new reader gets at once.
        then: Makes what all readers get from then on; called once for all of them.
    """

    first: Callable[[], str]
    then: Callable[[], str]


Answer: TypeAlias = "Page | EventStream"

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class _Client:
    __slots__ = ("answer", "events", "request", "sock", "timer")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.request = bytearray()
        self.answer: memoryview | None = None
        self.timer: Timer | None = None
        self.events: EventStream | None = None


def parse_address(text: str) -> tuple[str, int]:
    """("127.0.0.1", 9470) of "127.0.0.1:9470", also "[::1]:9470". Raises ValueError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f'metrics = "{text}" is not "host:port"')
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    Args:
        host: As `parse_address` returns it.
    """
    return host.startswith("127.") or host in ("localhost", "::1")


def own_name(host: str) -> bool:
    """Whether a Host header names this machine: by an address, as localhost, or by its name.

    A page on the web whose own name was made to point here sends that name, and may not read what
    it gets.

    Args:
        host: The header, with or without a port.
    """
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.strip("[]").lower()
    if name in ("localhost", socket.gethostname().lower()):
        return True
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, name)
            return True
        except (OSError, ValueError):
            pass
    return False


class HttpServer:
    """Serves pages.

    Attributes:
        port: The one in use.
    """

    def __init__(
        self,
        loop: Loop,
        address: tuple[str, int],
        pages: Mapping[str, Callable[[], Answer]],
        guarded: Collection[str] = (),
        log: WriteLog = lambda *_, **__: None,
    ) -> None:
        """Listen.

        Args:
            loop: Calls it.
            address: Where.
            pages: Path -> what makes the page.
            guarded: Paths that answer only where the request names this machine; see `own_name`.
            log: Told of what pages raise.

        Raises:
            OSError: It cannot.
        """
        self._loop = loop
        self._pages = pages
        self._guarded = frozenset(guarded)
        self._log = log
        self._limit = RateLimit()
        self._clients: dict[_Client, None] = {}
        self._tick: Timer | None = None
        found = socket.getaddrinfo(
            *address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
        family, kind, protocol, _, where = found[0]
        self._listener = socket.socket(family, kind, protocol)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(where)
            self._listener.setblocking(False)
            self._listener.listen(MAX_CLIENTS)
        except OSError:
            self._listener.close()
            raise
        self.port: int = self._listener.getsockname()[1]
        loop.watch(self._listener.fileno(), self._accept)
        closed_in_children(self)

    def close(self) -> None:
        """End all connections and listen no longer. Idempotent."""
        if self._listener.fileno() >= 0:
            self._loop.unwatch(self._listener.fileno())
            self._listener.close()
        for client in tuple(self._clients):
            self._end(client)
        if self._tick is not None:
            self._tick.cancel()

    def disown(self) -> None:
        """In a forked child: close the descriptors, say nothing to anybody."""
        self._listener.close()
        for client in self._clients:
            client.sock.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setblocking(False)
            if len(self._clients) >= MAX_CLIENTS:
                self._end(next(iter(self._clients)))
            client = _Client(sock)
            self._clients[client] = None
            client.timer = self._loop.later(CLIENT_S, functools.partial(self._end, client))
            self._loop.watch(sock.fileno(), functools.partial(self._read, client))

    def _read(self, client: _Client) -> None:
        try:
            data = client.sock.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end(client)
            return
        if client.events is not None:  # what a reader of events says is not looked at
            return
        client.request += data
        if b"\r\n\r\n" in client.request or b"\n\n" in client.request:
            try:
                self._answer(client, self._page(bytes(client.request)))
            except Exception as error:  # noqa: BLE001 - whatever it is, the daemon goes on
                self._say(error)
                self._answer(client, Page(500, "the page could not be made; the log says why\n"))
        elif len(client.request) > MAX_REQUEST:
            self._answer(client, Page(400, "the request is too long\n"))

    def _page(self, request: bytes) -> Answer:
        lines = request.decode("latin-1").splitlines()
        words = lines[0].split()
        if len(words) != 3 or not words[2].startswith("HTTP/"):
            return Page(400, "not HTTP\n")
        if words[0] != "GET":
            return Page(405, "only GET is supported\n")
        path = words[1].split("?", 1)[0]
        make = self._pages.get(path)
        if make is None:
            return Page(404, "no such page; pages are " + ", ".join(self._pages) + "\n")
        hosts = [line[5:].strip() for line in lines[1:] if line[:5].lower() == "host:"]
        if path in self._guarded and not all(map(own_name, hosts)):
            return Page(
                403,
                "this page answers only to an address, localhost or the machine's own name; the "
                "request says another Host\n",
            )
        return make()

    def _answer(self, client: _Client, answer: Answer) -> None:
        if isinstance(answer, EventStream):
            if sum(each.events is not None for each in self._clients) >= MAX_READERS:
                answer = Page(503, f"{MAX_READERS} pages are open already; close one\n")
            else:
                self._begin_events(client, answer)
                return
        body = answer.body.encode("utf-8", "backslashreplace")
        lines = (
            f"HTTP/1.1 {answer.status} {REASONS.get(answer.status, '')}",
            f"Content-Type: {answer.kind}",
            f"Content-Length: {len(body)}",
            *answer.headers,
            "Connection: close\r\n\r\n",
        )
        client.answer = memoryview("\r\n".join(lines).encode() + body)
        self._write(client)

    # -- events

    def _begin_events(self, client: _Client, stream: EventStream) -> None:
        head = (
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        first = (head + stream.first()).encode()
        client.events = stream
        if client.timer is not None:
            client.timer.cancel()
        self._send_event(client, first)
        if self._tick is None:
            self._tick = self._loop.later(EVENT_S, self._next_events)

    def _next_events(self) -> None:
        self._tick = None
        made: dict[int, bytes] = {}  # by stream: one for all of its readers; b"" if it raised
        for client in tuple(self._clients):
            stream = client.events
            if stream is None or client.answer:  # who is slow misses some
                continue
            if id(stream) not in made:
                made[id(stream)] = self._made(stream)
            if made[id(stream)]:
                self._send_event(client, made[id(stream)])
            else:
                self._end(client)
        if any(client.events is not None for client in self._clients):
            self._tick = self._loop.later(EVENT_S, self._next_events)

    def _made(self, stream: EventStream) -> bytes:
        try:
            return stream.then().encode()
        except Exception as error:  # noqa: BLE001 - whatever it is, the daemon goes on
            self._say(error)
            return b""

    def _say(self, error: Exception) -> None:
        """Log what a page has raised, once a minute."""
        more = self._limit.ask(type(error), self._loop.now_s())
        if more is not None:
            trace = "".join(traceback.format_exception(error)).rstrip()
            self._log(
                "error", "page_failed", f"a page of the metrics address failed{more}:\n{trace}"
            )

    def _send_event(self, client: _Client, event: bytes) -> None:
        client.answer = memoryview(event)
        client.timer = self._loop.later(CLIENT_S, functools.partial(self._end, client))
        self._write(client)

    def _write(self, client: _Client) -> None:
        assert client.answer is not None
        try:
            client.answer = client.answer[client.sock.send(client.answer[:SENT]) :]
        except BlockingIOError:
            pass
        except OSError:
            self._end(client)
            return
        if client.answer:
            self._loop.watch(
                client.sock.fileno(), functools.partial(self._write, client), read=False, write=True
            )
        elif client.events is not None:
            assert client.timer is not None
            client.timer.cancel()
            self._loop.watch(client.sock.fileno(), functools.partial(self._read, client))
        else:
            self._end(client)

    def _end(self, client: _Client) -> None:
        if client not in self._clients:
            return
        del self._clients[client]
        if client.timer is not None:
            client.timer.cancel()
        self._loop.unwatch(client.sock.fileno())
        client.sock.close()
