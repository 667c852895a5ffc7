from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq

from loaderd.system import zmq_router as module
from loaderd.system.loop import Loop
from loaderd.system.zmq_router import MessageRouter
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.loop_fixtures import Lines
from loaderd_wire.codec import WIRE
from loaderd_wire.messages import Bye, Failure, Progress, Pulse

Until = Callable[[Callable[[], object]], None]
TOKEN = b"t" * 16
TOLD = Progress(7, 1, 1, 0, 0, 0, 0, 0, False, False, False, ())


class Post:
    """The daemon's socket and, in the same thread, clients of it."""

    def __init__(self, loop: Loop, path: Path, log: Lines, until: Until) -> None:
        self.until = until
        self.path = str(path / "d.sock.zmq")
        self.heard: list[tuple[int, Progress]] = []
        self.messages = MessageRouter(
            loop,
            self.path,
            mode=0o600,
            uids=(os.geteuid(),),
            on_progress=lambda session, p: self.heard.append((session, p)),
            log=log,
        )
        self.loop, self.log = loop, log
        self.context = zmq.Context()
        self.dealers: list[zmq.Socket[bytes]] = []

    def dealer(self, session: int = 7, token: bytes = TOKEN, **options: Any) -> zmq.Socket[bytes]:
        made = self.context.socket(zmq.DEALER)
        made.linger = 0
        made.plain_username, made.plain_password = b"%d" % session, token
        for name, value in options.items():
            setattr(made, name, value)
        made.connect(f"ipc://{self.path}")
        self.dealers.append(made)
        return made

    def introduced(self, **options: Any) -> zmq.Socket[bytes]:
        """The client of session 7, admitted and heard."""
        self.messages.admit(7, TOKEN)
        made = self.dealer(**options)
        made.send(WIRE.encode(TOLD))
        self.until(lambda: self.heard)
        return made

    def close(self) -> None:
        self.messages.close()
        self.context.destroy(linger=0)


@pytest.fixture
def post(loop: Loop, tmp_path: Path, log: Lines, until: Until) -> Iterator[Post]:
    made = Post(loop, tmp_path, log, until)
    yield made
    made.close()
    assert os.listdir(tmp_path) == []


def received(dealer: zmq.Socket[bytes]) -> list[object]:
    found: list[object] = []
    while dealer.poll(0):
        found.append(WIRE.decode(dealer.recv()))
    return found


def pulse(seq: int, detail: str = "") -> Pulse:
    return Pulse(7, seq, 0, 0, "", detail)


def test_what_a_client_says_is_heard_and_answered(post: Post, until: Until) -> None:
    dealer = post.introduced()
    assert post.heard == [(7, TOLD)]
    post.messages.send(7, pulse(1))
    until(lambda: dealer.poll(0))
    assert received(dealer) == [pulse(1)]


def test_nothing_is_sent_to_a_client_that_did_not_ask(post: Post, until: Until) -> None:
    post.messages.admit(7, TOKEN)
    dealer = post.dealer()
    post.messages.send(7, pulse(1))
    dealer.send(WIRE.encode(TOLD))
    until(lambda: post.heard)
    post.messages.send(7, pulse(2))
    until(lambda: dealer.poll(0))
    assert received(dealer) == [pulse(2)]


def test_of_many_messages_the_last_and_each_that_asks_are_heard_in_order(
    post: Post, until: Until
) -> None:
    post.messages.admit(7, TOKEN)
    dealer = post.dealer()
    count = 3 * module.RECEIVES
    for seq in range(count):
        dealer.send(WIRE.encode(replace(TOLD, seq=seq, ping=seq % 10 == 0, again=seq % 10 == 5)))
    until(lambda: post.heard and post.heard[-1][1].seq == count - 1)
    heard = [p.seq for _, p in post.heard]
    assert heard == sorted(heard)
    assert set(range(0, count, 5)) <= set(heard)
    assert len(heard) < count


def test_the_last_word_on_an_older_plan_is_heard_before_the_new_plan(
    post: Post, until: Until
) -> None:
    dealer = post.introduced()
    for seq, plan in enumerate([1, 1, 2, 2], 2):
        dealer.send(WIRE.encode(replace(TOLD, seq=seq, plan=plan)))
    until(lambda: post.heard[-1][1].seq == 5)
    assert {3, 5} <= {p.seq for _, p in post.heard}


GARBAGE = {
    "bytes": [b"\xff\x00garbage"],
    "nothing": [b""],
    "frames": [WIRE.encode(TOLD), b"more"],
    "a daemon's message": [WIRE.encode(Bye("x"))],
    "another's session": [WIRE.encode(replace(TOLD, session=7))],
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_is_counted_and_said_once_a_session(post: Post, until: Until, what: str) -> None:
    post.messages.admit(7, TOKEN)
    post.messages.admit(8, b"other")
    for dealer in (post.dealer(8, b"other"), post.dealer(8, b"other")):
        for _ in range(5):
            dealer.send_multipart(GARBAGE[what])
    until(lambda: post.messages.garbage == 10)
    assert post.log.count("ignored") == 1
    assert post.heard == []
    post.messages.send(7, pulse(1))  # a forger is no route
    other = post.dealer()
    other.send(WIRE.encode(TOLD))
    until(lambda: post.heard)
    assert received(post.dealers[0]) == []


class Peer:
    """A peer made of bytes: what no client of libzmq would say."""

    def __init__(self, post: Post) -> None:
        self.until = post.until
        self.raw = socket.socket(socket.AF_UNIX)
        self.raw.setblocking(False)
        self.raw.connect(post.path)
        self.buffer = b""

    def hear(self, size: int) -> bytes:
        """So many bytes; less if the other side has hung up."""
        ended = False

        def enough() -> bool:
            nonlocal ended
            try:
                data = self.raw.recv(size - len(self.buffer))
                self.buffer += data
                ended = not data
            except BlockingIOError:
                pass
            except OSError:
                ended = True
            return ended or len(self.buffer) == size

        self.until(enough)
        data, self.buffer = self.buffer, b""
        return data

    def command(self, name: bytes, body: bytes) -> None:
        words = bytes([len(name)]) + name + body
        self.raw.send(b"\x04" + bytes([len(words)]) + words)

    def answer(self) -> bytes:
        head = self.hear(2)
        return self.hear(head[1]) if len(head) == 2 else b""


def greeting(version: int, mechanism: bytes = b"PLAIN") -> bytes:
    signature = b"\xff" + bytes(8) + b"\x7f"
    if version < 3:
        # revision, DEALER, an empty routing id
        return signature + bytes([version - 1, 5]) + b"\0\0"
    return signature + bytes([3, 0]) + mechanism.ljust(20, b"\0") + bytes(32)


def property_of(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value


OLD = {
    "ZMTP 1.0": b"\x01\0" + b"\x04\0abc",
    "ZMTP 1.0 with a signature": greeting(1),
    "ZMTP 2.0": greeting(2),
    "no mechanism": greeting(3, b"NULL"),
    "another mechanism": greeting(3, b"CURVE"),
    "garbage": b"GET / HTTP/1.1\r\n\r\n" * 10,
}


@pytest.mark.parametrize("what", OLD)
def test_a_peer_that_cannot_authenticate_is_hung_up_on(post: Post, what: str) -> None:
    post.messages.admit(7, TOKEN)
    peer = Peer(post)
    with contextlib.suppress(BrokenPipeError):
        peer.raw.send(OLD[what])
        peer.raw.send(b"\0" * 20)
    assert len(peer.hear(1000)) < 1000
    peer.raw.close()
    assert post.messages.garbage == 0


REFUSED = {
    "a wrong token": (b"7", b"u" * 16, 1),
    "a part of the token": (b"7", TOKEN[:8], 1),
    "no token": (b"7", b"", 1),
    "an unknown session": (b"8", TOKEN, 0),
    "no session": (b"", TOKEN, 0),
    "a negative session": (b"-7", TOKEN, 0),
    "no number": ("\u0667".encode(), TOKEN, 0),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_peer_without_the_sessions_token_is_let_in_by_no_handshake(post: Post, what: str) -> None:
    name, token, counted = REFUSED[what]
    post.messages.admit(7, TOKEN)
    peer = Peer(post)
    peer.raw.send(greeting(3))
    assert len(peer.hear(64)) == 64
    peer.command(b"HELLO", bytes([len(name)]) + name + bytes([len(token)]) + token)
    assert b"WELCOME" not in peer.answer()
    peer.raw.close()
    assert post.messages.garbage == counted
    assert post.log.count("a wrong token") == counted


def test_a_session_that_has_ended_lets_nobody_in_any_more(post: Post, until: Until) -> None:
    post.messages.admit(7, TOKEN)
    post.messages.forget(7)
    dealer = post.dealer()
    with dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH) as monitor:
        until(lambda: monitor.poll(0))
        dealer.disable_monitor()


def test_a_peer_that_calls_itself_another_sessions_user_is_not_believed(
    post: Post, until: Until
) -> None:
    post.messages.admit(7, TOKEN)
    post.messages.admit(8, b"other")
    peer = Peer(post)
    peer.raw.send(greeting(3))
    assert len(peer.hear(64)) == 64
    peer.command(b"HELLO", b"\x018\x05other")
    assert peer.answer().startswith(b"\x07WELCOME")
    peer.command(
        b"INITIATE", property_of(b"Socket-Type", b"DEALER") + property_of(b"User-Id", b"7")
    )
    assert peer.answer().startswith(b"\x05READY")
    forged = WIRE.encode(TOLD)
    peer.raw.send(b"\0" + bytes([len(forged)]) + forged)
    until(lambda: post.messages.garbage)
    assert post.heard == []
    assert post.log.count("it names session 7") == 1
    peer.raw.close()


def test_more_handshakes_than_one_turn_takes_are_all_answered(
    post: Post, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECEIVES", 1)
    post.messages.admit(7, TOKEN)
    dealers = [post.dealer() for _ in range(30)]
    for dealer in dealers:
        dealer.send(WIRE.encode(replace(TOLD, ping=True)))
    until(lambda: len(post.heard) == len(dealers))


def test_a_message_over_the_limit_ends_its_peers_connection_alone(post: Post, until: Until) -> None:
    post.messages.admit(7, TOKEN)
    post.messages.admit(8, TOKEN)
    flood, dealer = post.dealer(8), post.dealer()
    flood.send(b"x" * (module.MAX_IN + 1))
    dealer.send(WIRE.encode(TOLD))
    until(lambda: post.heard)
    assert post.messages.garbage == 0


def test_messages_of_a_session_that_is_gone_are_passed_over(post: Post, until: Until) -> None:
    post.messages.admit(7, TOKEN)
    post.messages.admit(8, TOKEN)
    gone, dealer = post.dealer(), post.dealer(8)
    gone.send(WIRE.encode(TOLD))
    until(lambda: post.heard)
    post.messages.forget(7)
    gone.send(WIRE.encode(replace(TOLD, seq=2)))
    gone.send(b"garbage")
    dealer.send(WIRE.encode(replace(TOLD, session=8)))
    until(lambda: len(post.heard) == 2)
    assert [session for session, _ in post.heard] == [7, 8]
    assert post.messages.garbage == 0
    post.messages.forget(7)


def test_a_reader_that_does_not_read_fills_a_bounded_outbox_and_gets_it_in_order_when_it_does(
    post: Post, until: Until
) -> None:
    post.messages.admit(7, TOKEN)
    dealer = post.dealer(rcvhwm=1)
    dealer.send(WIRE.encode(TOLD))
    until(lambda: post.heard)
    detail = "x" * 100_000
    for seq in range(2000):
        post.messages.send(7, pulse(seq, detail))
    route = post.messages._routes[7]
    assert len(route.outbox) == module.MAX_OUT
    assert post.messages.waiting
    got: list[int] = []

    def more() -> list[int]:
        got.extend(message.seq for message in received(dealer) if isinstance(message, Pulse))
        return got

    until(lambda: more() and not post.messages.waiting)
    post.messages.send(7, pulse(9999))
    until(lambda: more()[-1] == 9999)
    assert got[:-1] == list(range(len(got) - 1))  # the first ones, without a gap
    assert len(got) > module.MAX_OUT


def test_what_is_said_later_does_not_overtake_what_waits(post: Post, until: Until) -> None:
    post.messages.admit(7, TOKEN)
    dealer = post.dealer(rcvhwm=1)
    dealer.send(WIRE.encode(TOLD))
    until(lambda: post.heard)
    detail, said = "x" * 100_000, 0
    while not post.messages.waiting:
        said += 1
        post.messages.send(7, pulse(said, detail))
    for _ in range(said - 1):  # its queue has room now, and the outbox has not been looked at since
        assert dealer.poll(int(DEADLINE_S * 1000))
        dealer.recv()
    post.messages.send(7, pulse(9999))
    got: list[int] = []

    def all_of_it() -> bool:
        got.extend(message.seq for message in received(dealer) if isinstance(message, Pulse))
        return len(got) == 2

    until(all_of_it)
    assert got == [said, 9999]


def test_what_waits_for_a_client_goes_with_its_socket(post: Post, until: Until) -> None:
    post.messages.admit(7, TOKEN)
    dealer = post.dealer(rcvhwm=1)
    dealer.send(WIRE.encode(TOLD))
    until(lambda: post.heard)
    while not post.messages.waiting:
        post.messages.send(7, pulse(1, "x" * 100_000))
    dealer.close()
    until(lambda: post.messages._routes[7].peer is None)
    until(lambda: not post.messages.waiting)


def test_what_waits_for_a_clients_old_socket_is_not_sent_to_its_new_one(
    post: Post, until: Until
) -> None:
    post.introduced(rcvhwm=1)
    detail = "x" * 100_000
    for seq in range(2000):
        post.messages.send(7, pulse(seq, detail))
    assert post.messages.waiting
    new = post.dealer()
    new.send(WIRE.encode(replace(TOLD, seq=2)))
    until(lambda: len(post.heard) == 2)
    until(lambda: not post.messages.waiting)
    post.messages.send(7, pulse(9999))
    until(lambda: new.poll(0))
    assert received(new) == [pulse(9999)]


def test_a_client_that_is_gone_empties_its_outbox_and_a_new_socket_takes_over(
    post: Post, until: Until
) -> None:
    dealer = post.introduced()
    dealer.close()

    def lost() -> bool:
        post.messages.send(7, pulse(1))
        return post.messages._routes[7].peer is None

    until(lost)
    assert not post.messages.waiting
    again = post.dealer()
    again.send(WIRE.encode(replace(TOLD, seq=2)))
    until(lambda: len(post.heard) == 2)
    post.messages.send(7, pulse(2))
    until(lambda: again.poll(0))
    assert received(again) == [pulse(2)]


def test_what_is_too_large_to_be_said_becomes_a_failure_and_no_silence(
    post: Post, until: Until
) -> None:
    dealer = post.introduced()
    post.messages.send(7, pulse(1, "x" * (5 << 20)))
    until(lambda: dealer.poll(0))
    (failure,) = received(dealer)
    assert isinstance(failure, Failure)
    assert "limit" in failure.text


def test_the_sockets_file_has_its_mode_and_a_stranger_is_kept_out_by_the_kernel(
    loop: Loop, tmp_path: Path, log: Lines, until: Until
) -> None:
    heard: list[int] = []
    messages = MessageRouter(
        loop,
        str(tmp_path / "z"),
        mode=0o666,
        uids=(os.geteuid() + 1,),
        on_progress=lambda session, _: heard.append(session),
        log=log,
    )
    assert os.stat(tmp_path / "z").st_mode & 0o777 == 0o666
    messages.admit(7, TOKEN)
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    monitor = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    dealer.connect(f"ipc://{tmp_path / 'z'}")
    dealer.plain_username, dealer.plain_password = b"7", TOKEN
    dealer.send(WIRE.encode(TOLD))
    until(lambda: monitor.poll(0))
    assert heard == []
    dealer.disable_monitor()
    context.destroy(linger=0)
    messages.close()


def test_an_idle_socket_makes_no_turns(post: Post, until: Until) -> None:
    post.introduced()
    post.loop.turn(0.02)
    post.loop.later(0.3, post.loop.stop)
    before = post.loop.turns
    post.loop.run()
    assert post.loop.turns - before <= 2


def test_a_session_that_ends_while_its_outbox_waits_leaves_nothing_to_send(
    post: Post, until: Until
) -> None:
    post.messages.admit(7, TOKEN)
    dealer = post.dealer(rcvhwm=1)
    dealer.send(WIRE.encode(TOLD))
    until(lambda: post.heard)
    for seq in range(2000):
        post.messages.send(7, pulse(seq, "x" * 100_000))
    assert post.messages.waiting
    post.messages.forget(7)
    assert not post.messages.waiting
    post.loop.turn(0)


@pytest.mark.parametrize("bound", [False, True])
def test_a_socket_that_was_set_aside_is_found_again_whether_another_was_bound_or_not(
    loop: Loop, post: Post, tmp_path: Path, log: Lines, bound: bool
) -> None:
    post.messages.set_aside()
    if bound:
        other = Post(loop, tmp_path, log, post.until)
        other.introduced()
        assert post.heard == []
        other.close()
    post.messages.take_back()
    assert os.listdir(tmp_path) == ["d.sock.zmq"]
    post.introduced()


def test_a_socket_that_is_set_aside_leaves_the_path_to_the_other(
    loop: Loop, tmp_path: Path, log: Lines, until: Until
) -> None:
    first = Post(loop, tmp_path, log, until)
    first.messages.set_aside()
    other = Post(loop, tmp_path, log, until)
    first.close()
    other.introduced()
    other.close()
    assert os.listdir(tmp_path) == []
