"""The way to a session: what is done while a daemon is waited for."""

from __future__ import annotations

import array
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from loaderd_client import DaemonGoneError, RefusedError
from loaderd_client.closing import Closing
from loaderd_client.endpoint import Endpoint
from loaderd_client.handshake import Handshake
from loaderd_client.wait import WaitLimits
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_wire import messages as m
from loaderd_wire.codec import frame, unframe

HELLO = m.Hello(m.PROTOCOL, "train", None, None, None, 0, 1, 4, None, 0, {}, {}, "")
NOT_YOU = m.Rejected("RefusedError", "not you")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "d.sock")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Not bound to any path yet."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.settimeout(DEADLINE_S)
        yield made


def handshake(
    path: str,
    meanwhile: Callable[[], object],
    *,
    reconnect_s: float = 10,
    closing: Closing | None = None,
    lost: str = "",
    hello: m.Hello = HELLO,
) -> Handshake:
    return Handshake(
        Endpoint(path, ""),
        WaitLimits(30, reconnect_s, 20),
        lambda: hello,
        lost,
        meanwhile,
        closing or Closing(),
    )


@contextmanager
def admitting(listener: socket.socket) -> Iterator[socket.socket]:
    """Whoever's hello has come, or must come now."""
    peer, _ = listener.accept()
    with peer:
        assert heard(peer) == HELLO
        yield peer


def heard(peer: socket.socket) -> object:
    """What somebody says first."""
    peer.settimeout(DEADLINE_S)
    buffer = bytearray()
    while (message := unframe(buffer)) is None:
        buffer += peer.recv(1 << 16)
    return message


def refuse(listener: socket.socket) -> None:
    with admitting(listener) as peer:
        peer.sendall(frame(NOT_YOU))


def test_what_needs_no_daemon_is_done_while_the_hello_is_answered(
    path: str, listener: socket.socket
) -> None:
    listener.bind(path)
    listener.listen()
    with pytest.raises(RefusedError, match="not you"):
        handshake(path, lambda: refuse(listener)).run()


@pytest.mark.parametrize(
    "answers",
    [
        (None, NOT_YOU),  # an earlier daemon: it hangs up on fields that it does not know
        (None, m.Report("{}"), NOT_YOU),  # one of this version that had just left
    ],
)
def test_a_daemon_that_hangs_up_on_a_hello_that_asks_to_share_is_asked_for_its_version(
    path: str, listener: socket.socket, answers: tuple[m.Report | m.Rejected | None, ...]
) -> None:
    listener.bind(path)
    listener.listen()
    sharing, version = replace(HELLO, shared="yes"), m.Ask(m.PROTOCOL, "status")
    said: list[object] = []

    def answer() -> None:
        if not select.select([listener], [], [], 0)[0]:
            return
        peer, _ = listener.accept()
        with peer:
            said.append(heard(peer))
            answer = answers[len(said) - 1]
            if answer is not None:
                peer.sendall(frame(answer))

    with pytest.raises(RefusedError, match="not you"):
        handshake(path, answer, hello=sharing).run()
    assert said == [sharing, version, sharing][: len(answers)]


def test_what_needs_no_daemon_is_done_while_there_is_none(
    path: str, listener: socket.socket
) -> None:
    calls: list[str] = []

    def meanwhile() -> None:
        calls.append("called")
        if len(calls) == 1:
            listener.bind(path)
            listener.listen()
        else:
            refuse(listener)

    with pytest.raises(RefusedError, match="not you"):
        handshake(path, meanwhile).run()


def test_the_time_that_it_takes_is_no_waiting(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import may take longer than a daemon may be away."""
    now_s, spent = 0.0, 0

    def meanwhile() -> None:
        nonlocal now_s, spent
        if spent < 5:
            now_s, spent = now_s + 1, spent + 1
        else:
            now_s += 0.125

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now_s

    class Naps(Closing):
        def sleep(self, seconds: float) -> None:
            nonlocal now_s
            now_s += seconds

    monkeypatch.setattr("loaderd_client.handshake_wait.time", Clock)
    with pytest.raises(DaemonGoneError, match="waited 1 s: no daemon is at"):
        handshake(path, meanwhile, reconnect_s=1, closing=Naps()).run()
    assert spent == 5


def test_a_daemon_that_starts_is_waited_for_from_its_last_word_on(
    path: str, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start may take longer than a daemon may be away, and after it there is all of that time
    for a successor.
    """
    now_s, step_s = 0.0, 0.0
    answers: list[socket.socket] = []
    calls: list[int] = []

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now_s

    class Turns(Closing):
        @property
        def done(self) -> bool:
            nonlocal now_s
            now_s += step_s
            return False

        @done.setter
        def done(self, value: bool) -> None: ...

        def sleep(self, seconds: float) -> None: ...

    def meanwhile() -> None:
        nonlocal step_s
        calls.append(1)
        if len(calls) == 1:
            answers.append(listener.accept()[0])
        elif (
            len(calls) == 4
        ):  # while it says that it starts, five times as long passes as a daemon may be away
            step_s = 0.0
        elif len(calls) == 5:
            answers.pop().close()
            listener.close()
            os.unlink(path)
            return
        elif len(calls) == 6:
            successor.bind(path)
            successor.listen()
            return
        elif len(calls) == 7:
            refuse(successor)
            return
        if len(calls) < 4:
            step_s = 1.7
        answers[0].sendall(frame(m.Starting("importing")))

    monkeypatch.setattr("loaderd_client.handshake_wait.time", Clock)
    listener.bind(path)
    listener.listen()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as successor:
        successor.settimeout(DEADLINE_S)
        waiting = handshake(path, meanwhile, reconnect_s=1, closing=Turns())
        with pytest.raises(RefusedError, match="not you"):
            waiting.run()


def test_what_comes_right_behind_a_welcome_is_not_lost(path: str, listener: socket.socket) -> None:
    listener.bind(path)
    listener.listen()
    segment = m.Segment(0, 6, 4096, 64, 0)
    welcome = m.Welcome(
        1,
        b"t" * 16,
        "d",
        9,
        1,
        0,
        False,
        (),
        "dict",
        False,
        "index",
        segment,
        {},
        {},
        (),
        "raise",
        0.0,
        "skip",
    )
    larger = replace(segment, segment=1)

    def answer() -> None:
        with admitting(listener) as peer, open(os.devnull) as memory:
            peer.sendmsg(
                [frame(welcome) + frame(larger)],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory.fileno()]))],
            )

    shaking = handshake(path, lambda: None)
    thread = threading.Thread(target=answer)
    thread.start()
    shaking.run()
    thread.join()
    admitted = shaking.take()
    assert admitted.welcome == welcome
    assert admitted.control.receive() == [larger]
    admitted.close()
