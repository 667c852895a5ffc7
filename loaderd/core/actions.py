"""What the scheduler wants done. The daemon does it, in order, and answers with events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loaderd.core.jobs import Job
from loaderd_wire.errors import BadSample
from loaderd_wire.messages import Descriptor, Failure, Pulse


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a worker. Answered by WorkerReady or WorkerDied.

    Attributes:
        worker: Its number. No other worker ever has it.
        delay_s: It must not start before this many seconds have passed.
        remote: It is to work on another host.
    """

    worker: int
    delay_s: float
    remote: bool = False


@dataclass(frozen=True, slots=True)
class SendJob:
    """Give a job to a worker. Answered by WorkerDone or WorkerDied.

    Attributes:
        worker: Number of the worker.
        job: The job.
    """

    worker: int
    job: Job


@dataclass(frozen=True, slots=True)
class DumpStack:
    """Have a worker write the stacks of its threads.

    Answered by StackDumped, unless it dies before. A WorkerDied brings the stacks, too.

    Attributes:
        worker: Number of the worker.
    """

    worker: int


@dataclass(frozen=True, slots=True)
class KillWorker:
    """Kill a worker and its process group. Answered by WorkerDied.

    Attributes:
        worker: Number of the worker.
        why: For the log.
    """

    worker: int
    why: str


@dataclass(frozen=True, slots=True)
class RetireWorker:
    """Ask an idle worker to end. Answered by WorkerDied.

    Attributes:
        worker: Number of the worker.
    """

    worker: int


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send a message to a client.

    Attributes:
        session: Number of its session.
        message: The message.
    """

    session: int
    message: Descriptor | Pulse | Failure


@dataclass(frozen=True, slots=True)
class GrowSegment:
    """Reserve a larger segment for a session. Answered by SegmentGrown or GrowFailed.

    Attributes:
        session: Number of the session, or of the group.
        slots: How many slots it must have.
        tail_row_bytes: Bytes of a slot's tail for each row.
        body_bytes: Bytes of a slot's body, in a collated stream; else 0.
    """

    session: int
    slots: int
    tail_row_bytes: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class FreeSegment:
    """Free a segment: none of its slots is leased, announced or being written any longer.

    Attributes:
        session: Number of the session, or of the group.
        segment: Number of the segment.
    """

    session: int
    segment: int


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Write a bad sample to the quarantine log.

    Attributes:
        stream: Name of the stream.
        epoch: The epoch in which it was met.
        sample: The sample, and what is wrong with it.
        picture: The bytes of its image, as they are stored; b"" where there are none to show.
    """

    stream: str
    epoch: int
    sample: BadSample
    picture: bytes = b""


@dataclass(frozen=True, slots=True)
class StreamBroken:
    """A stream has ended on a fault. Its clients have been told.

    Attributes:
        stream: Name of the stream.
        error: Name of a class in `loaderd_wire.errors`.
        text: Why.
    """

    stream: str
    error: str
    text: str


@dataclass(frozen=True, slots=True)
class CannotBoot:
    """A worker could not start, and none ever did: the daemon must not become ready.

    Attributes:
        text: Why, with the traceback.
    """

    text: str


@dataclass(frozen=True, slots=True)
class LogLine:
    """Write a line to the log.

    Attributes:
        level: "info", "warning" or "error".
        event: Name of what has happened.
        text: The line.
        facts: Names and values of what it is about.
    """

    level: str
    event: str
    text: str
    facts: Mapping[str, str | int] = field(default_factory=dict[str, "str | int"])


Action = (
    StartWorker
    | SendJob
    | DumpStack
    | KillWorker
    | RetireWorker
    | SendMessage
    | GrowSegment
    | FreeSegment
    | Quarantine
    | StreamBroken
    | CannotBoot
    | LogLine
)
