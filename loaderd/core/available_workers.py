"""Which workers may get a job, and which are to be looked at."""

from __future__ import annotations

from collections.abc import Mapping

from loaderd.core.pool_worker import QUEUE, SLOW_S, PoolWorker, WorkerState


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
