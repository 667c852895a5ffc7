"""Which workers may get a job, and which are to be looked at."""

from __future__ import annotations

from collections.abc import Mapping

from loaderd.core.pool_worker import QUEUE, SLOW_S, PoolWorker, WorkerState
from loaderd.core.worker_pace import TIER

Tiers = dict[int, dict[int, None]]  # workers by tier; none is empty


class AvailableWorkers:
    """Which workers may get a job, and which are to be looked at.

    `sort` is called after every change of a worker that matters for that.

    Attributes:
        idle_tiers: Workers that are UP and have no job, by tier. In a tier, here and below, the one
            that has changed least recently is the first.
        single_tiers: Those that have one job, and room for another.
        full_tiers: Those that have jobs, and no room.
        mixed: Workers of another tier than 0. If there are none, all are as quick.
    """

    def __init__(self) -> None:
        self.idle_tiers: Tiers = {}
        self.single_tiers: Tiers = {}
        self.full_tiers: Tiers = {}
        self.mixed: set[int] = set()
        self._at: dict[int, tuple[Tiers, int]] = {}
        self._watched: set[int] = set()

    @property
    def room(self) -> bool:
        """A worker can get a job."""
        return bool(self.idle_tiers or self.single_tiers)

    @property
    def idle(self) -> int:
        """Number of workers that are ready and have no job."""
        return sum(map(len, self.idle_tiers.values()))

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

    @property
    def shortfall(self) -> float:
        """How many of the quickest workers are missing, because others are slower."""
        if not self.mixed:
            return 0.0
        counts = [
            (tier, len(workers))
            for tiers in (self.idle_tiers, self.single_tiers, self.full_tiers)
            for tier, workers in tiers.items()
        ]
        first = min(counts, default=(0, 0))[0]
        return sum(count * (1 - TIER ** (first - tier)) for tier, count in counts)

    def busy_before(self, tier: int) -> list[dict[int, None]]:
        """Workers with jobs in quicker tiers than this one: those that are free soonest first."""
        groups = [
            (each, n, workers)
            for n, tiers in enumerate((self.single_tiers, self.full_tiers))
            for each, workers in tiers.items()
            if each < tier
        ]
        return [workers for _, _, workers in sorted(groups, key=lambda group: group[:2])]

    def quicker(self, worker: PoolWorker) -> int | None:
        """One of a quicker tier that has a job and room for another; None if there is none."""
        tiers = self.single_tiers
        return _first(tiers) if tiers and min(tiers) < worker.pace.tier else None

    def pick(self, *, second: bool) -> int | None:
        """A worker for a job, one of the quickest; None if none has room.

        Args:
            second: A worker that has one job already will do, if none is idle.
        """
        if self.idle_tiers:
            return _first(self.idle_tiers)
        return _first(self.single_tiers) if second and self.single_tiers else None

    def sort(self, w: PoolWorker) -> None:
        """Note whether a worker may get a job, and whether it is watched.

        Args:
            w: A worker that has changed.
        """
        worker, jobs = w.worker, len(w.jobs)
        if worker in self._at:
            self._leave(worker)
        if w.life is WorkerState.UP:
            if not jobs:
                tiers = self.idle_tiers
            else:
                room = jobs < QUEUE and w.quiet_s <= SLOW_S and not w.paused
                tiers = self.single_tiers if room else self.full_tiers
            tier = w.pace.tier
            if tier in tiers:
                tiers[tier][worker] = None
            else:
                tiers[tier] = {worker: None}
            self._at[worker] = tiers, tier
        if w.pool_slot >= 0 and (
            jobs or w.life is WorkerState.KILLED or w.life is WorkerState.RETIRING
        ):
            self._watched.add(worker)
        else:
            self._watched.discard(worker)

    def retiered(self, w: PoolWorker) -> None:
        """A worker is of another tier than before."""
        (self.mixed.add if w.pace.tier else self.mixed.discard)(w.worker)
        self.sort(w)

    def forget(self, worker: int) -> None:
        """A worker is dead."""
        if worker in self._at:
            self._leave(worker)
        self.mixed.discard(worker)
        self._watched.discard(worker)

    def _leave(self, worker: int) -> None:
        tiers, tier = self._at.pop(worker)
        workers = tiers[tier]
        del workers[worker]
        if not workers:
            del tiers[tier]

    def invariants(self, workers: Mapping[int, PoolWorker]) -> None:
        """Check the tables.

        Args:
            workers: All workers, by number.

        Raises:
            AssertionError: They contradict these.
        """
        for w in workers.values():
            up, tier = w.life is WorkerState.UP, w.pace.tier
            room = len(w.jobs) == 1 and w.quiet_s <= SLOW_S and not w.paused
            for name, tiers, belongs in (
                ("idle", self.idle_tiers, up and not w.jobs),
                ("room", self.single_tiers, up and room),
                ("full", self.full_tiers, up and bool(w.jobs) and not room),
            ):
                assert (w.worker in tiers.get(tier, ())) == belongs, (
                    f"worker {w.worker}, tier {tier}, is {w.life.value} with jobs {w.jobs}: {name}?"
                )
            assert (w.worker in self.mixed) == (tier != 0), f"worker {w.worker}: tier {tier}?"
            watched = w.pool_slot >= 0 and (
                bool(w.jobs) or w.life in (WorkerState.KILLED, WorkerState.RETIRING)
            )
            assert (w.worker in self._watched) == watched, (
                f"worker {w.worker} is {w.life.value} with jobs {w.jobs}: watched?"
            )
        known = self._watched | self.mixed | self._at.keys()
        assert known <= workers.keys(), "a worker that is gone is remembered"


def _first(tiers: Tiers) -> int:
    """The first worker of the quickest tier."""
    return next(iter(tiers[min(tiers)]))
