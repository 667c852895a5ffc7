"""What a daemon owes to whoever looks after its process.

It hears signals, tells systemd that it turns, and is a container's init.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Mapping

from loaderd.engine.base import Engine
from loaderd.system import processes, systemd
from loaderd.system.logs import WriteLog
from loaderd.system.loop import Loop

# what a scheduler sends to all of a job, for the trainer to save its state
TRAINERS = (signal.SIGUSR1, signal.SIGUSR2)


def take_up(loop: Loop, engine: Engine, env: Mapping[str, str]) -> None:
    """Reap orphans as process 1, and feed systemd's watchdog if it has one.

    Args:
        loop: Calls whatever is here.
        engine: Whose processes are no orphans: it waits for them itself.
        env: The environment.
    """
    if os.getpid() == 1:
        loop.on_signal(signal.SIGCHLD, lambda: processes.reap_others(engine.status().pids))
    if every_s := systemd.watchdog_s(env, os.getpid()):
        _feed(loop, env, every_s)


def watch_signals(
    loop: Loop, embedded: bool, signalled: Callable[[int], object], log: WriteLog
) -> None:
    """Hear signals that ask for the end, and ignore those that are for trainers.

    Args:
        loop: Calls `signalled`.
        embedded: The daemon leaves with its last user, not with an interrupted cell of a notebook.
        signalled: Called with the number of a signal that asks for the end.
        log: Takes a line for each that is ignored.
    """
    drains: list[signal.Signals] = [signal.SIGTERM, signal.SIGHUP]
    ignored: list[signal.Signals] = list(TRAINERS)
    (ignored if embedded else drains).append(signal.SIGINT)
    for number in drains:
        loop.on_signal(number, functools.partial(signalled, number))
    for number in ignored:
        text = f"{number.name} is ignored: it is meant for the training script"
        loop.on_signal(number, functools.partial(log, "info", "signal_ignored", text))


def _feed(loop: Loop, env: Mapping[str, str], every_s: float) -> None:
    """Tell systemd that the loop turns: it restarts a daemon whose loop stands still."""
    systemd.notify("WATCHDOG=1", env)
    loop.later(every_s, functools.partial(_feed, loop, env, every_s))
