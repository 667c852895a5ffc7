"""What a process is after it has become a worker, and what its children are."""

from __future__ import annotations

import ctypes
import io
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loaderd.system.processes import DUMP_SIGNAL
from loaderd.worker import process_setup
from loaderd.worker.process_setup import (
    IGNORED,
    become_worker,
    disarm_children,
    dump_no_stacks,
    flush_output,
    ignore_signals,
    pin_native_threads,
)


def in_child(tell: Callable[[], Any]) -> Any:
    """What `tell` returns in a forked process, through JSON."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, json.dumps(tell()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        text = told.read()
    assert os.waitpid(pid, 0) == (pid, 0)
    return json.loads(text)


def prctl(option: int) -> int:
    value = ctypes.c_int(-1)
    assert ctypes.CDLL(None).prctl(option, ctypes.byref(value), 0, 0, 0) == 0
    return value.value


def test_a_worker_is_known_by_its_name_and_group_and_goes_with_its_parent(tmp_path: Path) -> None:
    parent = os.getpid()

    def tell() -> dict[str, Any]:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
        output = os.open(tmp_path / "output", os.O_WRONLY | os.O_CREAT)
        become_worker(parent, output, os.open(tmp_path / "dump", os.O_WRONLY | os.O_CREAT))
        print("printed")
        os.write(2, b"by C code\n")
        signal.raise_signal(DUMP_SIGNAL)
        return {
            "group": os.getpgid(0) == os.getpid(),
            "name": Path("/proc/self/comm").read_text(),
            "dies with its parent": prctl(2) == signal.SIGKILL,  # PR_GET_PDEATHSIG
            "adopts orphans": prctl(37),  # PR_GET_CHILD_SUBREAPER
            "dies first for memory": Path("/proc/self/oom_score_adj").read_text(),
            "stdin": sys.stdin.read(),
            "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            "output is left open": os.path.exists(f"/proc/self/fd/{output}"),
        }

    assert in_child(tell) == {
        "group": True,
        "name": "loaderd-worker\n",
        "dies with its parent": True,
        "adopts orphans": 1,
        "dies first for memory": "1000\n",
        "stdin": "",
        "mask": [],
        "output is left open": False,
    }
    assert (tmp_path / "output").read_text() == "printed\nby C code\n"
    assert "in tell" in (tmp_path / "dump").read_text()


def test_signals_that_end_other_processes_do_nothing_to_a_worker() -> None:
    def tell() -> list[int]:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        ignore_signals()
        for number in IGNORED:
            signal.raise_signal(number)
        return [signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL, len(IGNORED)]

    assert in_child(tell) == [True, 5]


def test_a_child_of_a_workers_has_neither_its_socket_nor_its_way_with_signals() -> None:
    ours, other = socket.socketpair()

    def tell() -> Any:
        ignore_signals()
        mine = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        disarm_children(ours)
        found = in_child(
            lambda: [
                ours.fileno(),
                signal.getsignal(signal.SIGINT) is signal.default_int_handler,
                [signal.getsignal(one) == signal.SIG_DFL for one in IGNORED[1:4]],
                signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN,  # user code's own
            ]
        )
        return [found, ours.fileno() >= 0, mine is process_setup._nothing]

    assert in_child(tell) == [[-1, True, [True, True, True], True], True, True]
    ours.close()
    other.close()


def test_without_dumps_the_signal_is_as_it_was(tmp_path: Path) -> None:
    def tell() -> bool:
        with (tmp_path / "dump").open("w") as file:
            process_setup.dump_stacks(os.dup(file.fileno()))
        dump_no_stacks()
        return signal.getsignal(DUMP_SIGNAL) == signal.SIG_DFL

    assert in_child(tell)
    assert (tmp_path / "dump").read_text() == ""


def test_what_user_code_made_of_its_output_keeps_nothing_from_being_flushed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Counted(io.StringIO):
        flushed = 0

        def flush(self) -> None:
            self.flushed += 1

    broken, kept = io.StringIO(), Counted()
    broken.close()
    for out, err in ((broken, kept), (None, kept), (kept, broken)):
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        flush_output()
    assert kept.flushed == 3


@pytest.mark.parametrize(
    ("environment", "torch_threads", "told"),
    [("1", 4, [0, 1]), ("1", 1, [0]), ("2", 4, []), (None, 4, [])],
)
def test_native_libraries_have_one_thread_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, environment: str | None, torch_threads: int, told: list[int]
) -> None:
    said: list[int] = []
    cv2 = SimpleNamespace(setNumThreads=said.append)
    torch = SimpleNamespace(set_num_threads=said.append, get_num_threads=lambda: torch_threads)
    monkeypatch.setitem(sys.modules, "cv2", cv2)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if environment is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", environment)
    pin_native_threads()
    assert said == told


def test_libraries_that_are_not_loaded_or_only_half_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("cv2", "torch"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    pin_native_threads()
    for name in ("cv2", "torch"):
        monkeypatch.delitem(sys.modules, name)
    pin_native_threads()
    assert not {"cv2", "torch"} & sys.modules.keys()
