"""What makes a process a worker.

Whose child it is, what it ignores, where its output and its stack dumps go, how many threads it
has.

User code runs here, so everything that a child forked by user code must not inherit is undone in
that child.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import signal
import socket
import sys
from typing import Any

from loaderd.system.processes import (
    DUMP_SIGNAL,
    adopt_orphans,
    die_first_for_memory,
    die_with_parent,
    set_name,
)

IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def _nothing(number: int, frame: object) -> None:
    """A handler that ends with exec.

    SIG_IGN would live on in every program that user code runs.
    """


def ignore_signals() -> None:
    """Ignore signals that are meant for others; programs that this process runs do not."""
    for number in IGNORED:
        signal.signal(number, _nothing)
        signal.siginterrupt(number, False)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _restore_signals() -> None:
    for number in IGNORED:
        if signal.getsignal(number) is _nothing:
            signal.signal(
                number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            )


def become_worker(parent: int, output: int, dump: int) -> None:
    """Take on a worker's role in a process that `parent` (a pid) made.

    The descriptors output and dump are used up.

    Its own process group, so that what it starts can be killed with it; orphans below it stay below
    it, so that when it ends they all come to the fork server at once. `dump` gets every thread's
    stack on DUMP_SIGNAL and when it crashes.
    """
    with contextlib.suppress(PermissionError):  # the fork server was quicker
        os.setpgid(0, 0)
    die_with_parent(parent)
    adopt_orphans()
    die_first_for_memory()
    set_name("loaderd-worker")
    ignore_signals()
    _redirect(output)
    dump_stacks(dump)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def dump_stacks(dump: int) -> None:
    """From now on every thread's stack goes to this descriptor, on DUMP_SIGNAL and in a crash.

    System calls go on after the signal, except those that the kernel never takes up again
    (nanosleep, select, poll): Python's own calls of these wait on, C code's return early. So nobody
    is asked without need.
    """
    faulthandler.enable(dump, all_threads=True)
    faulthandler.register(DUMP_SIGNAL, dump, all_threads=True, chain=False)


def dump_no_stacks() -> None:
    """Undo dump_stacks: its descriptor may be closed."""
    faulthandler.unregister(DUMP_SIGNAL)
    faulthandler.disable()


def _redirect(output: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if output > 2:
        os.close(output)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long as the process
    text: Any = {"buffering": 1, "encoding": "utf-8", "errors": "backslashreplace"}
    sys.stdout = open(1, "w", closefd=False, **text)  # noqa: SIM115 - as long as the process
    sys.stderr = open(2, "w", closefd=False, **text)  # noqa: SIM115


def disarm_children(sock: socket.socket) -> None:
    """A child that user code forks has neither the worker's socket nor its way with signals."""

    def in_child() -> None:
        sock.close()
        _restore_signals()

    os.register_at_fork(after_in_child=in_child)


def flush_output() -> None:
    """Send out what user code printed without an end of line.

    Whatever it did to sys.stdout is its own affair.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: BLE001 - user code may have put anything there, or have closed it
            continue


def pin_native_threads() -> None:
    """One thread for OpenCV and torch, as far as they are loaded.

    A number that the user's environment sets is left alone.
    """
    if os.environ.get("OMP_NUM_THREADS") != "1":
        return
    cv2: Any = sys.modules.get("cv2")
    if cv2 is not None and hasattr(cv2, "setNumThreads"):
        cv2.setNumThreads(0)
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "set_num_threads") and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


def tell_torch(place: int, num_workers: int, seed: int, dataset: object) -> None:
    """Make torch.utils.data.get_worker_info() answer, if torch is loaded.

    seed is the same in all workers: samples are seeded one by one.
    """
    if "torch.utils.data" not in sys.modules:
        return
    worker: Any = importlib.import_module("torch.utils.data._utils.worker")
    worker._worker_info = worker.WorkerInfo(
        id=place, num_workers=num_workers, seed=seed, dataset=dataset
    )
