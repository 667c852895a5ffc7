"""A small HTTP endpoint in the loop.

It knows GET, gives one answer a connection, and is bounded in number, size and time.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loaderd.system.fork_hooks import closed_in_children
from loaderd.system.loop import Loop, Timer

MAX_CLIENTS = 16
MAX_REQUEST = 8192  # bytes
CLIENT_S = 5.0  # from the connection to the end of the answer
ACCEPTS = 16  # in one turn
REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Page:
    """An answer.

    Attributes:
        status: HTTP's number.
        body: Text, sent as UTF-8.
        kind: Its content type.
    """

    status: int
    body: str
    kind: str = "text/plain; charset=utf-8"


PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class _Client:
    __slots__ = ("answer", "request", "sock", "timer")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.request = bytearray()
        self.answer: memoryview | None = None
        self.timer: Timer | None = None


def parse_address(text: str) -> tuple[str, int]:
    """("127.0.0.1", 9470) of "127.0.0.1:9470", also "[::1]:9470". Raises ValueError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f'metrics = "{text}" is not "host:port"')
    return host.strip("[]"), int(port)


class HttpServer:
    """Serves `pages` (path -> what makes the page) on `address`; `port` is the one in use.

    Raises OSError when it can't listen.
    """

    def __init__(
        self, loop: Loop, address: tuple[str, int], pages: Mapping[str, Callable[[], Page]]
    ) -> None:
        self._loop = loop
        self._pages = pages
        self._clients: dict[_Client, None] = {}
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
        client.request += data
        if b"\r\n\r\n" in client.request or b"\n\n" in client.request:
            self._answer(client, self._page(bytes(client.request)))
        elif len(client.request) > MAX_REQUEST:
            self._answer(client, Page(400, "the request is too long\n"))

    def _page(self, request: bytes) -> Page:
        words = request.split(b"\n", 1)[0].split()
        if len(words) != 3 or not words[2].startswith(b"HTTP/"):
            return Page(400, "not HTTP\n")
        if words[0] != b"GET":
            return Page(405, "only GET is supported\n")
        make = self._pages.get(words[1].split(b"?", 1)[0].decode("latin-1"))
        return (
            make()
            if make
            else Page(404, "no such page; pages are " + ", ".join(self._pages) + "\n")
        )

    def _answer(self, client: _Client, page: Page) -> None:
        body = page.body.encode()
        head = (
            f"HTTP/1.1 {page.status} {REASONS.get(page.status, '')}\r\nContent-Type: "
            f"{page.kind}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        client.answer = memoryview(head.encode() + body)
        self._write(client)

    def _write(self, client: _Client) -> None:
        assert client.answer is not None
        try:
            client.answer = client.answer[client.sock.send(client.answer) :]
        except BlockingIOError:
            pass
        except OSError:
            self._end(client)
            return
        if client.answer:
            self._loop.watch(
                client.sock.fileno(), functools.partial(self._write, client), read=False, write=True
            )
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
