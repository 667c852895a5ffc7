"""How many workers a daemon begins with and may have: by the config, processors and memory.

What the segments may take is measured here, once for all who ask.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from loaderd.config.load import Config
from loaderd.core.verdict import MOST_WORKERS, READERS
from loaderd.system import file_limits, resource_limits
from loaderd.system.resource_limits import Room, size

OWN_BYTES = 200_000_000  # the daemon itself, and the pages that its workers share
REMOTE_BYTES = 80_000_000  # the process that stands for a worker on another host


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What a pool begins with and may become.

    Attributes:
        start: Workers at first.
        most: Workers at a time; as many as `start` if num_workers is a number.
        cpus: Processors that they may use.
        all_cpus: Processors that they could use, were this process not pinned to some.
        memory: Ceiling of all segments, in bytes.
        warnings: What speaks against it, in lines.
    """

    start: int
    most: int
    cpus: int
    all_cpus: int
    memory: int
    warnings: tuple[str, ...] = ()


def pool_limits(config: Config, root: str) -> PoolLimits:
    """The limits for a config on this machine.

    Args:
        config: What is served.
        root: Folder in which proc and the cgroups are found.
    """
    workers = config.workers
    mask, every = os.sched_getaffinity(0), resource_limits.cpuset(root)
    cpus = resource_limits.own_cpu_count()
    all_cpus = resource_limits.cpu_count(root, affinity=len(every), cpus=os.cpu_count() or 1)
    number = workers.num_workers
    auto = not isinstance(number, int)
    start = cpus if auto else number
    room = min(resource_limits.rooms(root), key=lambda room: room.limit, default=None)
    memory = resource_limits.segment_memory(config.daemon.memory, root)
    worker_memory = workers.worker_memory or 0
    own = OWN_BYTES + (REMOTE_BYTES * workers.ray.num_workers if workers.ray else 0)
    warnings = [*resource_limits.pinned(mask, every), *resource_limits.too_many(number, cpus)]
    if room is not None and (fit := _that_fit(room, memory + own, worker_memory)) < start:
        text = _shortage(room, memory, start, worker_memory, own)
        if auto and fit:
            warnings.append(f"{text}: it begins with {fit} of {start} workers; {_way_out(room)}")
            start = fit
        else:
            warnings.append(
                f"{text}: when all of it is used, the kernel kills workers; {_way_out(room)}"
            )
    most = _most(start, cpus) if auto else start
    return PoolLimits(start, most, cpus, all_cpus, memory, tuple(warnings))


def _most(start: int, cpus: int) -> int:
    """Workers that a pool may grow to: as many as readers find processors and descriptors."""
    spare = file_limits.raise_limit() - file_limits.in_use() - file_limits.RESERVE
    for_workers = spare // 2 // file_limits.A_WORKER  # the other half is for sessions
    return max(start, min(MOST_WORKERS, READERS * cpus, for_workers))


def _that_fit(room: Room, taken: int, worker_memory: int) -> int:
    """Workers for which a memory limit suffices, if all take what they may."""
    left = room.limit - taken
    if left < 0:
        return 0
    return left // worker_memory if worker_memory else MOST_WORKERS


def _shortage(room: Room, memory: int, start: int, worker_memory: int, own: int) -> str:
    need = memory + start * worker_memory + own
    workers = f" + {start} workers x worker_memory = {size(worker_memory)}" if worker_memory else ""
    return (
        f"[daemon] memory = {size(memory)}{workers} + {size(own)} for the daemon are "
        f"{size(need)}, and {room.where} is {size(room.limit)}"
    )


def _way_out(room: Room) -> str:
    return f"lower [daemon] memory, num_workers or worker_memory, or raise {room.setting}"
