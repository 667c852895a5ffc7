"""What the engine and the fork server say to each other of processes."""

from __future__ import annotations

from dataclasses import dataclass

# -- engine -> fork server


@dataclass(frozen=True, slots=True)
class Fork:
    """Make a worker.

    With this come the descriptors of its socket, the scoreboard, its output pipe and its stack
    dump, in this order.

    Attributes:
        worker: Its number.
        line: Its line on the scoreboard.
        cluster: Address of the Ray cluster, if it stands for one on another host; "" else.
    """

    worker: int
    line: int
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class Reap:
    """The engine holds the pidfd and has seen it dead: wait for it. Answer: ChildEnded."""

    worker: int


@dataclass(frozen=True, slots=True)
class Quit:
    """Kill and reap every child and orphan, then leave."""


# -- fork server -> engine


@dataclass(frozen=True, slots=True)
class ForkServerReady:
    """The fork server can fork.

    Attributes:
        preloaded: As Setup.preload, what it came to.
        threads: Of the fork server, 1 unless something is very wrong.
    """

    preloaded: str
    threads: int


@dataclass(frozen=True, slots=True)
class Forked:
    """Worker `worker` is process `pid`; its pidfd comes with this."""

    worker: int
    pid: int


@dataclass(frozen=True, slots=True)
class NotForked:
    """Worker `worker` could not be made; `text` says why."""

    worker: int
    text: str


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """Worker `worker` is reaped; status as of os.waitpid."""

    worker: int
    status: int
