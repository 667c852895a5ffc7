"""Batches that a trainer waits for and that stand in the wrong queue: which of a worker's jobs are better done by another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaderd.core.jobs import Stage
from loaderd.core.pool import SLOW_S, Worker
from loaderd.core.running import Running

if TYPE_CHECKING:
    from loaderd.core.scheduler import Scheduler


def stranded(core: Scheduler, w: Worker) -> Running | None:
    """The job of this worker to be made anew elsewhere: it has not begun, it stands behind a slow job or before a worker that is stopped,
    its trainer waits for it, another worker is idle, and its batch was not rescued before. A batch that has begun stays where it is."""
    if not w.jobs or not core.pool.idle or not (w.paused or (len(w.jobs) > 1 and w.quiet_s > SLOW_S)):
        return None
    number, _, stage = w.stamp
    begins = not w.paused or (w.jobs[0] == number and stage is not Stage.IDLE)
    begun = core.jobs[w.jobs[0]].draft if begins else None
    for job in w.jobs:
        running = core.jobs[job]
        session, draft = running.session, running.draft
        waits = running.wanted and not session.gone and bool(session.items) and session.items[0].draft is draft
        if waits and not draft.rescued and draft is not begun and session.rings[session.current].free:
            return running
    return None
