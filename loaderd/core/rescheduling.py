"""Jobs that another worker should do, and stopped workers that no session waits for."""

from __future__ import annotations

from loaderd.core.jobs import Stage
from loaderd.core.pool_worker import SLOW_S, PoolWorker, WorkerState
from loaderd.core.state import RunningJob, SchedulerState

ABANDONED_S = 5.0  # how long a worker has been stopped before it is ended where nobody waits for it


def abandoned(state: SchedulerState, w: PoolWorker, now_s: float) -> bool:
    """Whether a worker is stopped and no session waits for any of its jobs.

    Whoever was to let it go on may be gone, and it would keep its place in the pool for ever. A
    worker that is waited for is left to whoever has stopped it.

    Args:
        state: The tables.
        w: The worker.
        now_s: Time of the event.
    """
    if (
        not w.paused
        or now_s - w.paused_s < ABANDONED_S
        or w.life not in (WorkerState.UP, WorkerState.RETIRING)
    ):
        return False
    return not any(state.jobs[job].wanted for job in w.jobs)


def find_stranded(state: SchedulerState, w: PoolWorker) -> RunningJob | None:
    """The job of a worker that is to be made again elsewhere, if there is one.

    All of this must hold: it has not begun; it stands behind a slow job, or its worker is stopped;
    its trainer waits for it; another worker is idle; its batch was not moved before. A batch of
    which the worker has begun a job stays where it is.

    Args:
        state: The tables.
        w: The worker.
    """
    if (
        not w.jobs
        or not state.pool.available.idle
        or not (w.paused or (len(w.jobs) > 1 and w.quiet_s > SLOW_S))
    ):
        return None
    number, _, stage = w.stamp
    begins = not w.paused or (w.jobs[0] == number and stage is not Stage.IDLE)
    begun = state.jobs[w.jobs[0]].build if begins else None
    for job in w.jobs:
        running = state.jobs[job]
        session, build = running.session, running.build
        waits = (
            running.wanted
            and not session.gone
            and bool(session.window.items)
            and session.window.items[0].build is build
        )
        if waits and not build.rescued and build is not begun and session.slots.table.free:
            return running
    return None
