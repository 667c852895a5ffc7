from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from drivers.conftest import Lines
from loaderd.drivers import sockets as module
from loaderd.drivers.loop import Loop
from loaderd.drivers.sockets import Messages
from loaderd_wire.codec import WIRE
from loaderd_wire.messages import Bye, Failure, Progress, Pulse

Until = Callable[[Callable[[], object]], None]
TOKEN = b"t" * 16
TOLD = Progress(7, TOKEN, 1, 1, 0, 0, 0, 0, 0, False, False, False, ())


class Post:
    """The daemon's socket and, in the same thread, clients of it."""

    def __init__(self, loop: Loop, path: Path, log: Lines) -> None:
        self.path = str(path / "d.sock.zmq")
        self.heard: list[tuple[int, Progress]] = []
        self.messages = Messages(
            loop, self.path, mode=0o600, uids=(os.geteuid(),), on_progress=lambda session, p: self.heard.append((session, p)), log=log
        )
        self.loop, self.log = loop, log
        self.context = zmq.Context()
        self.dealers: list[zmq.Socket[bytes]] = []

    def dealer(self, **options: int) -> zmq.Socket[bytes]:
        made = self.context.socket(zmq.DEALER)
        made.linger = 0
        for name, value in options.items():
            setattr(made, name, value)
        made.connect(f"ipc://{self.path}")
        self.dealers.append(made)
        return made

    def close(self) -> None:
        self.messages.close()
        self.context.destroy(linger=0)


@pytest.fixture
def post(loop: Loop, tmp_path: Path, log: Lines) -> Iterator[Post]:
    made = Post(loop, tmp_path, log)
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
    post.messages.admit(7, TOKEN)
    dealer = post.dealer()
    dealer.send(WIRE.encode(TOLD))
    until(lambda: post.heard)
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


def test_of_many_messages_the_last_and_each_that_asks_are_heard_in_order(post: Post, until: Until) -> None:
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


def test_the_last_word_on_an_older_plan_is_heard_before_the_new_plan(post: Post, until: Until) -> None:
    post.messages.admit(7, TOKEN)
    dealer = post.dealer()
    dealer.send(WIRE.encode(TOLD))
    until(lambda: post.heard)
    for seq, plan in enumerate([1, 1, 2, 2], 2):
        dealer.send(WIRE.encode(replace(TOLD, seq=seq, plan=plan)))
    until(lambda: post.heard[-1][1].seq == 5)
    assert {3, 5} <= {p.seq for _, p in post.heard}


GARBAGE = {
    "bytes": [b"\xff\x00garbage"],
    "nothing": [b""],
    "frames": [WIRE.encode(TOLD), b"more"],
    "a daemon's message": [WIRE.encode(Bye("x"))],
    "a wrong token": [WIRE.encode(replace(TOLD, token=b"u" * 16))],
    "a short token": [WIRE.encode(replace(TOLD, token=b""))],
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_is_counted_and_said_once_a_peer(post: Post, until: Until, what: str) -> None:
    post.messages.admit(7, TOKEN)
    dealer, other = post.dealer(), post.dealer()
    for _ in range(5):
        dealer.send_multipart(GARBAGE[what])
    until(lambda: post.messages.garbage == 5)
    assert post.log.count("ignored") == 1
    post.messages.send(7, pulse(1))  # a forger is no route
    other.send(WIRE.encode(TOLD))
    until(lambda: post.heard)
    assert received(dealer) == []


def test_a_message_over_the_limit_ends_its_peers_connection_alone(post: Post, until: Until) -> None:
    post.messages.admit(7, TOKEN)
    flood, dealer = post.dealer(), post.dealer()
    flood.send(b"x" * (module.MAX_IN + 1))
    dealer.send(WIRE.encode(TOLD))
    until(lambda: post.heard)
    assert post.messages.garbage == 0


def test_messages_of_a_session_that_is_gone_are_passed_over(post: Post, until: Until) -> None:
    post.messages.admit(7, TOKEN)
    post.messages.admit(8, TOKEN)
    post.messages.forget(7)
    dealer = post.dealer()
    dealer.send(WIRE.encode(TOLD))
    dealer.send(WIRE.encode(replace(TOLD, session=8)))
    until(lambda: post.heard)
    assert [session for session, _ in post.heard] == [8]
    assert post.messages.garbage == 0
    post.messages.forget(7)


def test_a_reader_that_does_not_read_fills_a_bounded_outbox_and_gets_it_in_order_when_it_does(post: Post, until: Until) -> None:
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


def test_a_client_that_is_gone_empties_its_outbox_and_a_new_socket_takes_over(post: Post, until: Until) -> None:
    post.messages.admit(7, TOKEN)
    dealer = post.dealer()
    dealer.send(WIRE.encode(TOLD))
    until(lambda: post.heard)
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


def test_what_is_too_large_to_be_said_becomes_a_failure_and_no_silence(post: Post, until: Until) -> None:
    post.messages.admit(7, TOKEN)
    dealer = post.dealer()
    dealer.send(WIRE.encode(TOLD))
    until(lambda: post.heard)
    post.messages.send(7, pulse(1, "x" * (5 << 20)))
    until(lambda: dealer.poll(0))
    (failure,) = received(dealer)
    assert isinstance(failure, Failure)
    assert "limit" in failure.text


def test_the_sockets_file_has_its_mode_and_a_stranger_is_kept_out_by_the_kernel(
    loop: Loop, tmp_path: Path, log: Lines, until: Until
) -> None:
    heard: list[int] = []
    messages = Messages(
        loop, str(tmp_path / "z"), mode=0o666, uids=(os.geteuid() + 1,), on_progress=lambda session, _: heard.append(session), log=log
    )
    assert os.stat(tmp_path / "z").st_mode & 0o777 == 0o666
    messages.admit(7, TOKEN)
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    monitor = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    dealer.connect(f"ipc://{tmp_path / 'z'}")
    dealer.send(WIRE.encode(TOLD))
    until(lambda: monitor.poll(0))
    assert heard == []
    dealer.disable_monitor()
    context.destroy(linger=0)
    messages.close()


def test_an_idle_socket_makes_no_turns(post: Post, until: Until) -> None:
    post.messages.admit(7, TOKEN)
    dealer = post.dealer()
    dealer.send(WIRE.encode(TOLD))
    until(lambda: post.heard)
    post.loop.turn(0.02)
    post.loop.later(0.3, post.loop.stop)
    before = post.loop.turns
    post.loop.run()
    assert post.loop.turns - before <= 2
