"""The numbers of a daemon for Prometheus, out of its status.

prometheus-client takes as long to import as the rest of the daemon's libraries do together, so this
module is imported only where the pages are served.
"""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from loaderd.core.histogram import Durations
from loaderd.core.snapshot import SessionSnapshot
from loaderd.server.status_report import DaemonStatus, SessionStatus

# at the end of a line: whole numbers are written without a fraction, for whoever reads with grep
VALUE = re.compile(r"^([^#\n].* )(\S+)$", re.MULTILINE)
SESSION = ("stream", "rank", "session")  # labels
GROUP = ("stream", "group")


def text(status: DaemonStatus) -> str:
    """All numbers in Prometheus' text format.

    Args:
        status: Of a daemon that serves.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(status))
    return VALUE.sub(
        lambda found: f"{found[1]}{float(found[2]):.15g}", generate_latest(registry).decode()
    )


class _Snapshot(Collector):
    def __init__(self, status: DaemonStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        yield from _daemon(self._status)
        yield from _workers(self._status)
        yield from _streams(self._status)
        yield from _sessions(self._status)
        yield from _groups(self._status)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"loaderd_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"loaderd_{name}", text, value=value)


def _by_label(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    text: str,
    label: str,
    values: Mapping[str, float],
) -> Metric:
    family = kind(f"loaderd_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _daemon(status: DaemonStatus) -> Iterator[Metric]:
    info = GaugeMetricFamily("loaderd_build_info", "1; what runs", labels=["version", "python"])
    info.add_metric([status.version, platform.python_version()], 1)
    yield info
    yield _gauge("ready", "1 while the daemon serves", status.state == "ready")
    yield _gauge("sessions", "trainers attached", len(status.sessions))
    waiting = [s.progress for s in status.sessions if s.progress is not None and s.progress.waiting]
    yield _gauge("sessions_waiting", "trainers that wait for a batch", len(waiting))
    if status.memory is not None:
        limit, segments = status.memory.limit, status.memory.segments
        yield _gauge("memory_limit_bytes", "limit of all segments together", limit)
        yield _gauge("memory_segment_bytes", "shared memory of all segments", segments)
    if status.quarantine is not None:
        yield _counter("bad_samples", "bad samples recorded", status.quarantine.count)
    yield _counter("loop_turns", "turns of the daemon's event loop", status.turns)
    own = "processor time of the daemon's own process, without workers"
    yield _counter("cpu_seconds", own, status.cpu_s)
    yield _counter("lost_seconds", "time in which the daemon did not run", status.lost_s)


def _workers(status: DaemonStatus) -> Iterator[Metric]:
    states = Counter("busy" if each.work.jobs else each.work.state for each in status.workers)
    yield _by_label(GaugeMetricFamily, "workers", "workers by state", "state", states)
    remote = status.pool.remote if status.pool is not None else None
    if remote is not None:
        wanted = "workers that there may be on other hosts"
        yield _gauge("remote_workers_wanted", wanted, remote.wanted)
        yield _gauge("remote_workers", "workers on other hosts that are at work", remote.up)
    taken = sum(each.process.anon_bytes for each in status.workers if each.process is not None)
    yield _gauge("worker_memory_bytes", "anonymous memory of all workers", taken)
    yield _gauge("jobs", "jobs that workers have and have not answered", status.jobs)
    restarts = "workers started in place of another, by what became of that one"
    yield _by_label(CounterMetricFamily, "restarts", restarts, "cause", status.restarts)


def _streams(status: DaemonStatus) -> Iterator[Metric]:
    made = dict.fromkeys((session.stream for session in status.sessions), 0.0)
    for session in status.sessions:
        made[session.stream] += session.progress.made if session.progress is not None else 0
    current = "batches made for the current sessions"
    yield _by_label(GaugeMetricFamily, "session_batches", current, "stream", made)
    failed = {name: float(bool(stream.failed)) for name, stream in status.streams.items()}
    ended = "1 for a stream that has ended on a fault"
    yield _by_label(GaugeMetricFamily, "stream_failed", ended, "stream", failed)
    served = {
        name: stream.progress
        for name, stream in status.streams.items()
        if stream.progress is not None
    }
    batches = {name: float(stream.batches) for name, stream in served.items()}
    taken = "batches that trainers took"
    yield _by_label(CounterMetricFamily, "batches", taken, "stream", batches)
    written = {name: float(stream.bytes) for name, stream in served.items()}
    sizes = "bytes that workers wrote"
    yield _by_label(CounterMetricFamily, "bytes", sizes, "stream", written)
    waits = _histogram("next_wait_seconds", "time that a trainer waited for a batch", ["stream"])
    spans = _histogram("batch_seconds", "time from a slot's claim to its batch", ["stream"])
    stages = _histogram(
        "stage_seconds", "workers' time for a sample, the mean of its job", ["stream", "stage"]
    )
    for name, stream in served.items():
        for what, durations in stream.durations.items():
            if what == "wait":
                _add(waits, [name], durations)
            elif what == "batch":
                _add(spans, [name], durations)
            else:
                _add(stages, [name, what], durations)
    yield from (waits, spans, stages)


def _histogram(name: str, text: str, labels: list[str]) -> HistogramMetricFamily:
    return HistogramMetricFamily(f"loaderd_{name}", text, labels=labels)


def _add(family: HistogramMetricFamily, labels: list[str], durations: Durations) -> None:
    ends = [*map(str, durations.bounds_s), "+Inf"]
    buckets = list(zip(ends, accumulate(durations.counts), strict=True))
    family.add_metric(labels, buckets, sum_value=durations.sum_s)


def _sessions(status: DaemonStatus) -> Iterator[Metric]:
    kinds = GaugeMetricFamily(
        "loaderd_verdict",
        "1 for what bounds each session, such as decode-bound",
        labels=[*SESSION, "verdict"],
    )
    fraction = GaugeMetricFamily(
        "loaderd_wait_fraction",
        "part of the last half minute that the trainer waited",
        labels=SESSION,
    )
    needed = GaugeMetricFamily(
        "loaderd_workers_needed", "workers with which the trainer would not wait", labels=SESSION
    )
    left = GaugeMetricFamily(
        "loaderd_epoch_left_seconds", "time to the end of the epoch at this rate", labels=SESSION
    )
    behind = GaugeMetricFamily(
        "loaderd_session_lag_batches",
        "batches by which it is behind the session of its group that is furthest",
        labels=SESSION,
    )
    for session, progress in _known(status):
        labels = [session.stream, str(session.rank), str(session.session)]
        verdict, rates = progress.verdict, progress.rates
        if verdict is not None:
            kinds.add_metric([*labels, verdict.kind], 1)
            fraction.add_metric(labels, verdict.wait_fraction)
            if verdict.need_workers is not None:
                needed.add_metric(labels, verdict.need_workers)
        if rates is not None and rates.eta_s is not None:
            left.add_metric(labels, rates.eta_s)
        if progress.lag is not None:
            behind.add_metric(labels, progress.lag)
    yield from (kinds, fraction, needed, left, behind)


def _groups(status: DaemonStatus) -> Iterator[Metric]:
    sessions = GaugeMetricFamily(
        "loaderd_group_sessions", "sessions that share their batches", labels=GROUP
    )
    counters = {
        "batches_made": "batches made for a group",
        "batches_told": "batches that sessions of a group were told of",
        "hits": "those of them that had been made for another session",
    }
    families = {
        name: CounterMetricFamily(f"loaderd_group_{name}", text, labels=GROUP)
        for name, text in counters.items()
    }
    for group in status.groups:
        labels = [group.stream, str(group.group)]
        sessions.add_metric(labels, len(group.sessions))
        counts = (group.made, group.told, group.hits)
        for family, count in zip(families.values(), counts, strict=True):
            family.add_metric(labels, count)
    yield from (sessions, *families.values())


def _known(status: DaemonStatus) -> Iterator[tuple[SessionStatus, SessionSnapshot]]:
    for session in status.sessions:
        if session.progress is not None:
            yield session, session.progress
