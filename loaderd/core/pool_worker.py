"""One worker as the pool knows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from loaderd.core.jobs import Stage, unstamp
from loaderd.core.worker_pace import WorkerPace

QUEUE = 2  # jobs that a worker may have: one that runs, and one that it can begin without waiting
SLOW_S = 1.0  # a worker that has not moved for so long gets no second job


class WorkerState(Enum):
    """What becomes of a worker."""

    STARTING = "starting"
    UP = "up"
    RETIRING = "retiring"  # gets no more jobs, and ends when it has none
    KILLED = "killed"
    STUCK = "stuck"  # not dead kill_s after its kill: replaced; its slots stay out of use


@dataclass(slots=True)
class PoolWorker:
    """A process that is not known to be dead.

    Attributes:
        worker: Its number.
        pool_slot: Its place in the pool; -1 once another has been started in its place.
        life: What becomes of it.
        jobs: Jobs that it was sent and has not answered; it runs the first one.
        word: Its word on the status board when it was last looked at.
        key: Name of the sample, likewise.
        quiet_s: Seconds for which the word has been the same while it had a job, or was to end.
            Time in which it was stopped does not count.
        import_s: How many of these it imported modules.
        job_s: Seconds for which it has been at its first job, as far as looks have shown. Time in
            which it was stopped, or the loop was starved, does not count.
        rows_s: How many of these had passed by the look before the one that showed it at its row
            first: the rows before that one took as long at least.
        looked_s: When it was last looked at.
        paused: A signal or a debugger has stopped it.
        paused_s: Since when.
        doing: What it does before it is ready; "" afterwards.
        doing_s: Since when.
        asked: The job for which its stacks were last asked for; 0: for its start; below 0: for
            whatever it does; None: for nothing.
        stack: The stacks that came; "" before.
        stack_s: When they came.
        suspect: A limit has been passed; the next look decides, because what was seen may be old.
        dumped_s: When its stacks were asked for because of that limit.
        killed_s: When it was killed.
        late: The limit that it has passed, in words.
        proven: It has answered a job, so it has opened the stream of one.
        anon_bytes: Its own memory when that was last looked at; 0 before.
        given_back: It ends because the pool became smaller.
        pace: How quick it is.
        remote: It works on another host: `pool_slot` is its place among those.
        reached: It has reached the other hosts before it was ready.
    """

    worker: int
    pool_slot: int
    life: WorkerState = WorkerState.STARTING
    jobs: list[int] = field(default_factory=list[int])
    word: int = 0
    key: str = ""
    quiet_s: float = 0.0
    import_s: float = 0.0
    job_s: float = 0.0
    rows_s: float = 0.0
    looked_s: float = 0.0
    paused: bool = False
    paused_s: float = 0.0
    doing: str = ""
    doing_s: float = 0.0
    asked: int | None = None
    stack: str = ""
    stack_s: float = 0.0
    suspect: bool = False
    dumped_s: float | None = None
    killed_s: float | None = None
    late: str = ""
    proven: bool = False
    anon_bytes: int = 0
    given_back: bool = False
    pace: WorkerPace = field(default_factory=WorkerPace)
    remote: bool = False
    reached: bool = False

    @property
    def stamp(self) -> tuple[int, int, Stage]:
        """(job, row, stage) of its word."""
        return unstamp(self.word)

    @property
    def job(self) -> int:
        """The job that it runs; 0 if it has none."""
        return self.jobs[0] if self.jobs else 0

    def next_job(self) -> None:
        """It begins another job, or has none."""
        self.job_s = self.rows_s = 0.0
        self.moved()

    def moved(self) -> None:
        """It has begun something new: no limit has been passed any longer."""
        self.quiet_s = self.import_s = 0.0
        self.suspect, self.dumped_s, self.late = False, None, ""
