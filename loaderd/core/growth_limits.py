"""How many workers a pool may grow to: processors, batches that can be made at once, memory."""

from __future__ import annotations

from collections.abc import Mapping

from loaderd.core.state import SchedulerState
from loaderd.core.verdict import (
    AutoSize,
    Measures,
    at_all_cpus,
    largest_stage,
    most_workers,
    waits_for_workers,
)

WORKER_BYTES = 64 << 20  # that a worker is taken to need, at least


def growth_limits(
    state: SchedulerState,
    found: Mapping[int, Measures],
    wanted: int,
    free_bytes: int,
    worker_memory: int,
) -> list[tuple[int, AutoSize]]:
    """What limits the growth of a pool.

    Args:
        state: The tables.
        found: What was measured, by session. One at least waits for workers.
        wanted: Workers with which no trainer would wait.
        free_bytes: Memory that more workers may take together.
        worker_memory: Bytes that a worker may take; 0: no limit.

    Returns:
        (workers that there may be, why no more) for each.
    """
    pool = state.pool
    stage_s = tuple(map(sum, zip(*(m.stage_s for m in found.values()), strict=True)))
    stage, _ = largest_stage(stage_s)
    reach = sum(_reach(state, number, m, wanted) for number, m in found.items())
    prefetch = max(m.prefetch for m in found.values() if waits_for_workers(m))
    more = f"prefetch = {2 * prefetch}"
    each = worker_memory or max(WORKER_BYTES, *(w.anon_bytes for w in pool.workers.values()))
    room = max(0, free_bytes // each - 1)
    return [
        (most_workers(state.cpus, stage_s), at_all_cpus(state.cpus, stage, state.all_cpus)),
        (reach, AutoSize(f"only {reach} workers can help: give the Loader {more}", more)),
        (
            pool.size + room,
            AutoSize(
                f"memory has no room for another worker ({free_bytes >> 20} MiB are free, a "
                f"worker takes {each >> 20} MiB): raise the container's limit, or lower "
                "[daemon] memory",
                "memory",
            ),
        ),
    ]


def _reach(state: SchedulerState, number: int, m: Measures, wanted: int) -> int:
    """Workers that can work for a session at once, of so many."""
    stream = state.streams[state.sessions[number].stream]
    parts = stream.parts(m.batch_rows, wanted, m.prefetch, urgent=False)
    return min(wanted, m.prefetch * parts)
