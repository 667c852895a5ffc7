"""A daemon as its clients see it, with a made-up pool behind it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq

from loaderd.config.load import Config
from loaderd.config.schema import DaemonConfig, WorkersConfig
from loaderd.server.running import claim
from loaderd.system import file_limits
from loaderd.system.lockfile import CannotServe, LockFile
from loaderd_testing.daemon_harness import until
from loaderd_testing.daemon_process import SAMPLES, SPECS
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.ports import reserved_port
from loaderd_testing.python_processes import SERVING, SUPPORT, python
from loaderd_wire.codec import WIRE, frame, unframe
from loaderd_wire.messages import (
    PROTOCOL,
    Ask,
    Bye,
    Descriptor,
    Failure,
    Hello,
    Progress,
    Pulse,
    Rejected,
    Report,
    Segment,
    Starting,
    Welcome,
)
from loaderd_wire.slots import slot_layout

HELLO = Hello(PROTOCOL, "train", None, None, None, 0, 1, 4, None, 0, {}, {}, "")
DAEMON = (
    f"import sys; sys.path.insert(0, {SUPPORT!r})\n"
    "from loaderd_testing.daemon_process import main; sys.exit(main())"
)


class Served:
    """A daemon process and connections to it."""

    def __init__(
        self, folder: Path, *streams: str, log_removed: bool = False, **settings: Any
    ) -> None:
        self.folder = folder
        self.socket = str(folder / "d.sock")
        given = {
            "socket": self.socket,
            "quarantine": self.socket + ".bad.jsonl",
            "num_workers": 2,
            "streams": streams or ("train",),
        }
        self.log = folder / "log"
        fds: dict[str, Any] = {"pass_fds": [settings["ready_fd"]]} if "ready_fd" in settings else {}
        with self.log.open("ab") as log:
            self.begin = log.tell()
            if log_removed:
                self.log.unlink()
            self.process = python(
                "-c",
                DAEMON,
                json.dumps({**given, **settings}),
                imports=SERVING,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                **fds,
            )
        self.lines: list[Line] = []

    def text(self) -> str:
        return self.log.read_bytes()[self.begin :].decode()

    def wait(self, part: str) -> Served:
        """Until the log has it."""
        until(
            f"{part!r} in the log", lambda: part in self.text() or self.process.poll() is not None
        )
        assert part in self.text(), self.text()
        return self

    def connect(self) -> Line:
        self.lines.append(Line(self.socket))
        return self.lines[-1]

    def attach(self, **changes: Any) -> Line:
        line = self.connect()
        line.send(replace(HELLO, **changes))
        line.welcome = line.get(Welcome)
        return line

    def status(self) -> dict[str, Any]:
        line = self.connect()
        line.send(Ask(PROTOCOL, "status"))
        picture = json.loads(line.get(Report).body)
        assert line.get(None) is None
        line.close()
        return picture

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        for line in self.lines:
            line.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class Line:
    """A client's control connection."""

    def __init__(self, path: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(DEADLINE_S)
        try:
            self.sock.connect(path)
        except OSError:
            self.sock.close()
            raise
        self.buffer = bytearray()
        self.fds: list[int] = []
        self.welcome: Welcome

    def send(self, message: Any) -> None:
        self.sock.sendall(frame(message))

    def get(self, kind: type[Any] | None) -> Any:
        """The next message, but for Starting ones before it, which must be of this kind; with None
        the end of the connection.
        """
        while (message := unframe(self.buffer)) is None or (
            isinstance(message, Starting) and kind is not Starting
        ):
            if message is not None:
                continue  # what comes next may be here already
            data, fds, _, _ = socket.recv_fds(self.sock, 1 << 16, 4)
            self.fds += fds
            if not data:
                assert kind is None
                return None
            self.buffer += data
        assert kind is not None
        assert isinstance(message, kind), message
        return message

    def close(self) -> None:
        self.sock.close()
        while self.fds:
            os.close(self.fds.pop())


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    made: list[Served] = []

    def begin(*streams: str, **settings: Any) -> Served:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Served(folder, *streams, **settings))
        return made[-1]

    yield begin
    for daemon in made:
        daemon.close()


class Mail:
    """A client's DEALER."""

    def __init__(self, daemon: Served, line: Line) -> None:
        self.welcome = line.welcome
        self.context = zmq.Context()
        self.dealer = self.context.socket(zmq.DEALER)
        self.dealer.plain_username = b"%d" % line.welcome.session
        self.dealer.plain_password = line.welcome.token
        self.dealer.connect(f"ipc://{daemon.socket}.zmq")
        self.seq = 0

    def tell(self, **changes: Any) -> None:
        self.seq += 1
        told = Progress(self.welcome.session, self.seq, 1, 0, 0, 0, 0, 0, False, False, False, ())
        self.dealer.send(WIRE.encode(replace(told, **changes)))

    def get(self, kind: type[Any]) -> Any:
        while True:
            assert self.dealer.poll(int(DEADLINE_S * 1000))
            message = WIRE.decode(self.dealer.recv())
            if isinstance(message, kind):
                return message

    def __enter__(self) -> Mail:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.destroy(linger=0)


def test_a_client_is_admitted_with_its_memory_and_gets_batches(start: Any) -> None:
    daemon = start().wait("ready: ")
    line = daemon.attach()
    welcome, layout = line.welcome, slot_layout(SPECS, 8, tail_row_bytes=64)
    assert (welcome.samples, welcome.batch_size, welcome.seed, welcome.specs) == (
        SAMPLES,
        8,
        7,
        SPECS,
    )
    assert (welcome.segment.slots, welcome.segment.slot_bytes) == (6, layout.slot_bytes)
    assert os.fstat(line.fds[0]).st_size == 6 * layout.slot_bytes
    assert welcome.order["seed"] == "7"
    assert welcome.order["data"] == "the data"
    with Mail(daemon, line) as mail:
        mail.tell()
        assert [mail.get(Descriptor).k for _ in range(4)] == [0, 1, 2, 3]
        mail.tell(ping=True, taken=0)
        assert mail.get(Pulse).seq == 2
    picture = daemon.status()
    assert picture["state"] == "ready"
    assert picture["memory"]["segments"] == 6 * layout.slot_bytes
    (session,) = picture["sessions"]
    assert (session["session"], session["pid"], session["made"]) == (
        welcome.session,
        os.getpid(),
        4,
    )
    line.close()
    end = time.monotonic() + DEADLINE_S
    while (picture := daemon.status())["sessions"] or picture["memory"]["segments"]:
        assert time.monotonic() < end
    assert daemon.end() == 0
    assert sorted(os.listdir(daemon.folder)) == ["log"]


def test_clients_that_come_early_are_told_to_wait(start: Any) -> None:
    daemon = start("train", "late")
    # it listens at the one for clients by then, which has a name a moment before it does
    until("its socket for messages", lambda: os.path.exists(daemon.socket + ".zmq"))
    line = daemon.connect()
    line.send(HELLO)
    assert "late" in line.get(Starting).text
    assert "late" in line.get(Starting).text  # and again a second later
    assert daemon.status()["state"] == "starting"
    assert "ready" not in daemon.text()
    daemon.process.stdin.write(b"go\n")
    daemon.process.stdin.flush()
    assert line.get(Welcome).samples == SAMPLES
    assert "mind the gap" in daemon.text()


REFUSED = {
    "protocol": ({"protocol": PROTOCOL + 1}, "RefusedError", [str(PROTOCOL), str(PROTOCOL + 1)]),
    "stream": ({"stream": "trian"}, "ConfigError", ["trian", "train, val"]),
    "config": ({"config": "/other.toml"}, "ConfigError", ["/other.toml", "/conf.toml"]),
    "fields": ({"fields": ("x", "z")}, "ConfigError", ["'z'", "x, y"]),
    "fields twice": ({"fields": ("x", "x")}, "ConfigError", ["none twice"]),
    "batch_size": ({"batch_size": 0}, "ConfigError", ["batch_size"]),
    "a huge batch_size": ({"batch_size": 1 << 40}, "ConfigError", ["batch_size"]),
    "rank": ({"rank": 2, "world_size": 2}, "ConfigError", ["rank = 2", "world_size = 2"]),
    "no step": (
        {"world_size": 20, "drop_last": True},
        "ConfigError",
        ["n = 100", "world_size = 20", "batch_size = 8", "drop_last"],
    ),
    "prefetch": ({"prefetch": 0}, "ConfigError", ["prefetch"]),
    "memory": (
        {"batch_size": 50, "prefetch": 1000},
        "RefusedError",
        ["needed", "1048576", "never", "[daemon] memory"],
    ),
    "order": (
        {"order": {"samples": "100", "seed": "8"}},
        "StreamChangedError",
        ["seed was 8, is 7"],
    ),
    "content": (
        {"content": {"on_error": "skip"}},
        "StreamChangedError",
        ["on_error was skip, is raise"],
    ),
    "another decoder": (
        {"content": {"jpeg_extension": "1"}},
        "StreamChangedError",
        ["jpeg_extension was 1, is not used"],
    ),
    "a fact of old": (
        {"content": {"mood": "good"}},
        "StreamChangedError",
        ["mood was good, is not set"],
    ),
}


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    daemon = Served(
        tmp_path_factory.mktemp("standing"),
        "train",
        "val",
        memory=1 << 20,
        config_path="/conf.toml",
    )
    daemon.wait("ready: ")
    yield daemon
    daemon.close()


@pytest.mark.parametrize("what", REFUSED)
def test_a_client_that_cannot_be_served_is_told_why_and_the_daemon_goes_on(
    standing: Served, what: str
) -> None:
    changes, error, parts = REFUSED[what]
    line = standing.connect()
    line.send(replace(HELLO, **changes))
    answer = line.get(Rejected)
    assert answer.error == error
    for part in parts:
        assert part in answer.text
    assert line.get(None) is None
    line.close()
    assert standing.status()["sessions"] == []


def test_settings_of_a_client_go_before_the_streams(standing: Served) -> None:
    line = standing.attach(
        batch_size=3,
        seed=9,
        drop_last=True,
        fields=("y", "__key__"),
        rank=1,
        world_size=2,
        prefetch=2,
        config="/conf.toml",
        stream="val",
    )
    welcome = line.welcome
    assert (welcome.batch_size, welcome.seed, welcome.drop_last, welcome.segment.slots) == (
        3,
        9,
        True,
        4,
    )
    assert [spec.name for spec in welcome.specs] == ["y"]
    assert welcome.order["seed"] == "9"
    assert welcome.content["fields"] == "y"
    line.close()


def test_a_client_that_wants_no_field_of_the_samples_gets_batches_without_any(
    standing: Served,
) -> None:
    line = standing.attach(fields=())  # it makes "__index__" and "__key__" itself
    assert line.welcome.specs == ()
    line.close()


def test_a_daemon_whose_limit_of_descriptors_was_lowered_refuses_newcomers_and_lets_the_others_come_again(
    start: Any,
) -> None:
    daemon = start().wait("ready:")
    attached = daemon.attach()
    pid = daemon.process.pid
    old = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(
        pid, resource.RLIMIT_NOFILE, (max(map(int, os.listdir(f"/proc/{pid}/fd"))) + 6, old[1])
    )
    line = daemon.connect()
    line.send(HELLO)
    refused = line.get(Rejected)
    assert refused.error == "RefusedError"
    assert re.search(
        r"the daemon needs \d+ free file descriptors and has fewer: RLIMIT_NOFILE is \d+; "
        r".*ulimit -n",
        refused.text,
    )
    back = daemon.connect()
    with contextlib.suppress(ConnectionError):  # it may be turned away before its hello is read
        back.send(replace(HELLO, order=attached.welcome.order, content=attached.welcome.content))
        assert back.get(None) is None
    resource.prlimit(pid, resource.RLIMIT_NOFILE, old)
    assert daemon.attach().welcome.session
    assert daemon.process.poll() is None


def test_a_rank_unlike_another_one_is_warned_with_both(standing: Served) -> None:
    first = standing.attach(rank=0, world_size=2, prefetch=1)
    second = standing.attach(rank=1, world_size=2, prefetch=1, seed=9)
    other = standing.attach(rank=1, world_size=2, prefetch=1, seed=9, stream="val")
    (warning,) = second.welcome.warnings
    assert "rank 1 of 2 has seed = 9, rank 0 of 2 has seed = 7" in warning
    assert first.welcome.warnings == other.welcome.warnings == ()
    other.close()
    for line in (first, second):
        line.close()
    end = time.monotonic() + DEADLINE_S
    while standing.status()["sessions"]:
        assert time.monotonic() < end


def test_a_client_that_comes_back_is_not_refused_for_what_its_own_tensors_still_hold(
    standing: Served,
) -> None:
    fresh = standing.connect()
    fresh.send(replace(HELLO, held_bytes=1 << 20))
    assert "still held" in fresh.get(Rejected).text
    first = standing.attach()
    order = first.welcome.order
    first.close()
    again = standing.attach(order=order, held_bytes=1 << 20)
    again.close()
    fresh.close()


def test_memory_that_others_have_is_full_for_now(start: Any) -> None:
    daemon = start(memory=160_000).wait("ready: ")
    first = daemon.attach()
    assert first.welcome.segment.slots * first.welcome.segment.slot_bytes > 70_000
    daemon.attach()
    line = daemon.connect()
    line.send(HELLO)
    assert "not enough memory" in line.get(Rejected).text
    first.close()
    end = time.monotonic() + DEADLINE_S
    while len(daemon.status()["sessions"]) > 1:
        assert time.monotonic() < end
    daemon.attach()


def test_a_batch_that_outgrows_its_slot_gets_a_larger_segment(start: Any) -> None:
    daemon = start("grows").wait("ready: ")
    line = daemon.attach(stream="grows")
    with Mail(daemon, line) as mail:
        mail.tell()
        larger = line.get(Segment)
        batch = mail.get(Descriptor)
    assert larger.segment != line.welcome.segment.segment
    assert larger.tail_row_bytes >= 1000
    assert batch.segment == larger.segment
    assert os.fstat(line.fds[1]).st_size == larger.slots * larger.slot_bytes


def test_a_batch_that_outgrows_the_memory_ends_its_stream_with_the_numbers(start: Any) -> None:
    daemon = start("grows", memory=100_000).wait("ready: ")
    line = daemon.attach(stream="grows")
    with Mail(daemon, line) as mail:
        mail.tell()
        failure = mail.get(Failure)
    assert failure.error == "StreamFailedError"
    assert "100000" in failure.text
    assert "[daemon] memory" in failure.text


def test_a_quarantine_that_cannot_be_written_is_told_of_once_and_harms_nobody(start: Any) -> None:
    nowhere = "/no/such/folder/bad.jsonl"
    daemon = start("bad", quarantine=nowhere).wait("ready: ")
    with Mail(daemon, daemon.attach(stream="bad")) as mail:
        mail.tell()
        assert mail.get(Descriptor).failed
    assert daemon.end() == 0
    assert "sample 'seven' (index 7) failed in decode: ImageError: damaged" in daemon.text()
    (told,) = [line for line in daemon.text().splitlines() if nowhere in line]
    assert "error" in told
    assert "No such file or directory; bad samples are not recorded there" in told


def test_sigterm_says_bye_and_leaves_with_0(start: Any) -> None:
    daemon = start().wait("ready: ")
    line = daemon.attach()
    assert daemon.end() == 0
    assert line.get(Bye).reason == "drained"
    assert line.get(None) is None
    assert sorted(os.listdir(daemon.folder)) == ["log"]


def test_who_sees_its_connection_end_finds_the_lock_free_and_nobody_listening(start: Any) -> None:
    daemon = start().wait("ready: ")
    line = daemon.attach()
    daemon.process.send_signal(signal.SIGTERM)
    line.get(Bye)
    assert line.get(None) is None
    with LockFile(daemon.socket):
        assert sorted(os.listdir(daemon.folder)) == ["d.sock.lock", "log"]


def test_drain_waits_for_running_jobs_no_longer_than_it_may(start: Any) -> None:
    daemon = start("stuck", drain_s=0.3).wait("ready: ")
    line = daemon.attach(stream="stuck")
    with Mail(daemon, line) as mail:
        mail.tell(ping=True)
        mail.get(Pulse)
        asker = daemon.connect()
        asker.send(Ask(PROTOCOL, "drain"))
        assert json.loads(asker.get(Report).body)["drain_s"] == 0.3
        assert line.get(Bye)
        assert asker.get(None) is None  # it is gone
    assert daemon.process.wait(DEADLINE_S) == 0


def test_a_second_signal_leaves_at_once(start: Any) -> None:
    daemon = start("stuck", drain_s=1000.0).wait("ready: ")
    line = daemon.attach(stream="stuck")
    with Mail(daemon, line) as mail:
        mail.tell(ping=True)
        mail.get(Pulse)
        daemon.process.send_signal(signal.SIGINT)
        daemon.wait("draining: SIGINT")
        assert daemon.end(signal.SIGINT) == 0


def test_a_signal_while_it_starts_ends_it(start: Any) -> None:
    daemon = start("late")
    until("its socket for messages", lambda: os.path.exists(daemon.socket + ".zmq"))
    daemon.status()
    assert daemon.end() == 0


def started(start: Any, *streams: str, **settings: Any) -> tuple[int, str, str]:
    """(exit code, what the ready pipe said, log) of a daemon that ends by itself."""
    read, write = os.pipe()
    daemon = start(*streams, ready_fd=write, **settings)
    os.close(write)
    with open(read, "rb") as pipe:
        said = pipe.read().decode()
    return daemon.process.wait(DEADLINE_S), said, daemon.text()


def test_a_stream_that_cannot_be_opened_is_named_and_ends_with_3(start: Any) -> None:
    code, said, log = started(start, "train", "broken")
    assert code == 3
    assert said == "stream 'broken': /no/such/db: not there"
    assert said in log
    assert "ready: " not in log


@pytest.fixture
def lazy(start: Any) -> Served:
    """Serves "train", and opens the others when they are asked for."""
    return start(
        "train", "broken", "heals", "late", "val", first_stream="train", memory=1 << 20
    ).wait("ready: ")


def test_a_stream_that_nobody_asks_for_is_not_opened_and_shown_so(lazy: Served) -> None:
    assert "streams train (100); broken, heals, late, val not opened yet" in lazy.text()
    streams = lazy.status()["streams"]
    assert list(streams) == ["train", "broken", "heals", "late", "val"]
    assert {name: stream["opened"] for name, stream in streams.items() if stream["opened"]} == {
        "train": True
    }
    assert streams["val"] == {"data": "made:Up", "batch_size": 8, "opened": False, "failed": ""}


def test_a_stream_that_cannot_be_opened_when_it_is_asked_for_leaves_the_others_alone(
    lazy: Served,
) -> None:
    first = lazy.attach()
    line = lazy.connect()
    line.send(replace(HELLO, stream="broken"))
    assert "opening stream 'broken'" in line.get(Starting).text
    refused = line.get(Rejected)
    assert (refused.error, refused.text) == (
        "StreamFailedError",
        "stream 'broken': /no/such/db: not there",
    )
    assert line.get(None) is None
    lazy.wait("error")
    picture = lazy.status()
    assert picture["failed"] is False
    assert picture["streams"]["broken"]["failed"] == "/no/such/db: not there"
    with Mail(lazy, first) as mail:
        mail.tell()
        assert mail.get(Descriptor).k == 0
    assert lazy.end() == 0


def test_a_stream_opened_later_has_sessions_memory_and_batches_of_its_own(lazy: Served) -> None:
    line = lazy.attach(stream="val")
    assert line.welcome.samples == SAMPLES
    with Mail(lazy, line) as mail:
        mail.tell()
        assert [mail.get(Descriptor).k for _ in range(4)] == [0, 1, 2, 3]
    picture = lazy.status()
    assert picture["streams"]["val"]["opened"] is True
    assert picture["streams"]["val"]["sessions"] == [line.welcome.session]
    assert (
        picture["memory"]["segments"]
        == line.welcome.segment.slots * line.welcome.segment.slot_bytes
    )
    assert "mind the gap" in lazy.text()


def test_a_stream_that_could_not_be_opened_is_tried_again_for_who_asks_next(lazy: Served) -> None:
    line = lazy.connect()
    line.send(replace(HELLO, stream="heals"))
    line.get(Rejected)
    assert lazy.attach(stream="heals").welcome.samples == SAMPLES
    assert lazy.status()["streams"]["heals"]["failed"] == ""


def test_who_waits_for_a_stream_is_told_so_while_others_are_served(lazy: Served) -> None:
    waiting, gone, second = lazy.connect(), lazy.connect(), lazy.connect()
    for line in (waiting, gone, second):
        line.send(replace(HELLO, stream="late"))
        assert "opening stream 'late'" in line.get(Starting).text
    assert "opening stream 'late'" in waiting.get(Starting).text  # and again a second later
    gone.close()
    assert lazy.attach().welcome
    picture = lazy.status()
    assert (picture["state"], "opening stream 'late'" in picture["doing"]) == ("ready", True)
    assert lazy.process.stdin is not None
    lazy.process.stdin.write(b"go\n")
    lazy.process.stdin.flush()
    assert waiting.get(Welcome).samples == second.get(Welcome).samples == SAMPLES
    until("the line", lambda: "stream 'late': 100 samples" in lazy.text())
    assert lazy.text().count("stream 'late': 100 samples") == 1
    picture = lazy.status()
    assert (picture["doing"], len(picture["sessions"])) == ("", 3)


def test_a_stream_that_the_config_does_not_have_is_not_waited_for(lazy: Served) -> None:
    line = lazy.connect()
    line.send(replace(HELLO, stream="vall"))
    assert line.get(Rejected).text == "no stream 'vall'; there are: train, broken, heals, late, val"
    line = lazy.connect()
    line.send(replace(HELLO, stream=""))
    assert line.get(Rejected).text == (
        "no stream is named; there are: train, broken, heals, late, val"
    )


def test_a_drain_lets_go_of_who_waits_for_a_stream(lazy: Served) -> None:
    line = lazy.connect()
    line.send(replace(HELLO, stream="late"))
    line.get(Starting)
    assert lazy.end() == 0
    assert line.get(None) is None


def test_workers_that_cannot_boot_end_with_3_and_the_traceback(start: Any) -> None:
    code, said, log = started(start, "unready")
    assert code == 3
    assert "Traceback: no" in said
    assert "Traceback: no" in log


@pytest.mark.parametrize("embedded", [False, True])
def test_a_second_daemon_is_told_of_the_first(start: Any, embedded: bool) -> None:
    first = start(embedded=embedded).wait("ready: ")
    read, write = os.pipe()
    second = Served(first.folder, ready_fd=write, embedded=embedded)
    os.close(write)
    with open(read, "rb") as pipe:
        said = pipe.read().decode()
    assert second.process.wait(DEADLINE_S) == 3
    second.close()
    assert said.startswith("already running")
    # where many may start one, that is no trouble
    assert ("error" in second.text()) is not embedded
    assert str(first.process.pid) in said
    assert first.attach().welcome


def test_a_regular_file_in_the_sockets_place_is_left_intact(start: Any, tmp_path: Path) -> None:
    victim = tmp_path / "thesis"
    victim.write_text("chapter 1")
    code, said, _ = started(start, socket=str(victim))
    assert code == 3
    assert "not a socket" in said
    assert victim.read_text() == "chapter 1"


def test_systemd_hears_that_the_loop_turns(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.settimeout(DEADLINE_S)
        listener.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        start("train")
        heard = [listener.recv(100) for _ in range(4)]
    assert heard.count(b"WATCHDOG=1") >= 3
    assert set(heard) <= {b"WATCHDOG=1", b"READY=1"}


def test_a_path_that_is_too_long_for_a_socket_is_said_at_once(start: Any, tmp_path: Path) -> None:
    code, said, _ = started(start, socket=str(tmp_path / ("x" * 120)))
    assert code == 3
    assert "too long" in said


def test_a_limit_of_descriptors_that_suffices_for_one_session_suffices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = DaemonConfig(socket=str(tmp_path / "d.sock"), quarantine="q")
    config = Config("", "", False, settings, WorkersConfig(), ())
    fit = 1
    monkeypatch.setattr(file_limits, "raise_limit", lambda: 64)
    monkeypatch.setattr(file_limits, "sessions_that_fit", lambda *_: fit)
    assert claim(config, 2)[1] == 1
    fit = 0
    with pytest.raises(CannotServe, match="RLIMIT_NOFILE = 64 is too low for even one session"):
        claim(config, 2)


def test_metrics_that_cannot_listen_are_named(start: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, said, _ = started(start, metrics=f"127.0.0.1:{taken.getsockname()[1]}")
    assert code == 3
    assert "metrics" in said


def test_a_fault_of_the_daemon_ends_it_with_4_and_its_story(start: Any) -> None:
    daemon = start("crash").wait("ready: ")
    line = daemon.attach(stream="crash")
    with Mail(daemon, line) as mail:
        mail.tell()
        assert daemon.process.wait(DEADLINE_S) == 4
    assert "a fault of ours" in daemon.text()
    assert sorted(os.listdir(daemon.folder)) == ["log"]


def test_an_embedded_daemon_that_fails_leaves_its_log(start: Any) -> None:
    daemon = start("crash", embedded=True).wait("ready: ")
    (daemon.folder / "d.sock.log").write_text("as its starter would")
    line = daemon.attach(stream="crash")
    with Mail(daemon, line) as mail:
        mail.tell()
        assert daemon.process.wait(DEADLINE_S) == 4
    assert sorted(os.listdir(daemon.folder)) == ["d.sock.log", "log"]


def test_an_embedded_daemon_whose_log_another_one_removed_when_it_left_has_a_new_one(
    start: Any,
) -> None:
    daemon = start(embedded=True, log_removed=True)
    daemon.log = daemon.folder / "d.sock.log"
    until("a log", daemon.log.exists)
    daemon.wait("the embedded daemon starts")


def test_a_daemon_killed_leaves_what_its_successor_sweeps(start: Any) -> None:
    first = start().wait("ready: ")
    line = first.attach()
    first.process.kill()
    assert line.get(None) is None
    first.process.wait(DEADLINE_S)
    assert os.path.exists(first.socket)
    second = Served(first.folder)
    try:
        line = second.wait("ready: ").connect()
        line.send(HELLO)
        line.get(Welcome)
        assert second.end() == 0
    finally:
        second.close()
    assert sorted(os.listdir(first.folder)) == ["log"]


def test_it_leaves_once_the_last_trainer_has_gone_for_so_long(start: Any) -> None:
    daemon = start(exit_when_idle_s=0.3).wait("ready: ")
    first, second = daemon.attach(), daemon.attach()
    first.close()
    assert daemon.status()["state"] == "ready"
    second.close()
    assert daemon.process.wait(DEADLINE_S) == 0


def test_an_embedded_daemon_goes_with_its_last_user_and_takes_its_log_along(start: Any) -> None:
    read, write = os.pipe()
    daemon = start(embedded=True, ready_fd=write)
    os.close(write)
    (daemon.folder / "d.sock.log").write_text("as its starter would")
    with open(read, "rb") as pipe:
        assert pipe.read() == b"ready"
    daemon.attach().close()
    assert daemon.process.wait(DEADLINE_S) == 0
    assert sorted(os.listdir(daemon.folder)) == ["log"]


@pytest.mark.parametrize("parked", [False, True])
def test_an_embedded_daemon_that_is_not_ready_goes_when_nobody_waits_for_it_any_more(
    start: Any, parked: bool
) -> None:
    read, write = os.pipe()
    daemon = start("late", embedded=True, ready_fd=write)
    os.close(write)
    daemon.wait("the embedded daemon starts")
    until("its socket for messages", lambda: os.path.exists(daemon.socket + ".zmq"))
    if parked:
        line = daemon.connect()
        line.send(HELLO)
        line.get(Starting)
        os.close(read)
        for _ in range(4):  # one comes each second
            line.get(Starting)
        assert "draining" not in daemon.text()
        line.sock.close()
    else:
        os.close(read)
    assert daemon.process.wait(DEADLINE_S) == 0
    assert "draining: the last client has disconnected" in daemon.text()


def test_a_silent_connection_does_not_keep_an_embedded_daemon_for_ever(start: Any) -> None:
    daemon = start(embedded=True).wait("ready: ")
    user = daemon.attach()
    daemon.connect()
    user.close()
    assert daemon.process.wait(DEADLINE_S) == 0


def test_an_idle_daemon_with_an_idle_client_makes_no_turns(start: Any) -> None:
    daemon = start().wait("ready: ")
    line = daemon.attach()
    with Mail(daemon, line) as mail:
        mail.tell()
        for _ in range(4):
            mail.get(Descriptor)
        before = daemon.status()["turns"]
        time.sleep(1.0)  # the time in which nothing may happen is what is tested
        # the two connections that asked for the status: accepted, heard, seen off
        assert daemon.status()["turns"] - before <= 8


def test_metrics_and_probes_are_answered(start: Any) -> None:
    def get(path: str) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as web:
            web.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            got = b""
            while data := web.recv(1 << 16):
                got += data
        return got

    with reserved_port() as port:
        daemon = start(metrics=f"127.0.0.1:{port}").wait("ready: ")
        daemon.attach()
        assert b"\nloaderd_sessions 1\n" in get("/metrics")
        assert b" 200 " in get("/healthz")
        assert b" 200 " in get("/readyz")


def test_the_daemon_itself_imports_no_user_code_and_no_codec(start: Any) -> None:
    daemon = start().wait("ready: ")
    maps = Path(f"/proc/{daemon.process.pid}/maps").read_text()
    assert "zmq" in maps
    for name in ("lmdb", "cv2", "torch", "PIL", "simplejpeg"):
        assert f"/{name}" not in maps
