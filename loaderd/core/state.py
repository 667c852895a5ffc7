"""What the scheduler knows: the tables of streams, sessions, jobs and workers.

`scheduler.py` owns one and changes it with each event. `explain`, `invariants` and `rescheduling`
read it. Nothing in here decides anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from loaderd.core.actions import Action
from loaderd.core.batches import BatchBuild
from loaderd.core.fair_queue import FairQueue
from loaderd.core.groups import GroupState
from loaderd.core.jobs import Job
from loaderd.core.pool import WorkerPool
from loaderd.core.sessions import SessionState
from loaderd.core.slot_owner import SlotOwner
from loaderd.core.streams import StreamState
from loaderd.core.usage import PoolUsage
from loaderd.core.verdict import AutoSize

# Why another worker is started in place of one: it fails at its start; it dies of its own doing, or
# is killed by somebody else; a sample takes too long; it is stopped by a signal while nobody needs
# its work; its memory has grown beyond `worker_memory`.
CAUSES = ("start", "crash", "killed", "hung", "stopped", "memory")


@dataclass(slots=True)
class RunningJob:
    """A job from the moment it is sent until its worker has answered or is dead.

    Attributes:
        job: What was sent.
        worker: Number of the worker that it was sent to.
        owner: The session, or the group, whose slot it writes.
        build: The batch that its rows belong to.
        attempt: The batch's count of starts when the job was sent.
    """

    job: Job
    worker: int
    owner: SlotOwner
    build: BatchBuild
    attempt: int

    @property
    def wanted(self) -> bool:
        """Whether its result counts: the batch has not been started again since."""
        return self.build.attempt == self.attempt


@dataclass(slots=True)
class SchedulerState:
    """The tables of one scheduler.

    Attributes:
        pool: The workers, by number.
        streams: The streams, by name.
        sessions: The sessions of connected clients, by number.
        groups: Sessions that share their batches, by number of the group.
        leaving: Sessions and groups whose clients are gone while some of their jobs still run, by
            number.
        jobs: The jobs that were sent and not yet answered, by number.
        queue: The order in which sessions with work get the next job.
        usage: What all workers did.
        restarts: Workers that were started in place of another, by what became of that: CAUSES.
        cpus: Processors that the workers may use; 0: unknown.
        all_cpus: Processors that they could use, were the daemon not pinned to some; 0: unknown.
        auto: What a pool that finds its own number of workers says of it; None if that is fixed.
        sizing: What was last done or not done about the number of workers, and why; None if that is
            fixed.
        draining: Nothing new is made.
        turns: Events handled until now.
        now_s: Time of the latest event, in seconds of a monotonic clock.
        actions: What the latest event led to, in order.
    """

    pool: WorkerPool
    streams: dict[str, StreamState]
    sessions: dict[int, SessionState] = field(default_factory=dict[int, SessionState])
    groups: dict[int, GroupState] = field(default_factory=dict[int, GroupState])
    leaving: dict[int, SlotOwner] = field(default_factory=dict[int, SlotOwner])
    jobs: dict[int, RunningJob] = field(default_factory=dict[int, RunningJob])
    queue: FairQueue = field(default_factory=FairQueue)
    usage: PoolUsage = field(default_factory=PoolUsage)
    restarts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))
    cpus: int = 0
    all_cpus: int = 0
    auto: AutoSize | None = None
    sizing: str | None = None
    draining: bool = False
    turns: int = 0
    now_s: float = 0.0
    actions: list[Action] = field(default_factory=list[Action])
