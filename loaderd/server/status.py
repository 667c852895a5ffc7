"""The parts of a daemon's status put together, its numbers for Prometheus, and lines about streams.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from loaderd.config.stream import StreamConfig
from loaderd.core.snapshot import SchedulerSnapshot, StreamSnapshot
from loaderd.engine.base import EngineStatus
from loaderd.server.admission import OpenedStream
from loaderd.server.status_report import (
    DaemonStatus,
    FieldStatus,
    OpenedStatus,
    SessionStatus,
    StreamStatus,
    WorkerStatus,
)
from loaderd_wire.hints import few


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


def prometheus(numbers: Mapping[str, tuple[str, str, float | Mapping[str, float]]]) -> str:
    """Prometheus' text format.

    Args:
        numbers: Name -> (kind, help, value, or a value for each label set as 'stream="train"').
    """
    lines: list[str] = []
    for name, (kind, text, value) in numbers.items():
        lines += [f"# HELP loaderd_{name} {text}", f"# TYPE loaderd_{name} {kind}"]
        for labels, number in value.items() if isinstance(value, Mapping) else [("", value)]:
            lines.append(
                f"loaderd_{name}{{{labels}}} {number:.15g}"
                if labels
                else f"loaderd_{name} {number:.15g}"
            )
    return "\n".join(lines) + "\n"


def label(name: str, value: str) -> str:
    r"""name="value" with Prometheus' escapes."""
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'{name}="{escaped}"'


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
        opened = OpenedStatus(found.facts.samples, found.facts.total, found.facts.layout, fields)
    return StreamStatus(
        plan.data_name,
        plan.batch_size,
        found is not None,
        failed,
        opened,
        progress,
    )


def workers(inside: SchedulerSnapshot, engine: EngineStatus) -> tuple[WorkerStatus, ...]:
    """The workers, as the scheduler knows them and as processes."""
    return tuple(WorkerStatus(work, engine.workers.get(work.worker)) for work in inside.workers)


def numbers(status: DaemonStatus) -> dict[str, tuple[str, str, float | Mapping[str, float]]]:
    """What Prometheus is told, out of a status of a daemon that serves."""
    made: dict[str, float] = {}
    waiting = 0
    for session in status.sessions:
        stream = label("stream", session.stream)
        made.setdefault(stream, 0)
        if session.progress is not None:
            made[stream] += session.progress.made
            waiting += session.progress.waiting
    states: dict[str, float] = {}
    for worker in status.workers:
        state = label("state", "busy" if worker.work.jobs else worker.work.state)
        states[state] = states.get(state, 0) + 1
    failed = {
        label("stream", name): float(bool(stream.failed)) for name, stream in status.streams.items()
    }
    assert status.memory is not None
    assert status.quarantine is not None
    waits = {
        _session_labels(session): session.progress.verdict
        for session in status.sessions
        if session.progress is not None and session.progress.verdict is not None
    }
    return {
        "verdict": (
            "gauge",
            "1 for what bounds each session, such as decode-bound",
            {f"{at},{label('verdict', each.kind)}": 1.0 for at, each in waits.items()},
        ),
        "wait_fraction": (
            "gauge",
            "part of the last half minute that the trainer waited",
            {at: each.wait_fraction for at, each in waits.items()},
        ),
        "workers_needed": (
            "gauge",
            "workers with which the trainer would not wait",
            {at: each.need_workers for at, each in waits.items() if each.need_workers is not None},
        ),
        "ready": ("gauge", "1 while the daemon serves", float(status.state == "ready")),
        "sessions": ("gauge", "trainers attached", len(status.sessions)),
        "sessions_waiting": ("gauge", "trainers that wait for a batch", waiting),
        "session_batches": ("gauge", "batches made for the current sessions", made),
        "workers": ("gauge", "workers by state", states),
        "jobs": ("gauge", "jobs that workers have and have not answered", status.jobs),
        "stream_failed": ("gauge", "1 for a stream that has ended on a fault", failed),
        "memory_limit_bytes": ("gauge", "limit of all segments together", status.memory.limit),
        "memory_segment_bytes": ("gauge", "shared memory of all segments", status.memory.segments),
        "bad_samples_total": ("counter", "bad samples recorded", status.quarantine.count),
        "loop_turns_total": ("counter", "turns of the daemon's event loop", status.turns),
        "cpu_seconds_total": (
            "counter",
            "processor time of the daemon's own process, without workers",
            status.cpu_s,
        ),
        "lost_seconds_total": ("counter", "time in which the daemon did not run", status.lost_s),
    }


def _session_labels(session: SessionStatus) -> str:
    named = {"stream": session.stream, "rank": str(session.rank), "session": str(session.session)}
    return ",".join(label(name, value) for name, value in named.items())


def stream_counts(streams: Iterable[tuple[str, int]]) -> str:
    """Streams with their samples, as "train (1437), val (360)"."""
    return few([f"{name} ({count})" for name, count in streams])
