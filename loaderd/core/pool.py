"""The workers: which are to be started or to end; how often they die."""

from __future__ import annotations

import math

from loaderd.core.actions import RetireWorker, StartWorker
from loaderd.core.available_workers import AvailableWorkers
from loaderd.core.pool_worker import QUEUE, PoolWorker, WorkerState
from loaderd.core.remote_seats import RemoteSeats

LAG_WEIGHT = 0.05  # of the worker that has answered last in the lag of all
BACK_OFF_S, BACK_OFF_MAX_S = 0.1, 5.0  # before a worker is started again in one place of the pool


class WorkerPool:
    """A number of workers. They are numbered from 1, and no number comes again.

    A worker that dies is replaced at once. If its place in the pool then sees another death before
    a job was done, the next start waits, longer each time. A pool that has become smaller gives up
    the places of the next workers that end.

    Attributes:
        size: How many workers there shall be on this host.
        remote: Those on other hosts, without which it goes, too.
        workers: Those that are not known to be dead, by number.
        available: Which of them may get a job.
        ever_ready: A worker has been ready.
        boot_deaths: Workers that died before they were ready, since one last was.
        last_boot_death: Cause of the last of these deaths.
    """

    def __init__(self, size: int, remote: int = 0) -> None:
        """Begin without workers; see `begin`.

        Args:
            size: How many workers there shall be on this host.
            remote: How many there may be on others.

        Raises:
            ValueError: Fewer than one.
        """
        if size < 1:
            raise ValueError(f"a pool needs a worker, not {size}")
        self.size = size
        self.remote = RemoteSeats(remote)
        self.workers: dict[int, PoolWorker] = {}
        self.ever_ready = False
        self.boot_deaths = 0
        self.last_boot_death = ""
        self.available = AvailableWorkers()
        self._deaths: dict[int, int] = {}  # since a job was done, by place in the pool
        self._place_count = self._count = 0
        self._lag_s = 0.0  # of all workers, on average

    @property
    def up(self) -> int:
        """Number of workers that are ready and are to stay."""
        return sum(w.life is WorkerState.UP for w in self.workers.values())

    @property
    def strength(self) -> int:
        """How many of its quickest workers would do what all of them do together."""
        return max(1, math.ceil(self.at_work - self.available.shortfall - 0.5))

    @property
    def at_work(self) -> int:
        """Number of workers that there shall be here, and are at work elsewhere."""
        return self.size + len(self.remote.up)

    @property
    def settled(self) -> bool:
        """As many workers are at work here as there shall be, no others, each with a job done."""
        return (
            self.size
            == len(self._deaths)
            == sum(
                w.life is WorkerState.UP and w.proven and not w.remote
                for w in self.workers.values()
            )
        )

    def begin(self) -> list[StartWorker]:
        """The first workers, to be started now."""
        self.remote.begin()
        return [self._start_new() for _ in range(self.size)] + self.start_remote()

    def start_remote(self) -> list[StartWorker]:
        """Those on other hosts that are to be started by now."""
        starts: list[StartWorker] = []
        while (seat := self.remote.next()) is not None:
            starts.append(self._start(seat, self.remote.take(seat), remote=True))
        return starts

    def resize(self, size: int) -> list[StartWorker | RetireWorker]:
        """Change how many workers there shall be.

        Args:
            size: At least 1. What is starting now is not given up for it.

        Returns:
            The starts of new workers, or the ends of those that have nothing to do. One that has
            jobs does them first.
        """
        places = len(self._deaths)
        if places <= size:
            self.size = size
            return [self._start_new() for _ in range(size - places)]
        ready = sorted(
            (w for w in self.workers.values() if w.life is WorkerState.UP and not w.remote),
            key=lambda w: (len(w.jobs), -w.worker),
        )
        stay = places - self._leaving
        self.size = min(places, max(size, stay - len(ready)))
        spare = ready[: max(0, stay - self.size)]
        for w in spare:
            w.given_back = True
        ends = [self.retire(w.worker) for w in spare]
        return [end for end in ends if end is not None]

    @property
    def _leaving(self) -> int:
        """Workers that are to end, and whose places are theirs until then."""
        return sum(
            w.life in (WorkerState.RETIRING, WorkerState.KILLED)
            and w.pool_slot >= 0
            and not w.remote
            for w in self.workers.values()
        )

    def booting(self, worker: int, doing: str, now_s: float, reached: bool = False) -> None:
        """Note what a worker does before it is ready.

        Args:
            worker: Number of the worker; one that is unknown or ready is passed over.
            doing: For example "importing mypkg".
            now_s: Time of the event.
            reached: It has reached other hosts.
        """
        w = self.workers.get(worker)
        if w is not None and w.life is WorkerState.STARTING:
            w.doing, w.doing_s = doing, now_s
            if w.remote:
                self.remote.does(worker, doing)
            if reached and w.remote:
                w.reached = True
                self.remote.reached()

    def ready(self, worker: int) -> None:
        """A worker may get jobs from now on.

        Raises:
            ValueError: There is no such worker.
        """
        w = self._known(worker, "WorkerReady")
        if w.life is WorkerState.STARTING:
            w.life = WorkerState.UP
            if not w.remote:
                self.ever_ready, self.boot_deaths = True, 0
            w.doing, w.asked = "", None
            self._sort(w)

    def give(self, worker: int, job: int, now_s: float) -> None:
        """A worker was sent a job.

        Args:
            worker: Number of the worker.
            job: Number of the job.
            now_s: Time of the event.
        """
        w = self.workers[worker]
        if not w.jobs:
            w.next_job()
            w.looked_s = w.pace.begun_s = now_s
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
        w.next_job()
        w.paused, w.proven = False, True
        if w.pool_slot >= 0:
            if w.remote:
                self.remote.proven(w.pool_slot)
            else:
                self._deaths[w.pool_slot] = 0
        self.available.sort(w)
        return RetireWorker(worker) if w.life is WorkerState.RETIRING and not w.jobs else None

    def measured(self, worker: int, work_s: float | None, own_s: float, now_s: float) -> None:
        """Learn from an answer how quick a worker is.

        Args:
            worker: Number of the worker, which has answered.
            work_s: What the job takes a usual worker; None: unknown.
            own_s: Seconds that it worked.
            now_s: Time of the event.
        """
        w = self.workers[worker]
        tier = w.pace.tier
        w.pace.answered(work_s, own_s, now_s, self._lag_s)
        self._lag_s += LAG_WEIGHT * (w.pace.lag_s - self._lag_s)
        if w.pace.tier != tier:
            self.available.retiered(w)

    def retire(self, worker: int) -> RetireWorker | None:
        """A worker is to be replaced once it has no jobs. Returns the action if it has none now."""
        w = self.workers[worker]
        if w.life is not WorkerState.UP:
            return None
        w.life = WorkerState.RETIRING
        self._sort(w)
        return None if w.jobs else RetireWorker(worker)

    def killed(self, worker: int, now_s: float) -> None:
        """A worker is being killed: it gets no more jobs.

        Args:
            worker: Number of the worker.
            now_s: Time of the event.
        """
        w = self.workers[worker]
        w.life, w.killed_s = WorkerState.KILLED, now_s
        self._sort(w)

    def stuck(self, worker: int) -> StartWorker | None:
        """A worker does not die. Returns the start of another one in its place, if it has one."""
        w = self.workers[worker]
        if w.remote:
            self.remote.left(w, "a worker cannot be killed")
        w.life, pool_slot, w.pool_slot = WorkerState.STUCK, w.pool_slot, -1
        self._sort(w)
        if w.remote:
            return None
        return self._replace(pool_slot, 0.0)

    def died(
        self, worker: int, cause: str, boot: str = ""
    ) -> tuple[PoolWorker, StartWorker | None]:
        """A worker is dead.

        Args:
            worker: Number of the worker.
            cause: Cause of its death.
            boot: Why it could not start; "" if it could.

        Returns:
            (its record, the start of its successor; None if that was started before, or none is
            wanted).

        Raises:
            ValueError: There is no such worker.
        """
        w = self._known(worker, "WorkerDied")
        if w.life is WorkerState.STARTING and not w.remote:
            self.boot_deaths, self.last_boot_death = self.boot_deaths + 1, cause
        del self.workers[worker]
        self.available.forget(worker)
        if w.pool_slot < 0:
            return w, None
        to_end = w.life is WorkerState.RETIRING and not w.jobs
        if w.remote:
            self.remote.left(w, "" if to_end else (boot or cause).partition("\n")[0])
            return w, None
        if to_end:
            return w, self._replace(w.pool_slot, 0.0)
        self._deaths[w.pool_slot] += 1
        deaths = self._deaths[w.pool_slot]
        return w, self._replace(
            w.pool_slot,
            0.0 if deaths == 1 else min(BACK_OFF_MAX_S, BACK_OFF_S * 2 ** min(deaths - 2, 10)),
        )

    def _start_new(self) -> StartWorker:
        place = self._place_count
        self._place_count += 1
        self._deaths[place] = 0
        return self._start(place, 0.0)

    def _replace(self, pool_slot: int, delay_s: float) -> StartWorker | None:
        """Another worker in this place, unless there are more places than workers are wanted."""
        if len(self._deaths) > self.size:
            del self._deaths[pool_slot]
            return None
        return self._start(pool_slot, delay_s)

    def _start(self, pool_slot: int, delay_s: float, *, remote: bool = False) -> StartWorker:
        self._count += 1
        self.workers[self._count] = PoolWorker(self._count, pool_slot, remote=remote)
        return StartWorker(self._count, delay_s, remote)

    def _sort(self, w: PoolWorker) -> None:
        """Note what it may be asked now that its life has changed."""
        self.available.sort(w)
        if w.remote:
            self.remote.sort(w)

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
        here = [w for w in self.workers.values() if not w.remote]
        places = sorted(w.pool_slot for w in here if w.pool_slot >= 0)
        assert places == sorted(self._deaths), f"places {places} of {sorted(self._deaths)}"
        assert 0 <= len(places) - self.size <= self._leaving, (
            f"{len(places)} places of a pool of {self.size}, and {self._leaving} workers leave"
        )
        for w in self.workers.values():
            assert len(w.jobs) <= QUEUE, f"worker {w.worker} has jobs {w.jobs}"
            assert not w.jobs or w.life is not WorkerState.STARTING, (
                f"worker {w.worker} is starting with jobs {w.jobs}"
            )
        self.available.invariants(self.workers)
        self.remote.invariants(w for w in self.workers.values() if w.remote)
