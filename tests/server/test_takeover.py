"""A daemon follows another on its socket: trainers go on, and one of the two serves, whoever dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from loaderd.cli.control_client import ControlConnection
from loaderd.cli.exit_codes import CommandError
from loaderd.server.handover_offer import HandoverOffer
from loaderd.server.start_options import EXIT_DRAINED, EXIT_NO_START
from loaderd_client import Loader
from loaderd_testing import daemon_process
from loaderd_testing.deadlines import DEADLINE_S, until
from loaderd_wire import codec
from loaderd_wire.messages import OLDEST, Ask

Start = Callable[..., "Served"]
SEGMENT = 6 * 12288  # bytes of a trainer's


class Served:
    """A daemon with a made-up pool. All of one test have the same socket."""

    def __init__(self, folder: Path, number: int, streams: tuple[str, ...], given: Any) -> None:
        socket = str(folder / "d.sock")
        settings = {
            "socket": socket,
            "quarantine": socket + ".bad.jsonl",
            "num_workers": 1,
            "streams": streams or ("train",),
            **given,
        }
        self.socket = socket
        self.log = folder / f"log{number}"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, daemon_process.__file__, json.dumps(settings)],
                stdin=subprocess.PIPE,
                stderr=log,
            )

    def text(self) -> str:
        return self.log.read_text()

    def wait(self, part: str) -> Served:
        until(f"{part!r}", lambda: part in self.text() or self.process.poll() is not None)
        assert part in self.text(), self.text()
        return self

    def opens(self) -> None:
        """Its streams that are late."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def ended(self) -> int:
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def serving(folder: Path) -> int:
    """Pid of the daemon that answers at the socket; 0 if none does."""
    try:
        with ControlConnection(str(folder / "d.sock"), "status") as line:
            for message in line.messages():
                status = json.loads(message.body)
                return int(status["pid"]) if status["state"] == "ready" else 0
    except CommandError:
        pass
    return 0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Served] = []

    def begin(*streams: str, **given: Any) -> Served:
        made.append(Served(tmp_path, len(made), streams, given))
        return made[-1]

    yield begin
    for daemon in made:
        daemon.close()
        print(f"pid {daemon.process.pid}:\n{daemon.text()}")


@pytest.fixture
def batches(tmp_path: Path) -> Iterator[Iterator[Any]]:
    """Of a trainer, which begins when it is first asked."""
    with Loader(str(tmp_path / "d.sock"), stream="train", output="numpy") as loader:

        def forever() -> Iterator[Any]:
            while True:
                yield from loader

        yield forever()


def test_a_trainer_goes_on_with_the_successor_and_the_old_daemon_leaves(
    start: Start, batches: Iterator[Any], tmp_path: Path
) -> None:
    old = start().wait("ready: ")
    steps = [next(batches).step for _ in range(3)]
    new = start(takeover=True).wait("the daemon before has left")
    assert old.ended() == EXIT_DRAINED
    steps += [next(batches).step for _ in range(20)]
    assert steps == [step % 13 for step in range(23)]
    assert serving(tmp_path) == new.process.pid
    assert (tmp_path / "d.sock.lock").read_text() == f"{new.process.pid}\n"
    third = start(takeover=True).wait("the daemon before has left")
    assert new.ended() == EXIT_DRAINED
    third.process.send_signal(signal.SIGTERM)
    assert third.ended() == EXIT_DRAINED
    assert [path.name for path in tmp_path.iterdir() if "sock" in path.name] == []


OLD, NEW = "loaderd.server.handover", "loaderd.server.takeover"
SHARED = "loaderd.server.served_socket.ServedSocket"
STEPS = [
    f"{when} {step}"
    for step in (
        f"{OLD}.Handover.asked",
        f"{OLD}.Handover._taken",
        f"{SHARED}.hand_over",
        f"{OLD}.HandedOver._leave",
        f"{NEW}.TakingOver._attempt",
        f"{NEW}.TakingOver._consider",
        f"{SHARED}.adopt",
        "loaderd.system.zmq_router.MessageRouter.bind",
        "loaderd.system.predecessor.Predecessor.say",
    )
    for when in ("before", "after")
]


@pytest.mark.parametrize("dies", STEPS)
def test_one_of_the_two_serves_whoever_is_killed_at_whichever_step(
    start: Start, batches: Iterator[Any], tmp_path: Path, dies: str
) -> None:
    of_the_new = not dies.split()[1].startswith((OLD, f"{SHARED}.hand_over"))
    # it would be too late for a successor on a slow machine
    stay = {"stay_s": DEADLINE_S} if of_the_new else {"dies": dies}
    old = start(**stay).wait("ready: ")
    steps = [next(batches).step for _ in range(3)]
    new = start(takeover=True, **({"dies": dies} if of_the_new else {}))
    dead, lives = (new, old) if of_the_new else (old, new)
    assert dead.ended() == -signal.SIGKILL
    until("it serves", lambda: serving(tmp_path) == lives.process.pid)
    lock = tmp_path / "d.sock.lock"
    until("its number in the lock", lambda: lock.read_text() == f"{lives.process.pid}\n")
    steps += [next(batches).step for _ in range(10)]
    assert steps == [step % 13 for step in range(13)]
    lives.process.send_signal(signal.SIGTERM)
    assert lives.ended() == EXIT_DRAINED
    assert [path.name for path in tmp_path.iterdir() if "sock" in path.name] == []


def test_a_changed_config_is_refused_by_its_field_and_the_old_daemon_serves_on(
    start: Start, batches: Iterator[Any], tmp_path: Path
) -> None:
    old = start().wait("ready: ")
    steps = [next(batches).step for _ in range(3)]
    new = start(takeover=True, seed=8)
    assert new.ended() == EXIT_NO_START
    assert "cannot take over: stream 'train' has changed: seed was 7, is 8" in new.text()
    assert serving(tmp_path) == old.process.pid
    steps += [next(batches).step for _ in range(10)]
    assert steps == list(range(13))
    assert "ended" not in old.text()


def test_a_config_with_less_memory_than_its_trainers_have_is_refused(
    start: Start, batches: Iterator[Any], tmp_path: Path
) -> None:
    old = start().wait("ready: ")
    next(batches)
    new = start(takeover=True, memory=SEGMENT - 1)
    assert new.ended() == EXIT_NO_START
    assert f"cannot take over: [daemon] memory = {SEGMENT - 1} is less than the " in new.text()
    assert serving(tmp_path) == old.process.pid
    assert [next(batches).step for _ in range(12)] == list(range(1, 13))


@pytest.mark.parametrize(
    ("streams", "given", "why"),
    [
        ((), {"embedded": True}, "a Loader has started the daemon there"),
        (("late",), {}, "the daemon there is still starting"),
        ((), {"replay": True}, "`loaderd bench --replay` runs there"),
    ],
)
def test_a_daemon_that_cannot_hand_over_says_why(
    start: Start, streams: tuple[str, ...], given: Any, why: str
) -> None:
    old = start(*streams, **given)
    until("its socket", Path(old.socket).exists)
    new = start(takeover=True, **({"patience_s": 2.0} if streams else {}))
    assert new.ended() == EXIT_NO_START
    assert f"cannot take over: {why}" in new.text()
    assert old.process.poll() is None


def test_who_finds_no_daemon_serves_as_ever(start: Start, tmp_path: Path) -> None:
    new = start(takeover=True).wait("ready: ")
    assert serving(tmp_path) == new.process.pid


def test_of_two_that_start_at_once_to_take_over_the_second_waits_for_the_first(
    start: Start, tmp_path: Path
) -> None:
    first = start("late", takeover=True)
    until("its socket", Path(first.socket).exists)
    second = start("late", takeover=True)
    second.opens()
    second.wait("the daemon there is still starting: this one waits for it")
    first.opens()
    second.wait("the daemon before has left")
    assert first.ended() == EXIT_DRAINED
    assert serving(tmp_path) == second.process.pid


def test_a_successor_that_says_something_else_than_that_it_serves_takes_nothing_over(
    start: Start, tmp_path: Path
) -> None:
    old = start().wait("ready: ")
    with socket.socket(socket.AF_UNIX) as successor:
        successor.connect(old.socket)
        successor.sendall(codec.frame(Ask(OLDEST, "takeover")))
        _, fds, _, _ = socket.recv_fds(successor, 1 << 16, 2)
        assert len(fds) == 2
        for fd in fds:
            os.close(fd)
        successor.sendall(codec.frame(Ask(OLDEST, "takeover")))
        old.wait("the successor has gone: serving on")
    assert "handed over" not in old.text()
    assert serving(tmp_path) == old.process.pid


def test_a_trainer_without_room_beside_the_old_segments_waits_until_they_are_gone(
    start: Start, batches: Iterator[Any]
) -> None:
    old = start(memory=SEGMENT * 3 // 2).wait("ready: ")
    next(batches)
    new = start(takeover=True, memory=SEGMENT * 3 // 2).wait("takes over")
    assert [next(batches).step for _ in range(12)] == list(range(1, 13))
    assert old.ended() == EXIT_DRAINED
    assert 0 < new.text().index("event=follows") < new.text().index("event=session_began")


OFFER = HandoverOffer(7, 100, 50, {}, ["/a.toml"], [3])


@pytest.mark.parametrize(
    ("offer", "why"),
    [
        (OFFER, ""),
        (replace(OFFER, configs=["/b.toml"]), "a trainer was given /b.toml, and this daemon serves /a.toml"),
        (replace(OFFER, protocols=[2, 9]), "a trainer speaks protocol 9, and this daemon 2 to 4"),
        (replace(OFFER, streams={"val": {}}), "the config has no stream 'val' any longer"),
        (replace(OFFER, segments=51), "[daemon] memory = 50 is less than the 51 bytes that its trainers' batches take"),
    ],
)  # fmt: skip
def test_what_trainers_could_not_go_on_with_is_named(offer: HandoverOffer, why: str) -> None:
    assert offer.refusal({}, "/a.toml", 50) == why


def test_an_offer_of_a_later_version_is_read() -> None:
    assert HandoverOffer.from_json(json.dumps({**asdict(OFFER), "more": 1})) == OFFER
    for text in ("[]", "{}", "null"):
        with pytest.raises(ValueError, match="is no offer"):
            HandoverOffer.from_json(text)
