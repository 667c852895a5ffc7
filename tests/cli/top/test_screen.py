"""`loaderd top` in a terminal, which pyte is, beside a daemon whose answers the test chooses."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyte
import pytest

from cli.test_status import STATUS
from loaderd.server.status_report import DaemonStatus
from loaderd_testing.deadlines import DEADLINE_S, until
from loaderd_wire import codec
from loaderd_wire.messages import Ask, Report


class Daemon:
    """Answers whoever asks, until it is closed."""

    def __init__(self, path: Path, status: DaemonStatus) -> None:
        self.status, self.asked = status, list[str]()
        self._path, self._listener = path, socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._closing = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            peer, _ = self._listener.accept()
            if self._closing:
                peer.close()
                return
            with peer, contextlib.suppress(ConnectionError):  # who did not wait is gone
                buffer = bytearray(peer.recv(1 << 16))
                if not buffer:
                    continue
                ask = codec.unframe(buffer)
                assert isinstance(ask, Ask)
                self.asked.append(ask.what)
                body = self.status.to_json() if ask.what == "status" else "{}"
                peer.sendall(codec.frame(Report(body)))

    def close(self) -> None:
        self._path.rename(f"{self._path}.gone")
        self._closing = True
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(f"{self._path}.gone")
            self._thread.join(DEADLINE_S)
        self._listener.close()


class Terminal:
    """A pty with `loaderd top` in it."""

    def __init__(self, target: Path, columns: int, lines: int, *before: str) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self._fd, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.before = termios.tcgetattr(inner)
        # COLUMNS and LINES, which pytest-xdist sets, would go before the size of the terminal
        sized = ("COLUMNS", "LINES")
        environment = {name: text for name, text in os.environ.items() if name not in sized}
        environment["TERM"] = "xterm"
        self.inner = inner
        self.raw = bytearray()
        self.process = subprocess.Popen(
            [*before, sys.executable, "-m", "loaderd", "top", str(target), "--interval", "0.1"],
            stdin=inner, stdout=inner, stderr=inner, start_new_session=True, env=environment,
        )  # fmt: skip

    def shows(self, text: str) -> None:
        def there() -> bool:
            self.fed()
            return any(text in line for line in self.screen.display)

        until(f"{text!r} on the screen", there)

    def fed(self) -> bool:
        """Draw what has come by now; always true."""
        if select.select([self._fd], [], [], 0.05)[0]:
            self._feed()
        return True

    def is_as_it_was(self) -> None:
        assert self.raw.rfind(b"\x1b[?1049l") > self.raw.rfind(b"\x1b[?1049h")  # the first screen
        assert self.raw.rfind(b"\x1b[?25h") > self.raw.rfind(b"\x1b[?25l")  # with its cursor
        assert termios.tcgetattr(self.inner) == self.before

    def _feed(self) -> None:
        data = os.read(self._fd, 1 << 16)
        self.raw += data
        self._stream.feed(data)

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def end(self) -> int:
        code = None
        while code is None:
            self.fed()
            code = self.process.poll()
        while select.select([self._fd], [], [], 0)[0]:
            self._feed()
        self.is_as_it_was()
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.inner)
        os.close(self._fd)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path / "d.sock", STATUS)
    yield made
    made.close()


def test_keys_reach_the_page_and_a_restarted_daemon_is_followed(
    tmp_path: Path, daemon: Daemon
) -> None:
    terminal = Terminal(tmp_path / "d.sock", 80, 24)
    try:
        terminal.shows("read-bound: the trainer waits 60% of the time")
        terminal.shows("q quit")
        assert len(terminal.screen.display) == 24
        terminal.type("s")
        terminal.shows("sample (by seconds)")
        terminal.type("\r")
        terminal.shows("worker 1: train decode")
        until("the question", lambda: "stack 1" in daemon.asked)
        (first, *others) = STATUS.workers
        taken = replace(first, work=replace(first.work, stack="File cats.py, line 3"))
        daemon.status = replace(STATUS, workers=(taken, *others))
        terminal.shows("File cats.py, line 3")
        daemon.status = replace(STATUS, pid=8)
        terminal.shows("the daemon was restarted: pid 7 is now 8")
        terminal.type("q")
        assert terminal.end() == 0
    finally:
        terminal.close()


def test_a_daemon_that_leaves_is_told_and_ctrl_c_leaves_the_terminal_as_it_was(
    tmp_path: Path,
) -> None:
    daemon = Daemon(tmp_path / "d.sock", STATUS)
    terminal = Terminal(tmp_path / "d.sock", 120, 40)
    try:
        terminal.shows("     16 ")
        daemon.close()
        terminal.shows("no daemon is running at")
        os.kill(terminal.process.pid, signal.SIGINT)
        assert terminal.end() == 130
    finally:
        terminal.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_it_leaves_the_terminal_as_it_was(
    tmp_path: Path, daemon: Daemon, number: signal.Signals
) -> None:
    terminal = Terminal(tmp_path / "d.sock", 80, 24)
    try:
        terminal.shows("q quit")
        os.kill(terminal.process.pid, number)
        assert terminal.end() == 128 + number
    finally:
        terminal.close()


# a shell of which the terminal is; it gives a job that has stopped another turn for each line
SHELL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
jobs = '"$@"; while [ $? -gt 128 ]; do echo it has "stopped"; read line; fg >/dev/null; done'
os.execvp("sh", ["sh", "-mc", jobs, "sh", *sys.argv[1:]])
"""


def test_ctrl_z_gives_the_terminal_back_and_it_draws_again_when_it_goes_on(
    tmp_path: Path, daemon: Daemon
) -> None:
    terminal = Terminal(tmp_path / "d.sock", 80, 24, sys.executable, "-c", SHELL)
    try:
        terminal.shows("q quit")
        terminal.type("s")
        for _ in range(2):
            terminal.shows("sample (by seconds)")
            terminal.type("\x1a")
            terminal.shows("it has stopped")
            terminal.is_as_it_was()
            terminal.screen.reset()
            terminal.type("\n")
        terminal.shows("sample (by seconds)")
        terminal.type("q")
        assert terminal.end() == 0
    finally:
        terminal.close()


def test_one_that_was_stopped_by_force_draws_again(tmp_path: Path, daemon: Daemon) -> None:
    terminal = Terminal(tmp_path / "d.sock", 80, 24)
    try:
        terminal.shows("q quit")
        os.kill(terminal.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, terminal.process.pid, os.WSTOPPED)
        drawn = len(terminal.raw)
        os.kill(terminal.process.pid, signal.SIGCONT)
        until("the screen", lambda: terminal.fed() and b"\x1b[?1049h" in terminal.raw[drawn:])
        terminal.type("q")
        assert terminal.end() == 0
    finally:
        terminal.close()


def test_without_a_terminal_it_prints_plain_blocks_of_whole_lines(
    tmp_path: Path, daemon: Daemon
) -> None:
    daemon.status = replace(STATUS, config="/" + "long" * 100)
    sized = {name: text for name, text in os.environ.items() if name != "COLUMNS"}
    top = subprocess.Popen(
        [sys.executable, "-m", "loaderd", "top", str(tmp_path / "d.sock"), "--interval", "0.1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=sized,
    )  # fmt: skip
    assert top.stdout is not None
    assert top.stderr is not None
    try:
        with top.stdout, top.stderr:
            blocks, whole = 0, False
            for line in top.stdout:
                assert "\033" not in line
                blocks += line.startswith("loaderd 1  ready")
                whole = whole or line == f"config   {daemon.status.config}\n"
                if blocks == 2:
                    break
            assert whole
            top.send_signal(signal.SIGINT)
            assert top.wait(DEADLINE_S) == 130
            assert top.stderr.read() == ""
    finally:
        top.kill()
        top.wait()
