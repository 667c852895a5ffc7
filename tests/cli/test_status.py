"""`loaderd status` and `loaderd drain`: exit codes against real daemons and against things that
only look like one.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loaderd.cli.control_client import ControlConnection
from loaderd.cli.status import WHOLE, fetch, lines
from loaderd.core.snapshot import GroupSnapshot, SessionSnapshot, StreamSnapshot, WorkerSnapshot
from loaderd.core.verdict import Verdict
from loaderd.engine.base import ForkServerStatus, ProcessStatus
from loaderd.server.status_report import (
    DaemonStatus,
    MemoryStatus,
    OpenedStatus,
    PoolStatus,
    QuarantineStatus,
    SessionStatus,
    StreamStatus,
    WorkerStatus,
)
from loaderd_client import Loader, StreamFailedError
from loaderd_testing.cli_harness import DEADLINE_S, Place, until
from loaderd_wire import codec
from loaderd_wire.messages import Report, Starting
from server.test_status_report import STATUS as FULL


def test_a_running_daemon_is_shown_and_drained(place: Place) -> None:
    daemon = place.serve(place.config())
    with Loader(str(place.folder / "config.toml"), stream="train", output="numpy") as loader:
        batches = iter(loader)
        next(batches)
        text = place.cli("status", "config.toml").stdout
        assert f"ready  pid {daemon.pid}" in text
        assert "train  40 samples  batch 8" in text
        assert "x uint8[4,4]  y int64  t text" in text
        assert "train  rank 0/1" in text
        assert "epoch 0 step 1" in text
        picture = place.status("config.toml")
        assert (picture["state"], picture["pid"], len(picture["sessions"])) == (
            "ready",
            daemon.pid,
            1,
        )
        assert all(worker["pid"] for worker in picture["workers"])
        number = picture["workers"][0]["worker"]
        with ControlConnection(picture["socket"], f"stack {number}") as line:
            assert [message.body for message in line.messages()] == ["{}"]
        until(
            "the stack of a worker",
            lambda: "File " in fetch(picture["socket"]).workers[0].work.stack,
        )
    done = place.cli("drain", "config.toml")
    assert "is gone" in done.stderr
    assert daemon.wait(DEADLINE_S) == 0
    assert "no daemon is running at" in place.cli("status", "config.toml", code=3).stderr


def test_a_stream_that_is_read_from_a_copy_says_so(place: Place) -> None:
    place.pack(place.images(), "db")
    (place.folder / "local").mkdir()
    (place.folder / "c.toml").write_text(
        "[daemon]\nstage = 'local'\n[streams.photos]\nlmdb = 'db'\nbatch_size = 2"
    )
    place.serve("c.toml")
    found = place.status("c.toml")
    copies = found["streams"]["photos"]["copies"]
    assert list(copies) == [f"{place.folder}/db"]
    (copy,) = copies.values()
    assert copy.startswith(f"{place.folder}/local/")
    told = f"{place.folder}/db\n          read from its staged copy {copy}\n"
    assert told in "\n".join(lines(fetch(found["socket"]), WHOLE, False))
    (line,) = [line for line in place.log("c.toml").splitlines() if "event=stream_opened" in line]
    assert f", read from its staged copy {copy} event" in line


def test_a_socket_names_the_daemon_as_well_as_its_config(place: Place) -> None:
    place.serve(place.config())
    path = place.status("config.toml")["socket"]
    assert place.status(path)["config"] == f"{place.folder}/config.toml"


def test_a_daemon_that_serves_another_config_there_is_not_taken_for_that_of_this_one(
    place: Place,
) -> None:
    for name in ("one.toml", "two.toml"):
        place.config(name)
        config = place.folder / name
        config.write_text("[daemon]\nsocket = 'd.sock'\n" + config.read_text())
    (place.folder / "link.toml").symlink_to("one.toml")
    daemon = place.serve("one.toml")
    for command in (["status"], ["status", "--json"], ["status", "--alive"], ["top"], ["drain"]):
        said = place.cli(*command, "two.toml", code=2).stderr
        names = [f"{place.folder}/{name}" for name in ("d.sock", "one.toml", "two.toml")]
        assert "the daemon at {} serves {}, not {}".format(*names) in said
    assert daemon.poll() is None
    assert place.status("link.toml")["config"] == f"{place.folder}/one.toml"
    (place.folder / "one.toml").rename(place.folder / "gone")  # as a ConfigMap's that is changed
    assert place.status("two.toml")["config"] == f"{place.folder}/one.toml"
    assert "is gone" in place.cli("drain", "two.toml").stderr


def test_without_an_argument_the_only_live_daemon_is_meant(place: Place) -> None:
    assert "no daemon of this user" in place.cli("status", code=3).stderr
    first = place.serve(place.config("one.toml"))
    assert f"pid {first.pid}" in place.cli("status").stdout
    place.serve(place.config("two.toml"))
    said = place.cli("status", code=2).stderr
    assert "several daemons" in said
    assert "/one-" in said
    assert "/two-" in said
    first.kill()
    first.wait(DEADLINE_S)
    assert "is gone" in place.cli("drain").stderr


def test_a_daemon_that_still_starts_is_alive_but_not_ready(place: Place, run_base: Path) -> None:
    place.serve(place.config(args="gate = 'open'"), ready=False)
    starting = until("the socket", lambda: next(iter((run_base / "loaderd").glob("*.sock")), None))
    assert "starting" in place.cli("status", str(starting), code=3).stdout
    assert "starting" in place.cli("status", str(starting), "--alive").stdout
    (place.folder / "open").touch()
    until("the ready line", lambda: "ready: " in place.log("config.toml"))
    place.cli("status", str(starting))


def test_a_daemon_whose_streams_have_all_failed_is_4(place: Place) -> None:
    place.serve(
        place.config(
            args="crash = [8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23]",
            workers="num_workers = 2",  # one alone waits 40 s in all before it is started again
        )
    )
    with (
        Loader(
            str(place.folder / "config.toml"), stream="train", output="numpy", batch_size=40
        ) as loader,
        pytest.raises(StreamFailedError),
    ):
        next(iter(loader))
    assert "failed" in place.cli("status", "config.toml", code=4).stdout
    place.cli("status", "config.toml", "--alive", code=4)
    shown = json.loads(place.cli("status", "config.toml", "--json", code=4).stdout)
    assert shown["status_version"] == 1
    assert shown["restarts"]["crash"] > 0
    told = {event["event"]: event for event in shown["events"]}
    began = ["banner", "stream_opened", "session_began", "worker_ended"]
    assert list(told)[:4] == began
    assert "has ended: SIGSEGV" in told["worker_ended"]["text"]
    assert told["stream_failed"]["level"] == "error"


@contextmanager
def pretender(path: Path, talk: Callable[[socket.socket], None]) -> Iterator[None]:
    """Somebody who listens on `path` and does `talk` with the first who comes."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            with listener.accept()[0] as peer:
                talk(peer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join(DEADLINE_S)


def silence(peer: socket.socket) -> None:
    while peer.recv(1 << 16):
        pass


def answer(data: bytes) -> Callable[[socket.socket], None]:
    def talk(peer: socket.socket) -> None:
        peer.recv(1 << 16)
        peer.sendall(data)

    return talk


def report(**given: Any) -> bytes:
    return codec.frame(Report(DaemonStatus(**given).to_json()))


@pytest.mark.parametrize(
    ("talk", "code", "said"),
    [
        (silence, 4, "has not answered for 5 s"),
        (answer(b"HTTP/1.1 400 Bad Request\r\n\r\n"), 4, "not a loaderd of this version"),
        (answer(b""), 3, "is shutting down"),
        (answer(codec.frame(Starting("opening stream 'x'"))), 3, ""),
        (answer(report(state="ready", failed=True)), 4, ""),
        (answer(report(state="draining")), 0, ""),
        (
            answer(codec.frame(Report("[]"))),
            4,
            "not a loaderd of this version: status: expected an object, not list",
        ),
    ],
)
def test_each_answer_has_its_exit_code(
    place: Place, talk: Callable[[socket.socket], Any], code: int, said: str
) -> None:
    with pretender(place.folder / "p.sock", talk):
        assert said in place.cli("status", "p.sock", code=code).stderr


@pytest.mark.parametrize(
    ("target", "code", "said"),
    [
        ("none.sock", 3, "no daemon is running at"),
        ("none.toml", 2, "No such file"),
        ("mine.py", 2, "not TOML"),
        (".", 2, "is a folder"),
    ],
)
def test_a_target_that_is_none_is_told(place: Place, target: str, code: int, said: str) -> None:
    assert said in place.cli("status", target, code=code).stderr


def test_the_socket_is_found_although_the_rest_of_the_config_is_faulty(place: Place) -> None:
    (place.folder / "c.toml").write_text(
        "[daemon]\nsocket = 'd.sock'\n[streams.train]\nlmdb = '${NOWHERE}/x'\nbatch = 3\n"
    )
    assert f"{place.folder}/d.sock" in place.cli("status", "c.toml", code=3).stderr


STATUS = DaemonStatus(
    state="ready",
    pid=7,
    version="1",
    native={"_crop": True, "_jpeg": False},
    socket="/s",
    config="/c",
    memory=MemoryStatus(1 << 30, 1 << 28),
    verdict=Verdict("read-bound", "read-bound: the trainer waits 60% of the time; set num_workers = 5"),
    streams={
        "train": StreamStatus(
            "/d", 8, True, "", OpenedStatus(1000, 1000, "loaderd", ()), StreamSnapshot("raise", (5, 6), 0.01, {}, 2, "SIGKILL")
        ),
        "val": StreamStatus("/d", 8, True, "StreamFailedError: too many\nlines", OpenedStatus(10, 10, "loaderd", ())),
        "test": StreamStatus("/d", 8, False, ""),
    },
    sessions=(
        SessionStatus(
            5, "train", 0, 99, 1, 2, 8, 4, 100, True,
            SessionSnapshot(
                5, 1, 0, 0, 0, True, 3, 32, 4,
                {"free": 1, "ready": 1, "announced": 1, "leased": 2, "filling": 1, "ending": 0}, (1,), "row 3 at worker 1",
                Verdict("read-bound", "read-bound: it waits", 0.6, need_workers=5.0, workers=2),
            ),
        ),
        SessionStatus(6, "train", 0, 0, 0, 2, 8, 4, 100, False),
        *[
            SessionStatus(
                session, "train", 0, 0, 0, 1, 8, 4, 100, True,
                SessionSnapshot(session, 1, 0, 0, 0, False, 0, 0, 9, {"free": 14}, (2,), "", group=7, lag=lag),
            )
            for session, lag in ((8, 0), (9, 3))
        ],
    ),
    groups=(GroupSnapshot(7, "train", (8, 9), 8, 30, 1055, 250, {"free": 13, "filling": 1}, (2,)),),
    workers=(
        WorkerStatus(
            WorkerSnapshot(1, "up", (4,), "train", 3, "decode", "cat\n.png", 3.21, "", ""), ProcessStatus("worker 1", 12, "ready", 0, 0)
        ),
        WorkerStatus(WorkerSnapshot(2, "starting", (), None, None, None, "", 0.0, "", "")),
        *[WorkerStatus(WorkerSnapshot(n, "up", (), None, None, None, "", 0.0, "", "")) for n in range(3, 30)],
    ),
    pool=PoolStatus(ForkServerStatus(11, True, True), ()),
    quarantine=QuarantineStatus(
        "/q",
        9,
        (
            {
                "time": 0.0, "stream": "train", "epoch": 1, "key": "k", "index": 3,
                "stage": "decode", "error": "ValueError", "message": "x\ny",
            },
        ),
    ),
    errors=("one\ntwo",),
)  # fmt: skip


def test_the_lines_tell_who_waits_for_what() -> None:
    text = "\n".join(lines(STATUS, 200, False))
    for said in (
        "loaderd 1  ready  pid 7  /s",
        "native   native parts missing: _jpeg",
        "fork server pid 11 is stopped by a signal (T)",
        "███████░░",
        "256 MiB of 1.0 GiB shared",
        "verdict  read-bound: the trainer waits 60% of the time; set num_workers = 5\n",
        "1,000 samples  batch 8  100 samples/s per worker",
        "2 workers died, the last cause: SIGKILL",
        "FAILED: StreamFailedError: too many",
        "test   not opened",
        "5  train  rank 1/2  pid 99  epoch 3 step 4  ▣▣■◧▨□  2 leased, 1 announced, 1 ready, 1 filling, 1 free",
        "    read-bound, waits 60% of the time, needs 5.0 workers\n",
        "waits for: row 3 at worker 1",
        "has not asked for a batch yet",
        "8  train  rank 0/1  pid ?  epoch 0 step 9  group 7\n",
        "9  train  rank 0/1  pid ?  epoch 0 step 9  group 7, 3 steps behind\n",
        "GROUPS\n  7  train  2 sessions  batches: 30 made, 1,055 announced, hit rate 24%  ▨□□□□□□□□□□□□□  1 filling, 13 free\n",
        "1  busy      pid 12  train  decode  'cat\\n.png'  3.2 s",
        "2  starting",
        "and 17 more (--json has all)",
        "9 bad samples recorded in /q",
        "train  epoch 1  'k' (index 3)  decode: ValueError: x",
    ):
        assert said in text, said


REMOTE = replace(FULL, quarantine=None)


def test_workers_of_other_hosts_are_marked_with_their_node_also_when_they_are_idle() -> None:
    text = "\n".join(lines(REMOTE, 200, False))
    assert "remote   32 remote workers, 1 at work: node far-8: it is refused\n" in text
    assert "\n    3  idle      pid 14  node far-7\n" in text
    assert "\n    4  starting    node ?" in text
    assert "1  busy      pid 12  train" in text


def test_what_keeps_workers_of_other_hosts_from_work_is_never_cut() -> None:
    shown = " ".join(line.removeprefix("remote").strip() for line in lines(REMOTE, 40, False))
    assert "32 remote workers, 1 at work: node far-8: it is refused" in shown


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("starting", "train  not opened yet"),
        ("ready", "train  not opened yet: it opens when a training script asks for it"),
    ],
)
def test_a_stream_waits_for_a_training_script_only_where_the_daemon_is_ready_without_it(
    state: str, said: str
) -> None:
    status = DaemonStatus(
        state, streams={"train": StreamStatus("mine:Numbers", 8, opened=False, failed="")}
    )
    assert f"  {said}" in list(lines(status, 200, False))


def test_the_verdict_is_never_cut() -> None:
    shown = " ".join(line.removeprefix("verdict").strip() for line in lines(STATUS, 40, False))
    assert "the trainer waits 60% of the time; set num_workers = 5" in shown


@pytest.mark.parametrize("width", [20, 40, 80])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, lines(STATUS, width, False))) <= width


def test_colours_are_for_terminals() -> None:
    assert "\033[" in "".join(lines(STATUS, 80, True))
    assert "\033[" not in "".join(lines(STATUS, 80, False))
