"""The parts of a daemon's status put together, and lines about streams.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from loaderd.config.stream import StreamConfig
from loaderd.core.snapshot import SchedulerSnapshot, StreamSnapshot
from loaderd.engine.base import EngineStatus
from loaderd.server.admission import OpenedStream
from loaderd.server.status_report import (
    FieldStatus,
    OpenedStatus,
    StreamStatus,
    WorkerStatus,
)
from loaderd_wire.hints import few

MOST_COPIES = 3  # that are named in words


def stream_faults(faults: Mapping[str, str]) -> str:
    """What is wrong with each stream, as text.

    What several have in common, such as a module that can't be imported, is told once.

    Args:
        faults: Name -> what is wrong.
    """
    each: dict[str, list[str]] = {}
    for name, text in sorted(faults.items()):
        each.setdefault(text, []).append(repr(name))
    return "\n".join(
        f"{'stream' if len(names) == 1 else 'streams'} {few(names)}: {text}"
        for text, names in each.items()
    )


def stream(
    plan: StreamConfig, found: OpenedStream | None, failed: str, progress: StreamSnapshot | None
) -> StreamStatus:
    """A stream of the config.

    Args:
        plan: What the config says.
        found: None where it has not been opened.
        failed: Why it serves nobody, or could not be opened when it was last asked for; "" if
            neither.
        progress: What the scheduler knows of it; None where it is not served yet.
    """
    opened = None
    if found is not None:
        fields = tuple(
            FieldStatus(spec.name, spec.dtype, spec.shape, spec.kind) for spec in found.facts.specs
        )
        facts = found.facts
        opened = OpenedStatus(
            facts.samples, facts.total, facts.layout, fields, copies_of(found.plan)
        )
    return StreamStatus(
        plan.data_name,
        plan.batch_size,
        found is not None,
        failed,
        opened,
        progress,
    )


def copies_of(plan: StreamConfig) -> dict[str, str]:
    """Path of each database of an opened stream that was copied -> path of its copy."""
    return {path: copy for each in (plan, *plan.sources) for path, copy in each.copies.items()}


def copies_told(copies: Mapping[str, str]) -> str:
    """That a stream is read from copies, in words; "" if it is not."""
    if not copies:
        return ""
    which = "its staged copy" if len(copies) == 1 else "staged copies"
    return f"read from {which} {few(copies.values(), MOST_COPIES)}"


def workers(inside: SchedulerSnapshot, engine: EngineStatus) -> tuple[WorkerStatus, ...]:
    """The workers, as the scheduler knows them and as processes."""
    return tuple(WorkerStatus(work, engine.workers.get(work.worker)) for work in inside.workers)


def node_of(worker: WorkerStatus) -> str:
    """Name of the other host that a worker is on, "?" until it is ready there; "" for this one."""
    if not worker.work.remote:
        return ""
    return (worker.process.node if worker.process is not None else "") or "?"


def stream_counts(streams: Iterable[tuple[str, int]]) -> str:
    """Streams with their samples, as "train (1437), val (360)"."""
    return few([f"{name} ({count})" for name, count in streams])
