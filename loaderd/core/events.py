"""What the scheduler is told. Every event comes with now_s, a monotonic clock that stands still while the loop does."""

from __future__ import annotations

from dataclasses import dataclass

from loaderd.core.jobs import Done
from loaderd.core.streams import StreamRules
from loaderd_wire.messages import Progress, Segment
from loaderd_wire.slices import Shape


@dataclass(frozen=True, slots=True)
class Opened:
    """A stream that nobody had asked for until now, or that has no session and has been opened anew, since its data changed: from here on sessions may attach to it."""

    rules: StreamRules


@dataclass(frozen=True, slots=True)
class Attach:
    """A client is admitted and `segment` is reserved for it. It has no plan until its first Progress."""

    session: int
    stream: str
    shape: Shape
    seed: int
    prefetch: int
    segment: Segment


@dataclass(frozen=True, slots=True)
class Detach:
    """The client's control socket is at its end."""

    session: int


@dataclass(frozen=True, slots=True)
class Told:
    """A Progress of this session arrived on ZeroMQ. It may be a lie, late, repeated, or of a session that is gone."""

    session: int
    progress: Progress


@dataclass(frozen=True, slots=True)
class Grown:
    """The larger segment that was asked for by Grow is reserved and on its way to the client."""

    session: int
    segment: Segment


@dataclass(frozen=True, slots=True)
class NotGrown:
    """It cannot be had; `text` says why, with numbers."""

    session: int
    text: str


@dataclass(frozen=True, slots=True)
class WorkerReady:
    worker: int


@dataclass(frozen=True, slots=True)
class Booting:
    """What a worker, or the template that it waits for, does before it is ready: "importing mypkg.aug (call of stream 'train')"."""

    worker: int
    doing: str


@dataclass(frozen=True, slots=True)
class WorkerDone:
    """other_code: not empty if users' code made this, of which the worker has imported something else than others have: what that is."""

    worker: int
    done: Done
    other_code: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """A worker as last looked at. word: its scoreboard stamp. key: the sample's name stamped with it, "" if unknown.

    paused: stopped by a signal or a debugger. anon_bytes: RssAnon + VmSwap; 0 not looked at. starved: the loop itself did not run
    since the last look. Time in which a worker was paused or starved counts for nothing.
    """

    worker: int
    word: int
    key: str
    paused: bool
    anon_bytes: int
    starved: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """The timer while jobs run: every running worker, read from the scoreboard."""

    seen: tuple[Seen, ...]


@dataclass(frozen=True, slots=True)
class Dumped:
    """The answer to a Dump: the stacks of all threads; "" if there is nobody yet who could write them."""

    worker: int
    stack: str


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """Its pidfd is readable: it will never write again. Nothing else means dead.

    own: the process died of its own doing (SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, an exit, or SIGKILL while the cgroup's
    oom_kill count rose). cause: "SIGSEGV", "exit code 3", "SIGKILL (out of memory)", ... seen: its last stamp. stack: its dump, if any.
    boot: not empty if it could not start: the traceback.
    """

    worker: int
    own: bool
    cause: str
    seen: Seen
    stack: str
    boot: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Finish: nothing new is made; what was announced stays valid."""


Event = Opened | Attach | Detach | Told | Grown | NotGrown | Booting | WorkerReady | WorkerDone | Look | Dumped | WorkerDied | Drain
