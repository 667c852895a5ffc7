"""The workers: which are alive, may get a job, or are to be started; how often they die."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from loaderd.core.actions import RetireWorker, StartWorker
from loaderd.core.jobs import Stage, unstamp

QUEUE = 2  # jobs that a worker may have: one that runs, and one that it can begin without waiting
SLOW_S = 1.0  # a worker that has not moved for so long gets no second job
BACK_OFF_S, BACK_OFF_MAX_S = 0.1, 5.0  # before a worker is started again in one place of the pool


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
        looked_s: When it was last looked at.
        paused: A signal or a debugger has stopped it.
        paused_s: Since when.
        doing: What it does before it is ready; "" afterwards.
        doing_s: Since when.
        asked: The job for which its stacks were last asked for; 0: for its start; None: for
            nothing.
        stack: The stacks that came; "" before.
        stack_s: When they came.
        suspect: A limit has been passed; the next look decides, because what was seen may be old.
        dumped_s: When its stacks were asked for because of that limit.
        killed_s: When it was killed.
        late: The limit that it has passed, in words.
    """

    worker: int
    pool_slot: int
    life: WorkerState = WorkerState.STARTING
    jobs: list[int] = field(default_factory=list[int])
    word: int = 0
    key: str = ""
    quiet_s: float = 0.0
    import_s: float = 0.0
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

    @property
    def stamp(self) -> tuple[int, int, Stage]:
        """(job, row, stage) of its word."""
        return unstamp(self.word)

    @property
    def job(self) -> int:
        """The job that it runs; 0 if it has none."""
        return self.jobs[0] if self.jobs else 0

    def moved(self) -> None:
        """It has begun something new: no limit has been passed any longer."""
        self.quiet_s = self.import_s = 0.0
        self.suspect, self.dumped_s, self.late = False, None, ""


class AvailableWorkers:
    """Which workers may get a job, and which are to be looked at.

    `sort` is called after every change of a worker that matters for that.
    """

    def __init__(self) -> None:
        self._idle: dict[int, None] = {}  # UP without a job, the longest first
        self._single: dict[int, None] = {}  # UP with one job and room for another
        self._watched: set[int] = set()

    @property
    def room(self) -> bool:
        """A worker can get a job."""
        return bool(self._idle or self._single)

    @property
    def idle(self) -> int:
        """Number of workers that are ready and have no job."""
        return len(self._idle)

    @property
    def busy(self) -> int:
        """Number of workers that have a job, or are to end."""
        return len(self._watched)

    @property
    def watched(self) -> bool:
        """A worker has a job or is to end, so that the status board must be looked at.

        A worker that was given up is not watched.
        """
        return bool(self._watched)

    def pick(self, *, second: bool) -> int | None:
        """A worker for a job; None if none has room.

        Args:
            second: A worker that has one job already will do, if none is idle.
        """
        if self._idle:
            return next(iter(self._idle))
        return next(iter(self._single), None) if second else None

    def sort(self, w: PoolWorker) -> None:
        """Note whether a worker may get a job, and whether it is watched.

        Args:
            w: A worker that has changed.
        """
        worker, jobs = w.worker, len(w.jobs)
        self._idle.pop(worker, None)
        self._single.pop(worker, None)
        if w.life is WorkerState.UP:
            if not jobs:
                self._idle[worker] = None
            elif jobs < QUEUE and w.quiet_s <= SLOW_S and not w.paused:
                self._single[worker] = None
        if w.pool_slot >= 0 and (
            jobs or w.life is WorkerState.KILLED or w.life is WorkerState.RETIRING
        ):
            self._watched.add(worker)
        else:
            self._watched.discard(worker)

    def forget(self, worker: int) -> None:
        """A worker is dead."""
        self._idle.pop(worker, None)
        self._single.pop(worker, None)
        self._watched.discard(worker)

    def invariants(self, workers: Mapping[int, PoolWorker]) -> None:
        """Check the tables.

        Args:
            workers: All workers, by number.

        Raises:
            AssertionError: They contradict these.
        """
        for w in workers.values():
            assert (w.worker in self._idle) == (w.life is WorkerState.UP and not w.jobs), (
                f"worker {w.worker} is {w.life.value}: idle?"
            )
            room = (
                w.life is WorkerState.UP
                and len(w.jobs) == 1
                and w.quiet_s <= SLOW_S
                and not w.paused
            )
            assert (w.worker in self._single) == room, (
                f"worker {w.worker} is {w.life.value} with jobs {w.jobs}: room?"
            )
            watched = w.pool_slot >= 0 and (
                bool(w.jobs) or w.life in (WorkerState.KILLED, WorkerState.RETIRING)
            )
            assert (w.worker in self._watched) == watched, (
                f"worker {w.worker} is {w.life.value} with jobs {w.jobs}: watched?"
            )
        assert self._watched <= workers.keys(), "a worker that is gone is watched"


class WorkerPool:
    """A fixed number of workers. They are numbered from 1, and no number comes again.

    A worker that dies is replaced at once. If its place in the pool then sees another death before
    a job was done, the next start waits, longer each time.

    Attributes:
        size: How many workers there shall be.
        workers: Those that are not known to be dead, by number.
        available: Which of them may get a job.
        ever_ready: A worker has been ready.
        boot_deaths: Workers that died before they were ready, since one last was.
        last_boot_death: Cause of the last of these deaths.
    """

    def __init__(self, size: int) -> None:
        """Begin without workers; see `begin`.

        Args:
            size: How many workers there shall be.

        Raises:
            ValueError: Fewer than one.
        """
        if size < 1:
            raise ValueError(f"a pool needs a worker, not {size}")
        self.size = size
        self.workers: dict[int, PoolWorker] = {}
        self.ever_ready = False
        self.boot_deaths = 0
        self.last_boot_death = ""
        self.available = AvailableWorkers()
        self._deaths = [0] * size
        self._count = 0

    @property
    def up(self) -> int:
        """Number of workers that are ready and are to stay."""
        return sum(w.life is WorkerState.UP for w in self.workers.values())

    def begin(self) -> list[StartWorker]:
        """The first workers, to be started now."""
        return [self._start(pool_slot, 0.0) for pool_slot in range(self.size)]

    def booting(self, worker: int, doing: str, now_s: float) -> None:
        """Note what a worker does before it is ready.

        Args:
            worker: Number of the worker; one that is unknown or ready is passed over.
            doing: For example "importing mypkg".
            now_s: Time of the event.
        """
        w = self.workers.get(worker)
        if w is not None and w.life is WorkerState.STARTING:
            w.doing, w.doing_s = doing, now_s

    def ready(self, worker: int) -> None:
        """A worker may get jobs from now on.

        Raises:
            ValueError: There is no such worker.
        """
        w = self._known(worker, "WorkerReady")
        if w.life is WorkerState.STARTING:
            w.life = WorkerState.UP
            self.ever_ready, self.boot_deaths = True, 0
            w.doing, w.asked = "", None
            self.available.sort(w)

    def give(self, worker: int, job: int, now_s: float) -> None:
        """A worker was sent a job.

        Args:
            worker: Number of the worker.
            job: Number of the job.
            now_s: Time of the event.
        """
        w = self.workers[worker]
        if not w.jobs:
            w.moved()
            w.looked_s = now_s
        w.jobs.append(job)
        self.available.sort(w)

    def answered(self, worker: int, job: int) -> RetireWorker | None:
        """A worker has answered a job.

        Returns:
            A worker that is to be replaced ends when it has no more jobs: the action for that, or
                None.

        Raises:
            ValueError: There is no such worker, or it does not have this job.
        """
        w = self._known(worker, f"WorkerDone of job {job}")
        if job not in w.jobs:
            raise ValueError(f"worker {worker} ({w.life.value}) answers job {job}, it has {w.jobs}")
        w.jobs.remove(job)
        w.moved()
        w.paused = False
        if w.pool_slot >= 0:
            self._deaths[w.pool_slot] = 0
        self.available.sort(w)
        return RetireWorker(worker) if w.life is WorkerState.RETIRING and not w.jobs else None

    def retire(self, worker: int) -> RetireWorker | None:
        """A worker is to be replaced once it has no jobs. Returns the action if it has none now."""
        w = self.workers[worker]
        if w.life is not WorkerState.UP:
            return None
        w.life = WorkerState.RETIRING
        self.available.sort(w)
        return None if w.jobs else RetireWorker(worker)

    def killed(self, worker: int, now_s: float) -> None:
        """A worker is being killed: it gets no more jobs.

        Args:
            worker: Number of the worker.
            now_s: Time of the event.
        """
        w = self.workers[worker]
        w.life, w.killed_s = WorkerState.KILLED, now_s
        self.available.sort(w)

    def stuck(self, worker: int) -> StartWorker:
        """A worker does not die. Returns the start of another one in its place."""
        w = self.workers[worker]
        w.life, pool_slot, w.pool_slot = WorkerState.STUCK, w.pool_slot, -1
        self.available.sort(w)
        return self._start(pool_slot, 0.0)

    def died(self, worker: int, cause: str) -> tuple[PoolWorker, StartWorker | None]:
        """A worker is dead.

        Args:
            worker: Number of the worker.
            cause: Cause of its death.

        Returns:
            (its record, the start of its successor; None if that was started before).

        Raises:
            ValueError: There is no such worker.
        """
        w = self._known(worker, "WorkerDied")
        if w.life is WorkerState.STARTING:
            self.boot_deaths, self.last_boot_death = self.boot_deaths + 1, cause
        del self.workers[worker]
        self.available.forget(worker)
        if w.pool_slot < 0:
            return w, None
        if w.life is WorkerState.RETIRING and not w.jobs:
            return w, self._start(w.pool_slot, 0.0)
        self._deaths[w.pool_slot] += 1
        deaths = self._deaths[w.pool_slot]
        return w, self._start(
            w.pool_slot,
            0.0 if deaths == 1 else min(BACK_OFF_MAX_S, BACK_OFF_S * 2 ** min(deaths - 2, 10)),
        )

    def _start(self, pool_slot: int, delay_s: float) -> StartWorker:
        self._count += 1
        self.workers[self._count] = PoolWorker(self._count, pool_slot)
        return StartWorker(self._count, delay_s)

    def _known(self, worker: int, what: str) -> PoolWorker:
        w = self.workers.get(worker)
        if w is None:
            raise ValueError(f"{what} of worker {worker}, which is none of {sorted(self.workers)}")
        return w

    def invariants(self) -> None:
        """Check the tables.

        Raises:
            AssertionError: They contradict each other.
        """
        places = sorted(w.pool_slot for w in self.workers.values() if w.pool_slot >= 0)
        assert places == list(range(self.size)), f"places {places} of a pool of {self.size}"
        for w in self.workers.values():
            assert len(w.jobs) <= QUEUE, f"worker {w.worker} has jobs {w.jobs}"
            assert not w.jobs or w.life is not WorkerState.STARTING, (
                f"worker {w.worker} is starting with jobs {w.jobs}"
            )
        self.available.invariants(self.workers)
