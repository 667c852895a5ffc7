"""What workers are doing at a moment, as the scheduler wants to know it."""

from __future__ import annotations

from collections.abc import Iterable

from loaderd.core.events import WorkerObservation, WorkerPoll
from loaderd.engine.process_state import ProcessState
from loaderd.engine.worker_process import WorkerProcess
from loaderd.system import processes
from loaderd.system.loop import Loop

ANON_S = 1.0  # memory of a worker is looked at no more often


class WorkerObserver:
    """Looks at the status board, the state and now and then the memory of workers with jobs."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._anon_s: dict[int, float] = {}  # when memory was looked at, by worker
        self._lost_s = loop.lost_s

    def look(self, children: Iterable[WorkerProcess]) -> WorkerPoll:
        """Look at those of the workers that have jobs."""
        now_s, lost_s = self._loop.now_s(), self._loop.lost_s
        starved, self._lost_s = lost_s > self._lost_s, lost_s
        return WorkerPoll(
            tuple(
                self._seen(child, now_s, starved)
                for child in children
                if child.state == ProcessState.READY and child.jobs
            )
        )

    def forget(self, worker: int) -> None:
        """A worker is gone."""
        self._anon_s.pop(worker, None)

    def _seen(self, child: WorkerProcess, now_s: float, starved: bool) -> WorkerObservation:
        word, key = child.look()
        anon_bytes = 0
        if now_s - self._anon_s.get(child.worker, -ANON_S) >= ANON_S:
            self._anon_s[child.worker] = now_s
            anon_bytes = processes.anonymous_bytes(child.pid)
        return WorkerObservation(
            child.worker, word, key, processes.stopped(child.pid), anon_bytes, starved
        )
