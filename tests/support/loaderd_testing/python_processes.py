"""Processes of Python that tests start: most are forked, see process_forks.py."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from loaderd_testing import costs, process_forks
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.leaks import KEPT_FDS, KEPT_PIDS
from loaderd_testing.witnesses import WITNESSES, parts, processes

SUPPORT = str(Path(__file__).parents[1])  # where the package of this file is found

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
TRAINING = ("loaderd_client.loader", "loaderd_testing.daemon_harness")
TORCH = ("torch", "torch.distributed.device_mesh", *TRAINING)
# what a command imports; any other has little to import
IMPORTS = {
    **dict.fromkeys(("serve", "status", "drain"), SERVING),
    **dict.fromkeys(("bench", "check", "inspect", "pack", "preview"), READING),
}
ANSWER_BYTES = 100
PIPES: dict[str, Any] = {
    "stdin": subprocess.PIPE,
    "stdout": subprocess.PIPE,
    "stderr": subprocess.PIPE,
    "text": True,
}


class Forks:
    """A process to fork others from, seen from a test's process."""

    def __init__(self, modules: Iterable[str]) -> None:
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, process_forks.__file__, str(its.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                start_new_session=True,
            )
        KEPT_FDS.add(self._socket.fileno())
        KEPT_PIDS.add(self._process.pid)

    def fork(self, request: object, files: Iterable[int]) -> socket.socket:
        """Where its pid, and in the end its wait status and processor time, can be received."""
        answers, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            message = json.dumps(request).encode()
            socket.send_fds(self._socket, [message], [*files, its.fileno()])
        return answers

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


_started: dict[tuple[str, ...], Forks] = {}


def _forks(modules: tuple[str, ...]) -> Forks:
    if modules not in _started:
        _started[modules] = Forks(modules)
    return _started[modules]


def end() -> None:
    """Ends what was forked from."""
    while _started:
        _started.popitem()[1].close()


class Fork(subprocess.Popen[Any]):
    """`python WORDS`, forked: no child of this process, and in a session of its own."""

    def __init__(self, forks: Forks, words: tuple[str, ...], **options: Any) -> None:
        self._forks = forks
        super().__init__(words, **options)

    def _execute_child(self, args: Any, *given: Any) -> None:
        cwd, pipes = given[4], given[9:15]
        request = {
            "words": args,
            "folder": str(cwd or Path.cwd()),
            "env": dict(os.environ),
            "cpus": [*os.sched_getaffinity(0)],
        }
        its = (pipes[0], pipes[3], pipes[5])  # the others are our ends of pipes
        files = [place if fd == -1 else fd for place, fd in enumerate(its)]
        self._answers = self._forks.fork(request, files)
        said = self._answers.recv(ANSWER_BYTES)
        assert said, "the process to fork from has ended"
        self.pid = json.loads(said)
        WITNESSES[self.pid] = self._plight
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]  # not in its stub

    def _plight(self) -> str:
        return parts(process=lambda: processes(self.pid)) if self.poll() is None else ""

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        return self._look(0)

    def _wait(self, timeout: float | None) -> int:
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
                WITNESSES.pop(self.pid, None)
        return self.returncode


def python(
    *words: str,
    imports: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Start `python WORDS`.

    words: ("-m", module, ...) or ("-c", code, ...).
    imports: SERVING, READING, TRAINING or TORCH: it is forked where these have been imported, unless it
        is to have what an import may go by.
    env: what its environment has beside ours.
    options: of subprocess.Popen.
    """
    if not imports or env is not None or {"pass_fds", "preexec_fn"} & options.keys():
        return subprocess.Popen(
            [sys.executable, *words], env={**os.environ, **(env or {})}, **options
        )
    return Fork(_forks(imports), words, **options)


def command(*args: str, **options: Any) -> subprocess.Popen[Any]:
    """Start `loaderd ARGS`. options: as for `python`."""
    return python("-m", "loaderd", *args, imports=IMPORTS.get(args[0], ()), **options)


def run(*args: str, stdin: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` returns of `loaderd ARGS`, whose output it captures."""
    return _finished(command(*args, **PIPES, **options), stdin)


def run_code(code: str, imports: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` returns of `python -c CODE`, whose output it captures."""
    return _finished(python("-c", code, imports=imports, **PIPES), "")


def _finished(process: subprocess.Popen[str], stdin: str) -> subprocess.CompletedProcess[str]:
    with process:
        try:
            out, err = process.communicate(stdin, timeout=DEADLINE_S)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
