"""How each fault of the plan is done, and undone."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import zmq

from faults.storm.faults import Fault
from faults.storm.processes import cont, family, signal_all

if TYPE_CHECKING:
    from faults.storm.storm import Seat, Storm

T = TypeVar("T")
# how long after its own stop or death a trainer says nothing about a fault elsewhere
RESUMING_S = 6.0


def strike(storm: Storm, fault: Fault) -> None:
    """Do it, if there is somebody to do it to, and note it in the tally."""
    at_s = time.monotonic()
    if STRIKES[fault.kind](storm, fault):
        storm.tally.struck(fault.kind, at_s, storm.seats)


def _pick(many: list[T], where: float) -> list[T]:
    return many[int(where * len(many)) :][:1]


def _later(storm: Storm, fault: Fault, lift: Callable[[], object]) -> None:
    storm.lifts.append((time.monotonic() + fault.lasts_s, lift))


def _kill(storm: Storm, fault: Fault, *, who: str) -> bool:
    templates, workers = family(storm.pid)
    victims = {"worker": _pick(workers, fault.where), "workers": workers, "template": templates}[
        who
    ]
    storm.seen.update(victims)
    signal_all(victims, signal.SIGKILL)
    return bool(victims)


def _stop(storm: Storm, fault: Fault, *, who: str) -> bool:
    templates, workers = family(storm.pid)
    victims = {
        "worker": _pick(workers, fault.where),
        "template": templates,
        "daemon": [storm.pid],
        "all": [storm.pid, *templates, *workers],
    }[who]
    signal_all(victims, signal.SIGSTOP)
    _later(storm, fault, functools.partial(cont, victims[::-1]))
    return bool(victims)


def _token(storm: Storm, fault: Fault, *, what: str) -> bool:
    (storm.config.parent / f"token-{what}").touch()
    return True


def _seat(storm: Storm, fault: Fault) -> list[Seat]:
    return _pick([seat for seat in storm.seats if seat.process is not None], fault.where)


def _kill_trainer(storm: Storm, fault: Fault) -> bool:
    for seat in _seat(storm, fault):
        assert seat.process is not None
        seat.process.kill()
        seat.away.append((time.monotonic(), time.monotonic() + RESUMING_S))
        return True
    return False


def _stop_trainer(storm: Storm, fault: Fault) -> bool:
    for seat in _seat(storm, fault):
        assert seat.process is not None
        victim = [seat.process.pid]
        signal_all(victim, signal.SIGSTOP)
        seat.away.append((time.monotonic(), time.monotonic() + fault.lasts_s + 1))
        _later(storm, fault, functools.partial(cont, victim))
        return True
    return False


def _change(storm: Storm, fault: Fault) -> bool:
    for seat in _seat(storm, fault):
        seat.leave()
        seat.away.append((time.monotonic(), time.monotonic() + RESUMING_S))
        return True
    return False


def _no_fds(storm: Storm, fault: Fault, *, who: str) -> bool:
    """RLIMIT_NOFILE of a running process goes down to just above what it has open, while newcomers
    and deaths ask it for more.

    One descriptor is left for each trainer: the daemon has counted those of a session before it
    lets it in, and libzmq ends the process that it accepts the session's connection in without one
    (no EMFILE is handled in its IPC listener).
    """
    if not storm.serving:
        return False
    templates, workers = family(storm.pid)
    victim = storm.pid if who == "daemon" else next(iter(templates), 0)
    try:
        top = max(int(fd) for fd in os.listdir(f"/proc/{victim}/fd"))
        _, hard = resource.prlimit(victim, resource.RLIMIT_NOFILE)
        resource.prlimit(victim, resource.RLIMIT_NOFILE, (top + 1 + len(storm.seats), hard))
    except (OSError, ValueError):  # it is dead just now
        return False

    def lift() -> None:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(victim, resource.RLIMIT_NOFILE, (hard, hard))

    _later(storm, fault, lift)
    signal_all(_pick(workers, fault.where), signal.SIGKILL)
    _kill_trainer(storm, fault)
    return True


def _no_room(storm: Storm, fault: Fault) -> bool:
    storm.hogs.append(
        storm.program(
            "faults.storm.trainer",
            json.dumps(
                {"hog": True, "socket": str(storm.socket), "lasts_s": fault.lasts_s, "name": "hog"}
            ),
        )
    )
    return True


def _garbage(storm: Storm, fault: Fault) -> bool:
    for text in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 5000, b"\4\0\0\0\x93\1\2\3"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(1)
            raw.connect(str(storm.socket))
            raw.sendall(text)
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 200
        dealer.connect(f"ipc://{storm.socket}.zmq")
        for i in range(50):
            with contextlib.suppress(zmq.Again):
                dealer.send(bytes([i]) * 300, zmq.NOBLOCK)
    return True


def _silent(storm: Storm, fault: Fault) -> bool:
    crowd: list[socket.socket] = []
    for _ in range(100):
        raw = socket.socket(socket.AF_UNIX)
        raw.setblocking(False)
        with contextlib.suppress(OSError):
            raw.connect(str(storm.socket))
        crowd.append(raw)
    _later(storm, fault, lambda: [raw.close() for raw in crowd])
    return True


def _end_daemon(storm: Storm, fault: Fault, *, number: int) -> bool:
    if number == signal.SIGTERM and not storm.serving:
        return False
    signal_all([storm.pid], number)
    return True


STRIKES: dict[str, Callable[[Storm, Fault], bool]] = {
    "kill a worker": functools.partial(_kill, who="worker"),
    "kill all workers": functools.partial(_kill, who="workers"),
    "kill the template": functools.partial(_kill, who="template"),
    "stop a worker": functools.partial(_stop, who="worker"),
    "stop the template": functools.partial(_stop, who="template"),
    "stop the daemon": functools.partial(_stop, who="daemon"),
    "stop everything that serves": functools.partial(_stop, who="all"),
    "a worker dies in a sample": functools.partial(_token, what="die"),
    "a worker aborts in a sample": functools.partial(_token, what="abort"),
    "a sample is slow": functools.partial(_token, what="slow"),
    "kill a trainer": _kill_trainer,
    "stop a trainer": _stop_trainer,
    "a trainer leaves, another comes": _change,
    "no file descriptors for the daemon": functools.partial(_no_fds, who="daemon"),
    "no file descriptors for the template": functools.partial(_no_fds, who="template"),
    "no room for segments": _no_room,
    "garbage on the sockets": _garbage,
    "silent connections": _silent,
    "kill the daemon": functools.partial(_end_daemon, number=signal.SIGKILL),
    "drain the daemon": functools.partial(_end_daemon, number=signal.SIGTERM),
}
