"""What an engine is: the processes that open streams and run the scheduler's jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from loaderd.config.schema import WorkersConfig
from loaderd.config.stream import StreamConfig
from loaderd.core.events import Event, WorkerPoll
from loaderd.core.jobs import Job
from loaderd.engine.messages import OpenError, StreamInfo
from loaderd.system.logs import WriteLog
from loaderd.system.loop import Loop
from loaderd_wire.messages import Segment
from loaderd_wire.slots import FieldSpec


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """A process of an engine.

    Attributes:
        name: As the log calls it.
        pid: 0 until it has been forked.
        process: Its state, such as "ready".
        place: Index of its place on the status board.
        anon_bytes: Anonymous memory; 0 if it is not alive.
        node: Name of the host of the worker that it stands for, once that is ready; "" else.
    """

    name: str
    pid: int
    process: str
    place: int
    anon_bytes: int
    node: str = ""


@dataclass(frozen=True, slots=True)
class ForkServerStatus:
    """The process that workers are forked from.

    Attributes:
        pid: 0 while there is none.
        ready: It can fork.
        stopped: By a signal.
    """

    pid: int
    ready: bool
    stopped: bool


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """All processes of an engine.

    Attributes:
        fork_server: What workers are forked from.
        probes: Those that open streams.
        workers: The scheduler's, by number.
    """

    fork_server: ForkServerStatus
    probes: tuple[ProcessStatus, ...] = ()
    workers: dict[int, ProcessStatus] = field(default_factory=dict[int, ProcessStatus])

    @property
    def pids(self) -> set[int]:
        """Of all of them."""
        return {each.pid for each in (self.fork_server, *self.probes, *self.workers.values())}


class Engine(Protocol):
    """Runs jobs in workers.

    It is made with `emit`, which takes its events; an event never comes from inside a call of one
    of these methods.

    The scheduler gives the workers their numbers. A number is used for one process and never again.
    """

    # -- streams

    def open(self, stream: str, done: Callable[[StreamInfo | OpenError], None], /) -> None:
        """Find out what a stream is, in a process of its own.

        Args:
            stream: Its name.
            done: Called once, later, with what it is or why that can't be known.
        """
        ...

    def edited(self) -> list[str]:
        """Files of the user's code that no longer say what was imported from them."""
        ...

    # -- workers

    def start(self, worker: int, delay_s: float, remote: bool = False, /) -> None:
        """Start a worker, not before delay_s seconds from now; if `remote`, on another host.

        Answer: any number of WorkerBooting, then WorkerReady or WorkerDied. Raises ValueError for a
        number that is in use.
        """
        ...

    def send(self, worker: int, job: Job, /) -> None:
        """Hand a job to a worker that is ready. Its stream is open, and its segment was added.

        Answer: WorkerDone or WorkerDied. A worker runs its jobs in the order in which they were
        sent.
        """
        ...

    def dump(self, worker: int, /) -> None:
        """Have a worker write the stacks of its threads.

        Answer: StackDumped, unless it is dead or dies first.
        """
        ...

    def kill(self, worker: int, why: str, /) -> None:
        """Kill a worker, in whatever state it is. Answer: WorkerDied, once.

        Args:
            worker: Its number.
            why: For the log and the cause of its death.
        """
        ...

    def retire(self, worker: int, /) -> None:
        """Ask a worker without jobs to end. Answer: WorkerDied."""
        ...

    def look(self) -> WorkerPoll:
        """What the workers that have jobs are doing at this moment."""
        ...

    # -- segments

    def add_segment(
        self, segment: Segment, stream: str, fields: tuple[FieldSpec, ...], rows: int, fd: int, /
    ) -> None:
        """From now on jobs may name this segment.

        Args:
            segment: Where its slots lie.
            stream: Whose batches it is for.
            fields: What a slot holds, in this order.
            rows: Of one slot.
            fd: Stays the caller's, who keeps it open until `drop_segment` is done.
        """
        ...

    def drop_segment(self, segment: int, done: Callable[[], object], /) -> None:
        """From now on no job names this segment.

        Args:
            segment: Its number.
            done: Called once, perhaps at once, when no worker has it mapped any longer.
        """
        ...

    # -- what it looks like

    def doing(self) -> list[str]:
        """One line for each process that is not ready: what it does, and for how long."""
        ...

    def status(self) -> EngineStatus:
        """The processes that there are now."""
        ...

    def close(self) -> None:
        """End every process, now.

        Afterwards nothing is emitted and no method has an effect. Idempotent.
        """
        ...


class MakeEngine(Protocol):
    """What makes an engine."""

    def __call__(
        self,
        loop: Loop,
        streams: Sequence[StreamConfig],
        config: WorkersConfig,
        *,
        late: Sequence[StreamConfig],
        num_workers: int,
        folder: str,
        emit: Callable[[Event], object],
        log: WriteLog,
        oom_kills: Callable[[], int],
        pictures: bool,
    ) -> Engine:
        """Starts no process yet.

        Args:
            loop: Calls whatever is here.
            streams: Those whose user code workers import before they are ready.
            config: What the table [workers] says.
            late: The others, each of which becomes one of those when it has been opened.
            num_workers: Workers at a time; what `config` says of that may be "auto".
            folder: First on the workers' sys.path; "" for none.
            emit: Takes the events.
            log: Its log.
            oom_kills: The cgroup's count of processes that were killed for memory.
            pictures: Bad samples come with what is stored of their images.
        """
        ...
