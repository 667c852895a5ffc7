"""The pool's parts one by one, with workers and templates of paper."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from loaderd.core.jobs import IMPORTING, BadRow, Done, Job, JobKind, Replaced, Stage, stamp
from loaderd.engine.channel import Channel
from loaderd.engine.fork_server import ForkServer
from loaderd.engine.fork_server_starts import BACKOFF_S, HOPELESS
from loaderd.engine.launch import Launched
from loaderd.engine.messages import (
    ForkServerReady,
    OpenError,
    Setup,
    UnmapSegment,
    WorkerBooted,
    WorkerFault,
)
from loaderd.engine.output_capture import WINDOW_LINES, OutputCapture
from loaderd.engine.probing import Prober
from loaderd.engine.process_state import ProcessState
from loaderd.engine.scoreboard import Scoreboard
from loaderd.engine.segment_refs import SegmentTable
from loaderd.engine.worker_events import answers
from loaderd.engine.worker_process import STATUS_S, WorkerExit, WorkerProcess
from loaderd.system.loop import Loop
from loaderd.worker.stage_timer import Stopwatch
from loaderd_wire.errors import BadSample

DEADLINE_S = 60.0


@pytest.fixture
def loop() -> Iterator[Loop]:
    with Loop() as made:
        yield made


def until(loop: Loop, condition: Callable[[], Any]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s, "waited in vain"
        loop.turn(0.05)


# -- segments


class Told:
    """A worker that remembers what it was told."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def send(self, message: object, fds: tuple[int, ...] = ()) -> None:
        self.messages.append(message)


def mapped_by(*children: Told) -> tuple[SegmentTable, list[int]]:
    """A table whose segment 5 these have, and the list that says when it is done."""
    table, done = SegmentTable(), list[int]()
    table.add(SimpleNamespace(segment=SimpleNamespace(segment=5)), 9)  # type: ignore[arg-type] # as much of a Map as is looked at
    for child in children:
        table.give(5, child)  # type: ignore[arg-type]
    return table, done


def test_a_segment_is_handed_to_a_worker_once() -> None:
    child = Told()
    table, _ = mapped_by(child)
    table.give(5, child)  # type: ignore[arg-type]
    assert len(child.messages) == 1


def test_a_dropped_segment_is_done_when_its_last_holder_has_unmapped_it_or_died() -> None:
    first, second = Told(), Told()
    table, done = mapped_by(first, second)
    table.drop(5, lambda: done.append(1))
    assert first.messages[1:] == second.messages[1:] == [UnmapSegment(5)]
    assert table.unmapped(5, first)  # type: ignore[arg-type]
    assert not done
    table.died(second)  # type: ignore[arg-type]
    assert done == [1]


def test_a_worker_that_unmaps_what_nobody_dropped_has_spoken_out_of_turn() -> None:
    child, other = Told(), Told()
    table, done = mapped_by(child)
    assert not table.unmapped(5, child)  # type: ignore[arg-type]
    table.drop(5, lambda: done.append(1))
    assert not table.unmapped(5, other)  # type: ignore[arg-type]
    assert not table.unmapped(6, child)  # type: ignore[arg-type]
    assert not done


def test_a_segment_has_a_number_of_its_own() -> None:
    table, _ = mapped_by()
    with pytest.raises(ValueError, match="segment 5 is there already"):
        table.add(SimpleNamespace(segment=SimpleNamespace(segment=5)), 9)  # type: ignore[arg-type]


# -- output


def test_an_empty_pipe_holds_up_nobody(loop: Loop) -> None:
    read, write = os.pipe()
    output = OutputCapture(loop, read, lambda level, event, text, **_: None, lambda: "w")
    assert fcntl.fcntl(read, fcntl.F_GETFL) & os.O_NONBLOCK
    output._readable()  # for nothing
    output.close()
    os.close(write)


def test_each_window_has_room_for_lines_again(loop: Loop) -> None:
    lines: list[str] = []
    read, write = os.pipe()
    output = OutputCapture(
        loop, read, lambda level, event, text, **_: lines.append(text), lambda: "w"
    )
    for number in (1, 2):
        os.write(write, b"line\n" * (WINDOW_LINES + 7))
        until(
            loop,
            lambda number=number: (
                len([line for line in lines if line == "w: 7 more lines dropped"]) == number
            ),
        )
        assert lines.count("w: line") == number * WINDOW_LINES
    os.write(write, b"last words")
    output.close()
    assert lines[-1] == "w: last words"
    assert output.tail[-1] == "last words"
    os.close(write)


# -- answers


def test_an_answer_tells_of_rows_of_its_own_job_alone() -> None:
    job = Job(7, JobKind.FILL, "train", 1, 0, 0, 0, 0, 8, 2, 5)

    def done(number: int = 7, bad: tuple[int, ...] = (), replaced: tuple[int, ...] = ()) -> Done:
        sample = BadSample(0, "", 0, "read", "E", "", "")
        rows = tuple(BadRow(row, True, sample) for row in bad)
        return Done(
            number, rows, tuple(Replaced(row, 1) for row in replaced), 0, 0, 0.0, 0.0, 0.0, 0.0
        )

    assert answers(done(), job)
    assert answers(done(bad=(2,), replaced=(4,)), job)
    for wrong in (
        done(8),
        done(8, bad=(2,)),
        done(bad=(2, 5)),
        done(bad=(1,)),
        done(replaced=(5,)),
        done(replaced=(1, 3)),
    ):
        assert not answers(wrong, job)


# -- probes


class Probed:
    """A probe's worker, at whatever the test has it do; its process is the one with this pid."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.word = stamp(0, 3, Stage.READ)
        self.key = "key"
        self.why = ""

    def look(self) -> tuple[int, str]:
        return self.word, self.key

    def send(self, message: object) -> None: ...

    def leave(self) -> None: ...

    def dump(self) -> None: ...

    def kill(self, why: str) -> None:
        self.why = why


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as made:
        yield made
        made.kill()


def prober(loop: Loop, found: list[Any], again: list[str]) -> Prober:
    return Prober(loop, "train", 0.4, found.append, again.append)


def watched(loop: Loop, child: Any) -> tuple[Prober, list[Any]]:
    """A probe of a stream whose samples may take 0.4 s."""
    found: list[Any] = []
    made = prober(loop, found, [])
    made.worker_ready(child)
    return made, found


def test_a_probe_that_hangs_in_a_sample_is_killed_and_named(
    loop: Loop, process: subprocess.Popen[bytes]
) -> None:
    child: Any = Probed(process.pid)
    watched(loop, child)
    until(loop, lambda: child.why)
    assert (
        child.why
        == "sample 'key' hangs in stage read: it took longer than sample_timeout_s = 0.4 s"
    )


@pytest.mark.parametrize(
    "word",
    [stamp(0, 3, Stage.READ) | IMPORTING, stamp(0, 0, Stage.OPEN), stamp(0, 0, Stage.COLLATE)],
)
def test_a_probe_may_take_longer_for_what_is_no_sample(
    loop: Loop, process: subprocess.Popen[bytes], word: int
) -> None:
    child: Any = Probed(process.pid)
    child.word = word
    made, _ = watched(loop, child)
    begun_s = loop.now_s()
    until(loop, lambda: loop.now_s() > begun_s + 1.5)
    assert not child.why
    assert ("importing modules" in made.doing(loop.now_s())[0]) is bool(word & IMPORTING)


def test_a_probe_that_copies_says_how_far_it_is_and_what_hung(
    loop: Loop, process: subprocess.Popen[bytes]
) -> None:
    child: Any = Probed(process.pid)
    child.word, child.key = stamp(0, 7, Stage.OPEN), "staging 3.1 of 120 GB"
    made, _ = watched(loop, child)
    assert made.doing(loop.now_s()) == ["stream 'train': staging 3.1 of 120 GB"]
    until(loop, lambda: child.why)
    assert child.why.startswith("staging 3.1 of 120 GB hangs: it took longer than 10 * sample")


def test_a_stopped_probe_is_named_as_stopped_and_its_time_counts_for_nothing(
    loop: Loop, process: subprocess.Popen[bytes]
) -> None:
    child: Any = Probed(process.pid)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)  # before it, it may go on
    made, _ = watched(loop, child)
    until(loop, lambda: "stopped" in made.doing(loop.now_s())[0])
    assert made.doing(loop.now_s()) == [
        "the worker that opens stream 'train' is stopped by a signal (T); continue it with SIGCONT"
    ]
    begun_s = loop.now_s()
    until(loop, lambda: loop.now_s() > begun_s + 1.5)
    assert not child.why
    process.send_signal(signal.SIGCONT)
    until(loop, lambda: child.why)


def test_a_probe_that_is_killed_from_outside_is_tried_again_but_not_for_ever(loop: Loop) -> None:
    found: list[Any] = []
    again: list[str] = []
    made = prober(loop, found, again)
    death = WorkerExit(False, "SIGKILL", 0, "", "", "")
    for _ in range(8):
        assert not found
        made.worker_died(SimpleNamespace(), death)  # type: ignore[arg-type]
    assert again == ["SIGKILL"] * 7
    (fault,) = found
    assert isinstance(fault, OpenError)
    assert "died in stage idle: SIGKILL" in fault.text


@pytest.mark.parametrize(
    "death",
    [
        WorkerExit(True, "SIGSEGV", 0, "", "", ""),
        WorkerExit(False, "exit code 70", 0, "", "", "no module"),
    ],
)
def test_a_probe_that_dies_of_what_it_opens_is_not_tried_again(
    loop: Loop, death: WorkerExit
) -> None:
    found: list[Any] = []
    again: list[str] = []
    prober(loop, found, again).worker_died(SimpleNamespace(), death)  # type: ignore[arg-type]
    assert again == []
    (fault,) = found
    assert isinstance(fault, OpenError)


def test_the_next_probe_has_the_time_of_its_own_alone(loop: Loop) -> None:
    made = Prober(loop, "train", 1000.0, lambda answer: None, lambda cause: None)
    child: Any = Probed(os.getpid())
    child.word = 0
    made.worker_ready(child)
    for _ in range(5):
        loop.clock.now_s += 250.0
        loop.turn(0.0)
        made.worker_died(child, WorkerExit(False, "SIGKILL", 0, "", "", ""))
        assert made.doing(loop.now_s()) == []
        made.worker_ready(child)
        assert made.doing(loop.now_s()) == [
            "the worker that opens stream 'train' has been opening it for 0 s"
        ]
    assert child.why == ""
    made.worker_died(child, WorkerExit(False, "SIGKILL", 0, "", "", ""))


# -- hands


class Paper:
    """A template and a boss that remember; the template's workers are what the test makes of their
    sockets.
    """

    def __init__(self) -> None:
        self.pid, self.ready, self.stopped = 1, True, ""
        self.socks: list[int] = []
        self.events: list[tuple[str, Any]] = []

    def fork(self, worker: int, line: int, fds: tuple[int, ...], *, cluster: str) -> None:
        self.socks.append(os.dup(fds[0]))

    def reap(self, worker: int) -> None:
        self.events.append(("reap", worker))

    def worker_does(self, child: WorkerProcess, doing: str) -> None: ...

    def worker_ready(self, child: WorkerProcess) -> None:
        self.events.append(("ready", child.state))

    def worker_reported(self, child: WorkerProcess, message: Any) -> None:
        self.events.append(("said", message))

    def worker_died(self, child: WorkerProcess, death: WorkerExit) -> None:
        self.events.append(("died", death.cause))


@pytest.fixture
def forked(loop: Loop) -> Iterator[tuple[WorkerProcess, Paper, Channel]]:
    """A hand whose process has been asked for, and the worker's end of its socket."""
    board, paper = Scoreboard(4), Paper()
    setup = Setup((), "", "", 1, 0, "none")
    template: Any = paper
    child = WorkerProcess(
        loop,
        board,
        template,
        setup,
        1,
        "worker 1",
        listener=paper,
        gone=lambda child: None,
        log=lambda level, event, text, **_: None,
    )
    child.fork(1000.0)
    channel = Channel(socket.socket(fileno=paper.socks[0]), blocking=True)
    yield child, paper, channel
    child.close()
    channel.close()
    board.close()


def give(child: WorkerProcess, process: subprocess.Popen[bytes]) -> None:
    child.forked(process.pid, os.pidfd_open(process.pid))


def test_a_worker_that_is_killed_before_it_is_known_is_killed_when_it_is(
    loop: Loop, forked: tuple[WorkerProcess, Paper, Channel], process: subprocess.Popen[bytes]
) -> None:
    child, _, _ = forked
    child.kill("no need")
    assert child.state is ProcessState.FORKING
    give(child, process)
    until(loop, lambda: process.poll() is not None)
    assert process.returncode == -signal.SIGKILL


def test_nothing_of_a_worker_that_is_gone_is_watched(
    loop: Loop, forked: tuple[WorkerProcess, Paper, Channel], process: subprocess.Popen[bytes]
) -> None:
    child, _, _ = forked
    give(child, process)
    assert len(loop._watched) == 3  # its socket, its output, its end
    child.close()
    assert loop._watched == {}


def test_first_words_that_overtake_the_pidfd_wait_for_it(
    loop: Loop, forked: tuple[WorkerProcess, Paper, Channel], process: subprocess.Popen[bytes]
) -> None:
    child, paper, channel = forked
    channel.send(WorkerBooted())
    until(loop, lambda: child.was_ready)
    assert paper.events == []
    give(child, process)
    assert paper.events == [("ready", ProcessState.READY)]


def test_a_start_has_all_its_time_from_the_moment_that_the_process_is_there(
    loop: Loop,
    forked: tuple[WorkerProcess, Paper, Channel],
    process: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child, _, _ = forked
    killed: list[str] = []
    monkeypatch.setattr(child, "kill", lambda why, *, own_fault: killed.append(why))
    loop.clock.now_s += 900.0  # the template was slow to fork it
    give(child, process)
    loop.clock.now_s += 900.0
    loop.turn(0.0)
    assert killed == []
    loop.clock.now_s += 101.0
    loop.turn(0.0)
    assert killed == ["it was not ready after 1000 s"]


@pytest.mark.parametrize("words", [(WorkerBooted(), WorkerBooted()), (UnmapSegment(1),)])
def test_a_worker_that_speaks_out_of_turn_is_killed(
    loop: Loop,
    forked: tuple[WorkerProcess, Paper, Channel],
    process: subprocess.Popen[bytes],
    words: tuple[Any, ...],
) -> None:
    child, _, channel = forked
    give(child, process)
    for message in words:
        channel.send(message)
    until(loop, lambda: process.poll() is not None)
    assert process.returncode == -signal.SIGKILL


def test_an_order_to_a_worker_that_has_closed_its_socket_ends_that_worker_alone(
    loop: Loop, forked: tuple[WorkerProcess, Paper, Channel], process: subprocess.Popen[bytes]
) -> None:
    child, _, channel = forked
    give(child, process)
    channel.close()
    child.send(UnmapSegment(1))
    loop.clock.now_s += 1.0
    until(loop, lambda: process.poll() is not None)
    assert process.returncode == -signal.SIGKILL


def test_a_worker_that_has_said_why_it_ends_is_not_killed_for_the_socket_that_it_closes(
    loop: Loop,
    forked: tuple[WorkerProcess, Paper, Channel],
    process: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child, _, channel = forked
    killed: list[str] = []
    monkeypatch.setattr(child, "kill", lambda why, *, own_fault: killed.append(why))
    give(child, process)
    channel.receive()  # its Setup
    channel.send(WorkerFault("no such file"))
    channel.close()
    assert child._pipes is not None
    ours = child._pipes.channel.fileno()
    until(loop, lambda: ours not in loop._watched)
    loop.clock.now_s += 10.0
    loop.turn(0.0)
    assert killed == []


def test_a_dead_worker_of_whose_end_the_template_says_nothing_is_told_all_the_same(
    loop: Loop, forked: tuple[WorkerProcess, Paper, Channel], process: subprocess.Popen[bytes]
) -> None:
    child, paper, _ = forked
    give(child, process)
    process.kill()
    until(loop, lambda: child.state is ProcessState.DEAD)
    assert paper.events == [("reap", 1)]
    loop.clock.now_s += STATUS_S
    until(loop, lambda: child.state is ProcessState.GONE)
    assert [what for what, _ in paper.events] == ["reap", "died"]


# -- templates


class Persistent:
    """Whoever needs a template, and asks for the next one as soon as one is gone: after which
    pauses, and what was told of it.

    says: what each template says. command: the process that it is; its end is the template's.
    """

    def __init__(
        self, loop: Loop, *, command: str = "true", level: str = "none", boot_s: float = 1e6
    ) -> None:
        self.loop = loop
        self.command = command
        self.says: tuple[object, ...] = ()
        self.starts = 0
        self.pauses_s: list[float] = []
        self.hopeless: list[str] = []
        self.lines: list[tuple[str, str]] = []
        setup = Setup((), "", "", 1, 0, level)
        listener: Any = self  # it forks no workers
        self.template = ForkServer(
            loop,
            (),
            setup,
            "forkserver",
            listener,
            lambda level, event, text, **_: self.lines.append((level, text)),
            boot_s=boot_s,
        )

    def launch(self, *args: object, **options: object) -> Launched:
        self.starts += 1
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel = Channel(its, blocking=True)
        for message in self.says:
            channel.send(message)
        channel.close()
        read, write = os.pipe()
        os.close(write)
        return Launched(subprocess.Popen(self.command.split()), ours, read, os.memfd_create("dump"))

    def fork_server_ready(self) -> None: ...

    def fork_server_died(self) -> None:
        self.template.ensure()
        assert self.template._timer is not None
        self.pauses_s.append(self.template._timer.at_s - self.loop.now_s())

    def fork_server_failed(self, text: str) -> None:
        self.hopeless.append(text)

    def until_gone(self, times: int) -> None:
        """In no time: the clock goes on while no template is there."""

        def gone() -> bool:
            if not self.template.pid:
                self.loop.clock.now_s += 5.0
            return len(self.pauses_s) >= times

        until(self.loop, gone)
        self.template.close(DEADLINE_S)


def test_templates_that_come_to_nothing_are_started_after_longer_and_longer_pauses(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = Persistent(loop)
    monkeypatch.setattr("loaderd.engine.fork_server.launch", listener.launch)
    listener.template.ensure()
    listener.until_gone(times=len(BACKOFF_S) + 1)
    assert listener.pauses_s == pytest.approx([*BACKOFF_S[1:], BACKOFF_S[-1], BACKOFF_S[-1]])
    assert len(listener.hopeless) == len(listener.pauses_s) - (HOPELESS - 1)


def test_a_template_that_dies_after_it_was_ready_is_followed_by_the_next_one_at_once(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = Persistent(loop)
    listener.says = (ForkServerReady("none", 1),)
    monkeypatch.setattr("loaderd.engine.fork_server.launch", listener.launch)
    listener.template.ensure()
    listener.until_gone(times=5)
    assert listener.pauses_s == pytest.approx([0.0] * len(listener.pauses_s))
    assert listener.hopeless == []


@pytest.mark.parametrize(
    ("says", "levels", "reason"),
    [
        ((WorkerFault("no module"),), ["debug", "warning", "warning"], "no module"),
        ((), ["warning"] * 3, "no reason given"),
    ],
)
def test_user_code_that_no_template_can_import_is_left_to_the_workers_to_tell(
    loop: Loop,
    monkeypatch: pytest.MonkeyPatch,
    says: tuple[object, ...],
    levels: list[str],
    reason: str,
) -> None:
    listener = Persistent(loop)
    listener.says = says
    monkeypatch.setattr("loaderd.engine.fork_server.launch", listener.launch)
    listener.template.ensure()
    listener.until_gone(times=3)
    assert [level for level, _ in listener.lines] == levels
    assert all(text.endswith(f"): {reason}") for _, text in listener.lines)
    assert ["'user'" in text for _, text in listener.lines] == [True, False, False]


def test_a_template_that_is_killed_for_its_slowness_is_warned_of(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = Persistent(loop, command="sleep 1000", boot_s=50.0)
    monkeypatch.setattr("loaderd.engine.fork_server.launch", listener.launch)
    listener.template.ensure()

    def killed() -> bool:
        loop.clock.now_s += 10.0
        return bool(listener.lines)

    until(loop, killed)
    listener.template.close(DEADLINE_S)
    ((level, text),) = listener.lines
    assert level == "warning"
    assert "it was not ready after 50 s" in text


# -- stopwatch


def test_all_of_a_jobs_time_is_in_its_stages_once() -> None:
    begun_s = time.perf_counter()
    watch = Stopwatch()
    for stage in (Stage.READ, Stage.DECODE, Stage.TRANSFORM, Stage.WRITE) * 50:
        watch.enter(stage)
        until_s = time.perf_counter() + 1e-4
        while time.perf_counter() < until_s:
            pass
    spent = watch.seconds()
    assert sum(spent) <= time.perf_counter() - begun_s
    assert min(spent) >= 50 * 1e-4
