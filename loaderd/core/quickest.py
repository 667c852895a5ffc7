"""Which of quick and slow workers makes rows sooner."""

from __future__ import annotations

from itertools import chain, islice

from loaderd.core.batch_window import PlannedBatch
from loaderd.core.jobs import SINGLE
from loaderd.core.pool_worker import PoolWorker
from loaderd.core.slot_owner import SlotOwner
from loaderd.core.state import RunningJob, SchedulerState
from loaderd.core.worker_pace import MOST

SOON = 3  # a job that a trainer waits for stands behind work of so many times its worker's lag
LOOKED_AT = 8  # busy workers of which the first to be free is sought: a step's cost is bounded
# A slow worker gets a piece all the same after it has had none for so long, and for so many times
# what the piece takes it: it may be quick again, and nothing else shows that.
AGAIN_S, AGAIN = 5.0, 20
BETWEEN_LOOKS_S = 1.0  # a row may have been finished so long before that was seen


def left_s(
    state: SchedulerState, w: PoolWorker, last: int | None = None, *, late: bool = True
) -> float | None:
    """Seconds until a worker will have answered its jobs.

    Args:
        state: The tables.
        w: A worker with jobs.
        last: The job that counts as its last one; None: all of them.
        late: One that is late is expected to be late by as much again. Else it is expected to
            answer at once.

    Returns:
        None if it is unknown what its jobs take.
    """
    total_s = 0.0
    for n, number in enumerate(w.jobs):
        work_s = _work_s(state, state.jobs[number])
        if work_s is None:
            return None
        takes_s = w.pace.takes_s(work_s)
        if n == 0:
            takes_s -= state.now_s - w.pace.begun_s
            takes_s = abs(takes_s) if late else max(0.0, takes_s)
        total_s += takes_s
        if number == last:
            break
    return total_s


def is_held(state: SchedulerState, owner: SlotOwner, item: PlannedBatch, worker: int) -> bool:
    """Whether the next rows of a batch are kept from a worker, because it is too slow for them.

    It is if quicker workers, which are busy, will have made all rows up to the end of this batch
    before it would have made its piece, and it has been tried lately.

    Args:
        state: The tables.
        owner: The session, or the group.
        item: A batch of it, with work.
        worker: A worker with room; no quicker one is idle.
    """
    pool = state.pool
    if not pool.available.mixed:
        return False
    w = pool.workers[worker]
    busy = pool.available.busy_before(w.pace.tier)
    if not busy:
        return False
    build, stream = item.build, state.streams[owner.stream]
    urgent = item.k == owner.window.taken
    parts = stream.parts(
        build.slice.rows, pool.strength, owner.window.prefetch, urgent, pool.available.busy
    )
    piece_s = stream.work_s(build.next_rows(parts, w.pace.share))
    own_s = left_s(state, w)
    if piece_s is None or own_s is None:
        return False
    takes_s = own_s + w.pace.takes_s(piece_s)
    if not w.jobs and state.now_s - w.pace.begun_s > max(AGAIN_S, AGAIN * takes_s):
        return False
    quick = sum(map(len, busy))
    each_s = stream.work_s(_most_rows(owner, item, quick)) or 0.0
    for number in islice(chain.from_iterable(busy), LOOKED_AT):
        other = pool.workers[number]
        free_s = None if other.paused else left_s(state, other)
        if free_s is not None and free_s + other.pace.takes_s(each_s) < takes_s:
            return True
    return False


def _most_rows(owner: SlotOwner, item: PlannedBatch, workers: int) -> int:
    """How many rows each of some workers makes until a batch and those before it are there."""
    builds = [one.build for one in owner.window.items if one.k <= item.k]
    if item.build.collated:
        left = sum(build.rows_left > 0 for build in builds)
        return item.build.slice.rows * -(-left // workers)
    return -(-sum(build.rows_left for build in builds) // workers)


def idle_worker(state: SchedulerState) -> PoolWorker:
    """One of the quickest workers without a job. There must be one."""
    idle = state.pool.available.idle_tiers
    return state.pool.workers[next(iter(idle[min(idle)]))]


def soon_idle(state: SchedulerState) -> int | None:
    """A worker with one job that will be idle soon after another one could reach it.

    Jobs and answers of a borrowed worker are under way for a while, in which it would be idle. One
    that is late may hang: it gets nothing more that a trainer waits for.

    Args:
        state: The tables.
    """
    worker = state.pool.available.pick(second=True)
    if worker is None:
        return None
    w = state.pool.workers[worker]
    rest_s = left_s(state, w, late=False) if w.jobs else None
    return worker if rest_s is not None and 0 < rest_s <= SOON * w.pace.lag_s else None


def is_overtaken(state: SchedulerState, w: PoolWorker, running: RunningJob) -> bool:
    """Whether idle workers make the whole batch of a job sooner than its worker does that job.

    The worker is known to be slow, or the status board shows that the rows of this job are. That it
    is late with a row tells nothing: it may hang, and would hang the others, too.

    Args:
        state: The tables.
        w: The worker.
        running: One of its jobs.
    """
    idle = state.pool.available.idle_tiers
    if not idle:
        return False
    build, quick = running.build, idle_worker(state)
    stream, rows = state.streams[build.stream], build.slice.rows
    workers = 1 if build.collated else min(len(idle[min(idle)]), rows)
    each_s = stream.work_s(-(-rows // workers))
    rest_s = _seen_left_s(state, w, running.job.job)
    if rest_s is None and min(idle) < w.pace.tier:
        rest_s = left_s(state, w, running.job.job, late=False)
    return each_s is not None and rest_s is not None and quick.pace.takes_s(each_s) < rest_s


def _seen_left_s(state: SchedulerState, w: PoolWorker, last: int) -> float | None:
    """Seconds until a worker will have answered a job, if it is much slower than it was.

    That is seen by the rows of its first job that it has finished. A row that is not finished tells
    nothing: it may hang, and would hang elsewhere.

    Args:
        state: The tables.
        w: The worker.
        last: One of its jobs.
    """
    first = state.jobs[w.jobs[0]]
    number, row, stage = w.stamp
    done_s = state.streams[first.job.stream].work_s(row - first.job.first)
    # in its first job of all it has opened the stream
    if number != first.job.job or stage not in SINGLE or not done_s or not w.proven:
        return None
    took_s = w.rows_s - w.pace.lag_s - BETWEEN_LOOKS_S
    if took_s <= MOST * w.pace.slowness * done_s:
        return None
    work_s = -done_s
    for job in w.jobs:
        work_s += _work_s(state, state.jobs[job]) or 0.0
        if job == last:
            break
    return work_s * took_s / done_s


def _work_s(state: SchedulerState, running: RunningJob) -> float | None:
    job = running.job
    return state.streams[job.stream].work_s(job.last - job.first)
