"""The command `loaderd`, run by tests in processes of its own, most of them forked.

See command_forks.py.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from loaderd_testing import command_forks, costs
from loaderd_testing.deadlines import DEADLINE_S

SERVING = (
    "loaderd.cli.serve",
    "loaderd.cli.status",
    "loaderd.cli.drain",
    "loaderd.engine.local",
    "loaderd.server.daemon",
)
READING = (
    "loaderd.cli.bench.processes",
    "loaderd.cli.check.all_samples",
    "loaderd.cli.check.one_sample",
    "loaderd.cli.inspect",
    "loaderd.cli.pack",
    "loaderd.cli.preview.page",
    "loaderd.cli.preview.sheet_cells",
    "loaderd.data.packing.inputs",
    "loaderd.data.pipeline.pipeline",
)
# what a command imports; any other has little to import
IMPORTS = {
    **dict.fromkeys(("serve", "status", "drain"), SERVING),
    **dict.fromkeys(("bench", "check", "inspect", "pack", "preview"), READING),
}
ANSWER_BYTES = 100


class Forks:
    """A process to fork commands from, seen from a test's process."""

    def __init__(self, modules: Iterable[str]) -> None:
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, command_forks.__file__, str(its.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                start_new_session=True,
            )

    def start(self, request: Mapping[str, Any], files: Iterable[int]) -> socket.socket:
        answers, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            message = json.dumps(request).encode()
            socket.send_fds(self._socket, [message], [*files, its.fileno()])
        return answers

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


_started: dict[tuple[str, ...], Forks] = {}


def begin() -> None:
    """Starts what commands are forked from: before the first test, which would have left it behind."""
    for modules in dict.fromkeys(IMPORTS.values()):
        _started[modules] = Forks(modules)


def end() -> None:
    while _started:
        _started.popitem()[1].close()


class Fork:
    """A command that was forked: what tests use of a subprocess.Popen."""

    def __init__(self, forks: Forks, args: tuple[str, ...], folder: Path, files: Files) -> None:
        self.args = args
        self.returncode: int | None = None
        request = {
            "args": args,
            "folder": str(folder),
            "env": dict(os.environ),
            "cpus": [*os.sched_getaffinity(0)],
        }
        self._answers = forks.start(request, files)
        said = self._answers.recv(ANSWER_BYTES)
        assert said, "the process to fork commands from has ended"
        self.pid: int = json.loads(said)

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(None if timeout is None else timeout * 1e3)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def _look(self, limit_ms: float | None) -> int | None:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._answers, select.POLLIN)
            if poll.poll(limit_ms):
                status, cpu_s = json.loads(self._answers.recv(ANSWER_BYTES))
                costs.add(cpu_s)
                self.returncode = os.waitstatus_to_exitcode(status)
                self._answers.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Command = Fork | subprocess.Popen[bytes]
Files = tuple[int, int, int]  # descriptors of stdin, stdout and stderr


def start(
    *args: str,
    folder: Path,
    files: Files,
    env: Mapping[str, str] | None = None,
    **more: Any,
) -> Command:
    """Start `loaderd ARGS`: a fork, unless it has little to import, or is not to be as we are.

    env: what its environment has beside ours. more: for subprocess.Popen.
    """
    forks = _started.get(IMPORTS.get(args[0], ()))
    if forks is not None and env is None and not more:
        return Fork(forks, args, folder, files)
    stdin, stdout, stderr = files
    return subprocess.Popen[bytes](
        [sys.executable, "-m", "loaderd", *args],
        cwd=folder,
        env={**os.environ, **(env or {})},
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        **more,
    )


def run(*args: str, folder: Path, stdin: str = "", **more: Any) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` returns of a command whose output it captures. more: as for start."""
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        given.write(stdin.encode())
        given.seek(0)
        files = (given.fileno(), out.fileno(), err.fileno())
        command = start(*args, folder=folder, files=files, **more)
        try:
            code = command.wait(DEADLINE_S)
        except BaseException:
            command.kill()
            command.wait()
            raise
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(args, code, out.read().decode(), err.read().decode())
