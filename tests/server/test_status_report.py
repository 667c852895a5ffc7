"""The status is one tree; its JSON has the keys that users' scripts read, and fits into a message."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from loaderd.core.assessment import Rates
from loaderd.core.histogram import Durations
from loaderd.core.snapshot import (
    GroupSnapshot,
    RemoteSnapshot,
    SessionSnapshot,
    StreamSnapshot,
    WorkerSnapshot,
)
from loaderd.core.verdict import Verdict
from loaderd.engine.base import ForkServerStatus, ProcessStatus
from loaderd.server.status_report import (
    MAX_CHARACTERS,
    DaemonStatus,
    DrainStatus,
    FieldStatus,
    MemoryStatus,
    OpenedStatus,
    PoolStatus,
    QuarantineStatus,
    SessionStatus,
    StreamStatus,
    WorkerStatus,
    as_plain,
)
from loaderd.system.logs import LoggedEvent

VERDICT = Verdict("read-bound", "read-bound: it waits", 0.5, "read", 0.9, 5.0, 10.0, 0.4, 4.0, 2)
STATUS = DaemonStatus(
    state="ready",
    pid=7,
    version="1",
    native={"_crop": True},
    socket="/s",
    config="/c",
    turns=5,
    verdict=VERDICT,
    streams={
        "train": StreamStatus(
            "/d",
            8,
            True,
            "",
            OpenedStatus(1000, 1200, "loaderd", (FieldStatus("x", "<f4", (3, 4), "array"),), {"/d": "/c"}),
            StreamSnapshot(
                "raise", (5,), 0.01, {"read": 2.0}, 2, "SIGKILL", 30, 4096,
                {name: Durations((0.001, 1.0), (3, 4, 1), 40.5) for name in ("wait", "batch", "read", "decode", "transform", "write")},
            ),
        ),
        "val": StreamStatus("/d", 8, False, "/d: not there"),
    },
    sessions=(
        SessionStatus(
            5,
            "train",
            0,
            99,
            1,
            2,
            8,
            4,
            100,
            True,
            SessionSnapshot(
                5, 1, 2, 30, 4, True, 3, 2, 4, {"free": 1}, (1,), "row 3", VERDICT, 125, Rates(5.0, 1e6, 0.5, 24.2)
            ),
        ),
        SessionStatus(6, "val", 0, 99, 0, 1, 8, 4, 100, False),
    ),
    workers=(
        WorkerStatus(
            WorkerSnapshot(1, "up", (4,), "train", 3, "decode", "7.png", 3.2, "", ""),
            ProcessStatus("worker 1", 12, "ready", 0, 5),
        ),
        WorkerStatus(
            WorkerSnapshot(2, "starting", (), None, None, None, "", 0.0, "importing torch", "")
        ),
        WorkerStatus(
            WorkerSnapshot(3, "up", (), None, None, None, "", 0.0, "", "", remote=True),
            ProcessStatus("remote worker 3", 14, "ready", 2, 0, "far-7"),
        ),
        WorkerStatus(
            WorkerSnapshot(4, "starting", (), None, None, None, "", 0.0, "", "", remote=True)
        ),
    ),
    pool=PoolStatus(
        ForkServerStatus(11, True, False),
        (ProcessStatus("probe of stream val", 13, "ready", 1, 0),),
        remote=RemoteSnapshot(32, 1, 1, "32 remote workers, 1 at work: node far-8: it is refused"),
    ),
    memory=MemoryStatus(1 << 30, 1 << 28),
    quarantine=QuarantineStatus("/q", 1, ({"time": 0.5, "stream": "train", "key": "k"},)),
    errors=("one",),
    restarts={"crash": 2},
    events=(LoggedEvent(0.25, "warning", "worker_ended", "worker 1 has ended: SIGSEGV"),),
    groups=(GroupSnapshot(4, "train", (5, 7), 8, 30, 55, 25, {"free": 13, "ready": 1}, (1,)),),
)  # fmt: skip


def test_what_is_read_is_what_was_written() -> None:
    assert DaemonStatus.from_json(STATUS.to_json()) == STATUS
    assert DaemonStatus.from_json(DaemonStatus("starting").to_json()) == DaemonStatus("starting")
    assert DrainStatus.from_json(DrainStatus(7, 10.0).to_json()) == DrainStatus(7, 10.0)


def test_the_keys_that_scripts_read_stay_what_they_are() -> None:
    plain = json.loads(STATUS.to_json())
    assert sorted(plain) == [
        "config", "cpu_s", "doing", "errors", "events", "failed", "garbage", "groups", "jobs", "lost_s", "memory", "native", "pid", "pool", "quarantine",
        "restarts", "schedule_s", "sessions", "socket", "state", "status_version", "streams", "turns", "verdict", "version", "workers",
    ]  # fmt: skip
    assert sorted(plain["streams"]["train"]) == [
        "batch_size", "batches", "bytes", "copies", "data", "deaths", "durations", "failed", "fields", "last_death", "layout", "on_error", "opened", "row_s", "samples", "sessions",
        "stage_s", "total",
    ]  # fmt: skip
    assert sorted(plain["sessions"][0]) == [
        "announced", "attached", "batch_size", "batches_per_s", "bytes", "bytes_per_s", "epoch", "epoch_steps", "eta_s", "group", "lag", "made", "pid", "plan", "position", "prefetch", "rank", "segments", "session",
        "slots", "step", "story", "stream", "taken", "uid", "verdict", "wait_fraction", "waiting", "world_size",
    ]  # fmt: skip
    assert sorted(plain["workers"][0]) == [
        "anon_bytes", "doing", "jobs", "key", "name", "node", "pid", "place", "process", "remote", "row", "seconds", "stack", "stage", "state", "stream", "worker",
    ]  # fmt: skip
    assert sorted(plain["groups"][0]) == [
        "group", "hits", "made", "segments", "sessions", "share_window", "slots", "stream", "told",
    ]  # fmt: skip
    assert plain["pool"]["template"] == {"pid": 11, "ready": True, "stopped": False}
    assert plain["streams"]["train"]["fields"] == [
        {"name": "x", "dtype": "<f4", "shape": [3, 4], "kind": "array"}
    ]
    assert json.loads(DrainStatus(7, 10.0).to_json()) == {
        "state": "draining",
        "pid": 7,
        "drain_s": 10.0,
    }


def test_what_is_not_known_yet_is_absent() -> None:
    plain = as_plain(STATUS)
    assert sorted(plain["streams"]["val"]) == ["batch_size", "data", "failed", "opened"]
    assert "epoch" not in plain["sessions"][1]
    assert "pid" not in plain["workers"][1]
    assert plain["workers"][1]["row"] is None


def test_a_daemon_of_another_version_is_read_as_far_as_possible() -> None:
    read = DaemonStatus.from_json(
        '{"state": "ready", "later": 1, "sessions": [{"session": 3, "later": 2, "epoch": null}]}'
    )
    assert (read.state, read.sessions[0].session, read.sessions[0].stream, read.memory) == (
        "ready",
        3,
        "",
        None,
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "status: expected an object, not list"),
        ('{"state": 3}', "status.state: 3 is not of the expected type"),
        ('{"sessions": 3}', "status.sessions: 3 is not of the expected type"),
        (
            '{"workers": [{"jobs": ["x"]}]}',
            "status.workers[0].jobs[0]: 'x' is not of the expected type",
        ),
        ('{"pool": {"probes": []}}', "status.pool.template: is missing"),
        ("{", "Expecting"),
    ],
)
def test_what_is_no_status_is_an_error_that_names_the_key(text: str, said: str) -> None:
    with pytest.raises(ValueError, match="^" + said.replace("[", r"\[")):
        DaemonStatus.from_json(text)


def test_a_status_that_is_too_large_is_cut_where_it_is_longest_and_says_so() -> None:
    (session,) = STATUS.sessions[1:]
    large = replace(
        STATUS,
        sessions=tuple(replace(session, session=k, stream="y" * 400) for k in range(10_000)),
        errors=("e",),
    )
    text = large.to_json()
    assert len(text.encode()) <= MAX_CHARACTERS
    shown = DaemonStatus.from_json(text)
    assert shown.cut == ("sessions",)
    assert shown.errors == ("e",)
    assert len(shown.sessions) > 1000


def test_a_status_without_a_list_to_cut_still_tells_the_state() -> None:
    large = DaemonStatus(
        "ready", failed=True, streams={"a": StreamStatus("x" * 2_000_000, 8, False, "")}
    )
    assert json.loads(large.to_json()) == {"state": "ready", "failed": True, "cut": ["all"]}
