"""One picture of a running daemon: as JSON for `status`, as numbers for Prometheus. It is told nearly everything."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from loaderd import __version__
from loaderd.config.stream import StreamConfig
from loaderd.data import native_library
from loaderd.server.admission import OpenedStream
from loaderd_wire.hints import few

MAX_BODY = 1 << 20  # characters of a picture; a wire string can't be longer


def to_json(picture: Mapping[str, Any]) -> str:
    """The picture as JSON that fits a Report: where it doesn't, the longest lists are cut, and "cut" says which."""
    shown = dict(picture)
    text = json.dumps(shown, default=str)
    while len(text.encode()) > MAX_BODY:
        lists = {name: len(json.dumps(value, default=str)) for name, value in shown.items() if isinstance(value, list) and value}
        if not lists:
            return json.dumps({"state": picture.get("state"), "failed": picture.get("failed"), "cut": ["all"]})
        longest = max(lists, key=lambda name: lists[name])
        shown[longest] = shown[longest][: len(shown[longest]) // 2]
        shown["cut"] = sorted({*shown.get("cut", ()), longest})
        text = json.dumps(shown, default=str)
    return text


def stream_faults(faults: Mapping[str, str]) -> str:
    """Names of streams -> what is wrong with each, as text: what several have in common, such as a module that can't be imported, is told
    once."""
    each: dict[str, list[str]] = {}
    for name, text in sorted(faults.items()):
        each.setdefault(text, []).append(repr(name))
    return "\n".join(f"{'stream' if len(names) == 1 else 'streams'} {few(names)}: {text}" for text, names in each.items())


def prometheus(numbers: Mapping[str, tuple[str, str, float | Mapping[str, float]]]) -> str:
    """Prometheus' text format. numbers: name -> (kind, help, value, or a value for each label set as 'stream="train"')."""
    lines: list[str] = []
    for name, (kind, text, value) in numbers.items():
        lines += [f"# HELP loaderd_{name} {text}", f"# TYPE loaderd_{name} {kind}"]
        for labels, number in value.items() if isinstance(value, Mapping) else [("", value)]:
            lines.append(f"loaderd_{name}{{{labels}}} {number:.15g}" if labels else f"loaderd_{name} {number:.15g}")
    return "\n".join(lines) + "\n"


def label(name: str, value: str) -> str:
    r"""name="value" with Prometheus' escapes."""
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'{name}="{escaped}"'


def merged(
    inside: Mapping[str, Any], pendings: Iterable[Mapping[str, Any]], streams: Mapping[str, Mapping[str, Any]], pool: Mapping[str, Any]
) -> dict[str, Any]:
    """Streams, sessions, workers: what the scheduler knows (`inside`, empty before it exists) beside what the others know of the same.

    pool: what its picture says of each worker under "workers", a mapping by number, and of the whole under other names.
    """
    sessions = {entry["session"]: entry for entry in inside.get("sessions", ())}
    processes = pool.get("workers", {})
    return {
        "jobs": inside.get("jobs", 0),
        "schedule_s": inside.get("schedule_s", 0.0),
        "streams": {name: {**stream, **inside.get("streams", {}).get(name, {})} for name, stream in streams.items()},
        "sessions": [{**pending, **sessions.get(pending["session"], {})} for pending in pendings],
        "workers": [{**processes.get(entry["worker"], {}), **entry} for entry in inside.get("workers", ())],
        "pool": {name: value for name, value in pool.items() if name != "workers"},
    }


def stream(plan: StreamConfig, found: OpenedStream | None, fault: str) -> dict[str, Any]:
    """A stream of the config. found: None where it has not been opened; fault: why it could not be when it was last asked for."""
    seen = {"data": plan.lmdb or plan.dataset, "batch_size": plan.batch_size, "opened": found is not None, "failed": fault}
    if found is None:
        return seen
    facts = found.facts
    return {
        **seen,
        "samples": facts.samples,
        "total": facts.total,
        "layout": facts.layout,
        "fields": [{"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape), "kind": spec.kind} for spec in facts.specs],
    }


def installed() -> dict[str, Any]:
    """What serves: the process, the version and its native parts."""
    return {"pid": os.getpid(), "version": __version__, "native": native_library.present()}


def numbers(picture: Mapping[str, Any]) -> dict[str, tuple[str, str, float | Mapping[str, float]]]:
    """What Prometheus is told, out of a picture."""
    made: dict[str, float] = {}
    waiting = 0
    for session in picture["sessions"]:
        stream = label("stream", session["stream"])
        made[stream] = made.get(stream, 0) + session.get("made", 0)
        waiting += bool(session.get("waiting"))
    states: dict[str, float] = {}
    for worker in picture["workers"]:
        state = label("state", "busy" if worker["jobs"] else worker["state"])
        states[state] = states.get(state, 0) + 1
    failed = {label("stream", name): float(bool(stream.get("failed"))) for name, stream in picture["streams"].items()}
    return {
        "ready": ("gauge", "1 while the daemon serves", float(picture["state"] == "ready")),
        "sessions": ("gauge", "trainers attached", len(picture["sessions"])),
        "sessions_waiting": ("gauge", "trainers that wait for a batch", waiting),
        "session_batches": ("gauge", "batches made for the sessions there are", made),
        "workers": ("gauge", "workers by state", states),
        "jobs": ("gauge", "jobs in workers' hands", picture["jobs"]),
        "stream_failed": ("gauge", "1 for a stream that has ended on a fault", failed),
        "memory_limit_bytes": ("gauge", "ceiling of all segments", picture["memory"]["limit"]),
        "memory_segment_bytes": ("gauge", "shared memory of all segments", picture["memory"]["segments"]),
        "bad_samples_total": ("counter", "samples set aside", picture["quarantine"]["count"]),
        "loop_turns_total": ("counter", "turns of the daemon's loop", picture["turns"]),
        "cpu_seconds_total": ("counter", "processor time of the daemon's own process, without workers", picture["cpu_s"]),
        "lost_seconds_total": ("counter", "time in which the daemon did not run", picture["lost_s"]),
    }


def stream_counts(streams: Iterable[tuple[str, int]]) -> str:
    """ "train (1437), val (360)" """
    return few([f"{name} ({count})" for name, count in streams])
