"""What a waiting trainer waits for, in words."""

from __future__ import annotations

from loaderd.core import stack_dumps
from loaderd.core.groups import GroupMember
from loaderd.core.jobs import SINGLE, Stage, importing
from loaderd.core.pool_worker import PoolWorker, WorkerState
from loaderd.core.sessions import SessionState
from loaderd.core.slots import SlotState
from loaderd.core.state import SchedulerState
from loaderd_wire.hints import counted

SHOWN = 64  # workers in a detail
DOING = {
    Stage.OPEN: "opening the dataset",
    Stage.READ: "reading",
    Stage.DECODE: "decoding",
    Stage.TRANSFORM: "transforming",
    Stage.WRITE: "writing",
    Stage.FETCH_MANY: "reading",
    Stage.COLLATE: "collating",
    Stage.COMPACT: "compacting the batch",
}


def explain(state: SchedulerState, session: SessionState, now_s: float) -> tuple[str, str]:
    """What a session's next batch waits for.

    Args:
        state: The tables.
        session: The session.
        now_s: Time of the event.

    Returns:
        (one line, the same with all that is known of the workers), or ("", "") if it waits for
            nothing.
    """
    line = next_batch_line(state, session, now_s)
    if not line:
        return "", ""
    stream = state.streams[session.stream]
    lines = [line]
    first = blocking_workers(state, session)
    known = {w.worker for w in first}
    told = first + [
        w
        for w in state.pool.workers.values()
        if w.worker not in known and (w.jobs or w.life is not WorkerState.UP)
    ]
    for n, w in enumerate(told[:SHOWN]):
        lines += [_worker_line(w, now_s), *(_stack_lines(w, now_s) if n < stack_dumps.MOST else [])]
    if len(told) > SHOWN:
        lines.append(f"and {counted(len(told) - SHOWN, 'more worker')}")
    if stream.last_death:
        lines.append(f"the last worker that died on stream {session.stream}: {stream.last_death}")
        lines += [stack_dumps.cut(stream.last_stack)] if stream.last_stack else []
    return line, "\n".join(lines)


def blocking_workers(state: SchedulerState, session: SessionState) -> list[PoolWorker]:
    """The workers that a session's next batch waits for.

    Those that make it; if it has no slot, those that keep the session's slots in use; if nobody
    makes it, all that are busy, or else starting.
    """
    if session.ended or not session.window.items or session.window.items[0].build.whole:
        return []
    build = session.window.items[0].build
    workers = state.pool.workers
    if build.place is None:
        return [
            w for w in workers.values() if any(state.jobs[n].owner is session.owner for n in w.jobs)
        ]
    at = [workers[state.jobs[number].worker] for number in build.running]
    return (
        at
        or [w for w in workers.values() if w.jobs]
        or [w for w in workers.values() if w.life is WorkerState.STARTING]
    )


def _stack_lines(w: PoolWorker, now_s: float) -> list[str]:
    if w.paused:
        return ["  its stack cannot be read while it is stopped"]
    stack = stack_dumps.of(w)
    return (
        [
            f"  its stacks {now_s - w.stack_s:.1f} s ago:",
            *("  " + line for line in stack.splitlines()),
        ]
        if stack
        else []
    )


def next_batch_line(state: SchedulerState, session: SessionState, now_s: float) -> str:
    """What the next batch waits for, in one line; "" if it waits for nothing."""
    if session.ended:
        return session.ended
    if not session.window.items:
        return (
            ""
            if session.window.plan
            else "the daemon has not received a request of this client yet"
        )
    item = session.window.items[0]
    build = item.build
    if build.whole:
        return untold(session)
    batch = f"batch {item.k} (epoch {item.cursor.epoch}, step {item.cursor.step})"
    if build.place is None:
        return f"{batch} has no slot: {no_slot(session)}"
    rows = _ranges(build.missing())
    at = [state.pool.workers[state.jobs[number].worker] for number in build.running]
    if at:
        w = max(at, key=lambda w: (w.paused, w.quiet_s))
        died = state.streams[session.stream].died
        before = (
            (
                f"; {died} workers died on it before, the last: "
                f"{state.streams[session.stream].last_death}"
            )
            if died > 1
            else ""
        )
        return f"{batch} waits for rows {rows}: {_worker_line(w, now_s)}{before}"
    return f"{batch} waits for rows {rows}: {_no_worker(state, session, now_s)}"


def untold(session: SessionState) -> str:
    """Why a session is not told of its next batch, which is made; "" if it is."""
    if isinstance(session, GroupMember) and not session.window.items[0].announced:
        kept = len(session.slots.announced)
        if session.slots.keeps_too_many(session.window.prefetch):
            return f"the client has not given back {kept} batches that it was told of"
    return ""


def no_slot(session: SessionState) -> str:
    """Why the next batch of a session has no slot."""
    if session.owner.slots.growing:
        return "waiting for a larger segment"
    table = session.slots.table
    slots = len(table.state)
    leased = table.count(SlotState.LEASED)
    if leased == slots:
        return f"the trainer holds all {slots} slots"
    if isinstance(session, GroupMember) and session.group.slots.all_announced:
        return (
            f"other trainers that share its batches have not read those in all {slots} slots, and "
            "there is no memory for more"
        )
    parts = [f"{table.count(s)} {s.value}" for s in SlotState if table.count(s)]
    return f"of {slots} slots {', '.join(parts)}"


def _no_worker(state: SchedulerState, session: SessionState, now_s: float) -> str:
    pool = state.pool
    if pool.up == 0:
        stuck = sum(w.life is WorkerState.STUCK for w in pool.workers.values())
        more = f" ({stuck} cannot be killed)" if stuck else ""
        first = next(
            (w for w in pool.workers.values() if w.life is WorkerState.STARTING and w.doing), None
        )
        doing = f": {_worker_line(first, now_s)}" if first else ""
        stream = state.streams[session.stream]
        last = f"; the last death: {stream.last_death}" if stream.last_death else ""
        if pool.boot_deaths:
            last = (
                f"; {pool.boot_deaths} died before they were ready, the last: "
                f"{pool.last_boot_death}"
            )
        return f"workers are starting{more}{doing}{last}"
    if pool.available.idle:
        return (
            "workers that are idle are slow, and a quicker one that is busy will make them sooner"
        )
    own = sum(state.jobs[n].owner is session.owner for w in pool.workers.values() for n in w.jobs)
    busy = len(state.jobs)
    if own < busy:
        return f"workers are busy with other sessions' batches ({busy - own} of {busy} jobs)"
    if not busy:
        return "no worker is free"
    who = f"all {pool.up} workers are" if pool.up > 1 else "the only worker is"
    return f"{who} busy with this session's other rows"


def _worker_line(w: PoolWorker, now_s: float) -> str:
    name = f"worker {w.worker}"
    number, row, stage = w.stamp
    if w.paused:
        at = (
            f", {DOING[stage]} row {row}, sample {w.key or '?'}"
            if number in w.jobs and stage in SINGLE
            else ""
        )
        return (
            f"{name} is stopped by a signal (T), {now_s - w.paused_s:.1f} s so far{at}; "
            "continue it with SIGCONT"
        )
    if w.life is WorkerState.STARTING:
        return (
            f"{name} has been {w.doing} for {now_s - w.doing_s:.1f} s"
            if w.doing
            else f"{name} is starting"
        )
    if w.life is WorkerState.KILLED:
        return f"{name} was killed and has not exited yet"
    if w.life is WorkerState.STUCK:
        return f"{name} cannot be killed: its slots stay reserved until it exits"
    if number not in w.jobs or stage is Stage.IDLE:
        return (
            f"{name} has just started a job"
            if w.life is WorkerState.UP
            else f"{name} is {w.life.value}"
        )
    row_of = f" row {row}, sample {w.key or '?'}," if stage in SINGLE else ""
    what = f"importing modules while {DOING[stage]}" if importing(w.word) else DOING[stage]
    return f"{name} has been {what}{row_of} for {busy_s(w, now_s):.1f} s"


def _ranges(rows: list[tuple[int, int]]) -> str:
    merged: list[list[int]] = []
    for first, last in rows:
        if merged and first <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    text = ", ".join(
        f"{first}" if last - first == 1 else f"{first}-{last - 1}" for first, last in merged[:8]
    )
    return text + (", ..." if len(merged) > 8 else "")


def busy_s(w: PoolWorker, now_s: float) -> float:
    """For how many seconds a worker has been doing what it does."""
    if w.life is WorkerState.STARTING:
        return now_s - w.doing_s if w.doing else 0.0
    if w.paused:
        return now_s - w.paused_s
    return (w.import_s if importing(w.word) else w.quiet_s) + max(0.0, now_s - w.looked_s)
