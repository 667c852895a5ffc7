"""What the scheduler wants done. The drivers do it, in order, and answer with events."""

from __future__ import annotations

from dataclasses import dataclass

from loaderd.core.jobs import Job
from loaderd_wire.errors import BadSample
from loaderd_wire.messages import Batch, Failure, Pulse


@dataclass(frozen=True, slots=True)
class Start:
    """Start worker `worker` not before now + delay_s. Answer: WorkerReady or WorkerDied."""

    worker: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class Send:
    """Hand this job to this worker. Answer: WorkerDone or WorkerDied."""

    worker: int
    job: Job


@dataclass(frozen=True, slots=True)
class Dump:
    """Have this worker write its stacks. Answer: Dumped, unless it dies before; they come with its WorkerDied, too."""

    worker: int


@dataclass(frozen=True, slots=True)
class Kill:
    worker: int
    why: str


@dataclass(frozen=True, slots=True)
class Retire:
    """Ask an idle worker to end. Answer: WorkerDied."""

    worker: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Put this in the session's outbox for ZeroMQ."""

    session: int
    message: Batch | Pulse | Failure


@dataclass(frozen=True, slots=True)
class Grow:
    """Reserve a larger segment for the session (`slots` of them). Answer: Grown or NotGrown."""

    session: int
    slots: int
    tail_row_bytes: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Drop:
    """No slot of this segment is leased, announced or being written any longer: unmap and forget it."""

    session: int
    segment: int


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A bad sample was met: one line for the quarantine log."""

    stream: str
    epoch: int
    sample: BadSample


@dataclass(frozen=True, slots=True)
class StreamBroken:
    """The stream serves nobody any longer; its sessions have been told. error: a class of errors, text: why."""

    stream: str
    error: str
    text: str


@dataclass(frozen=True, slots=True)
class CannotBoot:
    """A worker could not start before any ever did: the daemon must not say "ready". text: why, with the traceback."""

    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the log. level: "info", "warning" or "error"."""

    level: str
    text: str


Action = Start | Send | Dump | Kill | Retire | Tell | Grow | Drop | Quarantine | StreamBroken | CannotBoot | Note
