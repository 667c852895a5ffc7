"""What the scheduler is told.

Every event comes with `now_s`, the time in seconds of a monotonic clock that stands still while
the daemon's loop does not run.
"""

from __future__ import annotations

from dataclasses import dataclass

from loaderd.core.jobs import Done
from loaderd.core.streams import StreamRules
from loaderd_wire.messages import Progress, Segment
from loaderd_wire.slices import EpochShape


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """A stream was opened: from now on sessions may attach to it.

    It is new, or it has no session and was opened again because its data had changed.

    Attributes:
        rules: What the stream is.
    """

    rules: StreamRules


@dataclass(frozen=True, slots=True)
class Attach:
    """A client is admitted, and its segment is reserved. It has no plan until its first Progress.

    Attributes:
        session: Number of the session. No other session ever has it.
        stream: Name of the stream.
        shape: How the client cuts an epoch into batches.
        seed: Seed of the order and of the samples' random values.
        prefetch: Batches that are made ahead of the client, at least 1.
        segment: The session's shared memory, with at least prefetch + 2 slots. In a group it is the
            group's newest one.
        group: Number of the group whose batches it shares; no session has it. 0: it shares none.
        share_window: A batch of the group is kept for those of its sessions that will want it as
            one of their next so many.
    """

    session: int
    stream: str
    shape: EpochShape
    seed: int
    prefetch: int
    segment: Segment
    group: int = 0
    share_window: int = 0


@dataclass(frozen=True, slots=True)
class Detach:
    """The client has closed its control socket.

    Attributes:
        session: Number of the session.
    """

    session: int


@dataclass(frozen=True, slots=True)
class ProgressReceived:
    """A Progress of a session has arrived.

    The scheduler does not rely on it: it may be late, repeated, false, or of a session that is
    gone.

    Attributes:
        session: Number of the session.
        progress: The message.
    """

    session: int
    progress: Progress


@dataclass(frozen=True, slots=True)
class SegmentGrown:
    """The answer to a GrowSegment: the larger segment is reserved and on its way to the client.

    Attributes:
        session: Number of the session, or of the group.
        segment: The new segment. Its number is above that of the session's current one.
    """

    session: int
    segment: Segment


@dataclass(frozen=True, slots=True)
class GrowFailed:
    """The answer to a GrowSegment: there is no memory for the larger segment.

    Attributes:
        session: Number of the session, or of the group.
        text: Why, with numbers.
    """

    session: int
    text: str


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker has started and may get jobs.

    Attributes:
        worker: Number of the worker.
    """

    worker: int


@dataclass(frozen=True, slots=True)
class WorkerBooting:
    """What a worker does before it is ready, or the process that it is to be forked from.

    Attributes:
        worker: Number of the worker.
        doing: For example "importing mypkg.aug (call of stream 'train')".
        reached: It works on other hosts, and has reached them.
    """

    worker: int
    doing: str
    reached: bool = False


@dataclass(frozen=True, slots=True)
class WorkerDone:
    """A worker has answered a job.

    Attributes:
        worker: Number of the worker.
        done: The answer.
        other_code: Not empty if the rows come from user code of which this worker has imported
            another version than other workers: which code that is.
    """

    worker: int
    done: Done
    other_code: str = ""


@dataclass(frozen=True, slots=True)
class WorkerObservation:
    """What one look at a worker has shown.

    Time in which a worker was paused, or the loop was starved, counts towards no limit.

    Attributes:
        worker: Number of the worker.
        word: Its word on the status board, as `jobs.stamp` makes it.
        key: Name of the sample that it wrote with the word; "" if unknown.
        paused: A signal or a debugger has stopped it.
        anon_bytes: Anonymous memory, RssAnon + VmSwap, in bytes; 0 if it was not measured.
        starved: The daemon's own loop did not run since the look before.
    """

    worker: int
    word: int
    key: str
    paused: bool
    anon_bytes: int
    starved: bool = False


@dataclass(frozen=True, slots=True)
class WorkerPoll:
    """The timer that runs while workers have jobs: all workers, as the status board shows them.

    Attributes:
        seen: One entry for each worker.
    """

    seen: tuple[WorkerObservation, ...]


@dataclass(frozen=True, slots=True)
class PoolReview:
    """The timer that runs while the number of workers may change.

    Attributes:
        free_bytes: Memory that more workers may take together.
    """

    free_bytes: int


@dataclass(frozen=True, slots=True)
class StackWanted:
    """A user wants to see the stacks of a worker.

    Attributes:
        worker: Number of the worker, which may be gone.
    """

    worker: int


@dataclass(frozen=True, slots=True)
class StackDumped:
    """The answer to a DumpStack.

    Attributes:
        worker: Number of the worker.
        stack: The stacks of all its threads; "" if it cannot write them yet.
    """

    worker: int
    stack: str


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """A worker's pidfd is readable: the process is dead and will never write again.

    Nothing else counts as dead.

    Attributes:
        worker: Number of the worker.
        own: It died of its own doing: SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, an exit, or SIGKILL
            while the oom_kill count of its cgroup rose.
        cause: For example "SIGSEGV", "exit code 3" or "SIGKILL (out of memory)".
        seen: The last look at it, taken after its death.
        stack: Its last stacks, if it wrote any.
        boot: Not empty if it could not start: the traceback.
    """

    worker: int
    own: bool
    cause: str
    seen: WorkerObservation
    stack: str
    boot: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Finish: nothing new is made, and what was announced stays valid."""


Event = (
    StreamOpened
    | Attach
    | Detach
    | ProgressReceived
    | SegmentGrown
    | GrowFailed
    | WorkerBooting
    | WorkerReady
    | WorkerDone
    | WorkerPoll
    | PoolReview
    | StackWanted
    | StackDumped
    | WorkerDied
    | Drain
)
