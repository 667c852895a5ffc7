"""The verdict on a session, out of the scheduler's tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from loaderd.core.sessions import SessionState
from loaderd.core.state import SchedulerState
from loaderd.core.usage import UsageSample, busy_workers
from loaderd.core.verdict import IDLE, STARTING, Measures, Verdict, idle, starting, verdict
from loaderd_wire.slices import steps_left

ENOUGH_BATCHES, ENOUGH_S = 4, 5.0  # a verdict needs so many batches, or so much time


def assess(state: SchedulerState, session: SessionState, now_s: float) -> Verdict:
    """The verdict on a session now.

    Args:
        state: The tables.
        session: The session.
        now_s: Time of the event.
    """
    usage = session.usage
    if silent_s := usage.silent_s(now_s):
        return idle(silent_s)
    measured = measure(state, session, now_s)
    if measured is None or (measured.batches < ENOUGH_BATCHES and measured.elapsed_s < ENOUGH_S):
        return starting()
    if not usage.knows_wait:
        return starting("the client of an older version does not say how long it waits")
    return verdict(measured)


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a session goes, over the last half minute.

    Attributes:
        batches_per_s: Batches a second that its trainer takes.
        bytes_per_s: Bytes a second that workers write for it.
        wait_fraction: Part of the time that the trainer waits, in [0, 1].
        eta_s: Seconds to the end of the epoch at this rate; None if nothing moves.
    """

    batches_per_s: float
    bytes_per_s: float
    wait_fraction: float
    eta_s: float | None


def rates(state: SchedulerState, session: SessionState, now_s: float) -> Rates | None:
    """How fast a session goes; None before its first batch.

    Args:
        state: The tables.
        session: The session.
        now_s: Time of the event.
    """
    usage, window = session.usage, session.usage.window(now_s, state.usage)
    if window is None or window.counted_s <= 0:
        return None
    if usage.silent_s(now_s):
        return Rates(0.0, 0.0, 0.0, None)
    per_s, items = window.batches / window.counted_s, session.window.items
    left = steps_left(session.window.shape, items[0].cursor.position) if items else 0
    return Rates(
        batches_per_s=per_s,
        bytes_per_s=window.bytes / window.counted_s,
        wait_fraction=min(1.0, window.waited_s / window.counted_s),
        eta_s=left / per_s if per_s and items else None,
    )


def measure(state: SchedulerState, session: SessionState, now_s: float) -> Measures | None:
    """What was measured of a session lately; None before its first batch.

    Args:
        state: The tables.
        session: The session.
        now_s: Time of the event.
    """
    window = session.usage.window(now_s, state.usage)
    return None if window is None else measures(state, session, window)


def measures(state: SchedulerState, session: SessionState, window: UsageSample) -> Measures:
    """What was measured of a session in a window.

    Args:
        state: The tables.
        session: The session.
        window: How far the counters went in it.
    """
    workers, prefetch = state.pool.at_work, session.window.prefetch
    batch_rows = session.window.shape.batch_size
    parts = state.streams[session.stream].parts(batch_rows, workers, prefetch, urgent=False)
    others = (s.need for s in state.sessions.values() if s is not session)
    return Measures(
        elapsed_s=window.counted_s,
        waited_s=window.waited_s,
        batches=window.batches,
        held_s=window.held_s,
        stage_s=(window.read_s, window.decode_s, window.transform_s, window.write_s),
        rows=window.rows,
        bytes=window.bytes,
        batch_rows=batch_rows,
        prefetch=prefetch,
        jobs=min(workers, prefetch * parts),
        busy=busy_workers(window),
        workers=workers,
        had=window.workers_s / window.now_s if window.now_s > 0 else workers,
        others_need=sum(others),
        cpus=state.cpus,
        all_cpus=state.all_cpus,
        auto=state.auto,
        remote=len(state.pool.remote.up),
        remote_bytes_per_s=window.remote_bytes / window.now_s if window.now_s > 0 else 0.0,
        shares=session.owner is not session,
    )


def worst(verdicts: Iterable[Verdict | None]) -> Verdict | None:
    """The verdict on the trainer that waits most; None if there is none.

    Args:
        verdicts: Of all sessions. One that says nothing counts only if all are so.
    """
    known = [each for each in verdicts if each is not None]
    return max(
        known, key=lambda v: (v.kind != IDLE, v.kind != STARTING, v.wait_fraction), default=None
    )
