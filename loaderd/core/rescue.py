"""Batches that a trainer waits for and that stand in the wrong queue, and workers that nobody waits for: what is better done by another."""

from __future__ import annotations

from loaderd.core.jobs import Stage
from loaderd.core.pool import SLOW_S, Life, Worker
from loaderd.core.state import RunningJob, SchedulerState

ABANDONED_S = 5.0  # how long a worker has been stopped before it is ended where nobody waits for it


def abandoned(state: SchedulerState, w: Worker, now_s: float) -> bool:
    """Whether this worker is stopped and no session waits for any of its jobs: whoever was to let it go on has gone, and it would keep
    its seat for ever. One that is waited for is left as it is, for whoever has stopped it."""
    if not w.paused or now_s - w.paused_s < ABANDONED_S or w.life not in (Life.UP, Life.RETIRING):
        return False
    return not any(state.jobs[job].wanted for job in w.jobs)


def stranded(state: SchedulerState, w: Worker) -> RunningJob | None:
    """The job of this worker to be made anew elsewhere: it has not begun, it stands behind a slow job or before a worker that is stopped,
    its trainer waits for it, another worker is idle, and its batch was not rescued before. A batch that has begun stays where it is."""
    if not w.jobs or not state.pool.idle or not (w.paused or (len(w.jobs) > 1 and w.quiet_s > SLOW_S)):
        return None
    number, _, stage = w.stamp
    begins = not w.paused or (w.jobs[0] == number and stage is not Stage.IDLE)
    begun = state.jobs[w.jobs[0]].draft if begins else None
    for job in w.jobs:
        running = state.jobs[job]
        session, draft = running.session, running.draft
        waits = running.wanted and not session.gone and bool(session.items) and session.items[0].draft is draft
        if waits and not draft.rescued and draft is not begun and session.rings[session.current].free:
            return running
    return None
