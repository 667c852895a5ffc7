"""Jobs that another worker should do, and stopped workers that no session waits for."""

from __future__ import annotations

from loaderd.core import quickest
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

    Its trainer waits for it, another worker is idle, and its batch was not moved before. And one of
    these holds: idle workers are so much quicker that they make the whole batch sooner; the job has
    not begun, and stands behind a slow job, or its worker is stopped; the worker is on another host
    and does not move, while one of this host is idle. This last rule is there for hosts whose disk
    hangs: a good sample must not be blamed for it. A sample that hangs itself then costs a worker
    here, too. Only in the case of a job that has not begun its batch stays where it is if the
    worker has begun another job of it. What stands behind comes before the first job: that may
    hang, and would hang the other worker, too.

    Args:
        state: The tables.
        w: The worker.
    """
    if not w.jobs or not state.pool.available.idle:
        return None
    elsewhere = w.remote and w.quiet_s > SLOW_S and not quickest.idle_worker(state).remote
    stands = w.paused or (len(w.jobs) > 1 and w.quiet_s > SLOW_S)
    number, _, stage = w.stamp
    begins = not w.paused or (w.jobs[0] == number and stage is not Stage.IDLE)
    begun = state.jobs[w.jobs[0]].build if begins else None
    for job in reversed(w.jobs):
        running = state.jobs[job]
        if _may_move(running) and (
            elsewhere
            or (stands and running.build is not begun)
            or quickest.is_overtaken(state, w, running)
        ):
            return running
    return None


def _may_move(running: RunningJob) -> bool:
    """Whether a job is of the batch that a trainer gets next, and that can be made elsewhere."""
    owner, build = running.owner, running.build
    return (
        running.wanted
        and not owner.gone
        and owner.window.is_next(build)
        and not build.rescued
        and owner.slots.table.free > 0
    )
