"""Every word of a config, once: the parser reads by this table, and `loaderd schema` prints it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from loaderd.config import hints, stream_rules
from loaderd.config.ray import RAY, RayConfig, RaySection
from loaderd.config.staging import StageConfig
from loaderd.config.stream import StreamConfig
from loaderd.config.table import Key, Table, key, keys_of
from loaderd.config.types import (
    Choice,
    Days,
    Either,
    Flag,
    Many,
    Path,
    Say,
    Seconds,
    Size,
    Text,
    Whole,
    entry,
    join,
    port,
    show,
)

STREAM_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"


def _elsewhere(word: str) -> str:
    """Where a word belongs that the table at hand does not know."""
    for name, table in (
        ("[daemon]", DAEMON),
        ("[workers]", WORKERS),
        ("[workers.ray]", RAY),
        (hints.STREAM, STREAM),
    ):
        if word in table.keys:
            return f"it belongs in {name}"
    return hints.SETTINGS.get(word, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """The table [daemon]. Paths are absolute, sizes are in bytes."""

    socket: str = key(
        Path(),
        "Socket that trainers connect to; the daemon's other files lie beside it. Default: "
        "derived from the config's path.",
    )
    memory: int | None = key(
        Size(),
        "Limit of all shared memory together. Default: half of what the cgroup or the machine has "
        "free.",
        None,
    )
    metrics: str | None = key(
        Text(r"[^:/\s]+:[0-9]{1,5}|\[[0-9A-Fa-f:.]+\]:[0-9]{1,5}", '"host:port"', port),
        "Address of the pages: one for people, one for Prometheus, two for health checks. Default: "
        "off.",
        None,
    )
    thumbnails: bool | None = key(
        Flag(),
        "Whether the page for people shows pictures and values of samples. Default: only on a "
        "loopback address.",
        None,
    )
    allow_uids: tuple[int | str, ...] = key(
        Many(Either((Whole(0, (1 << 32) - 2), Choice(("unmapped",))), 'a uid, or "unmapped"')),
        'Other users that may attach; "unmapped" are uids that a user namespace doesn\'t map.',
        (),
    )
    drain_s: float = key(Seconds(), "Longest time that a drain may take.", 10.0)
    exit_when_idle_s: float = key(
        Seconds(), "Exit when there has been no trainer for this long; 0: never.", 0.0
    )
    stage: str | None = key(
        Path(),
        "Folder on a local disk: databases are copied there once, compared, and read from there. "
        "All daemons of this user on the host share the copies.",
        None,
    )
    stage_limit: int | None = key(
        Size(),
        "Most bytes of all copies there together: those that no daemon uses make room, the longest "
        "unused first. Default: the disk's size.",
        None,
    )
    stage_days: float = key(
        Days(),
        "A copy that no daemon has used for so many days goes when another is made; 0: never.",
        30.0,
    )
    quarantine: str = key(
        Path(),
        "File that bad samples are recorded in. Default: the socket's path with .bad.jsonl, which "
        "an embedded daemon removes when it leaves.",
    )

    @property
    def staging(self) -> StageConfig | None:
        """Where databases are copied, if they are."""
        if self.stage is None:
            return None
        return StageConfig.of(self.stage, self.stage_limit, self.stage_days, self.socket)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersConfig:
    """The table [workers]. Sizes are in bytes."""

    num_workers: int | str = key(
        Either((Choice(("auto",)), Whole(1, 1024)), '"auto" or a whole number from 1 to 1024'),
        'Worker processes. "auto" begins with one for each CPU that the daemon may use, and goes '
        "up and down by what trainers wait for.",
        "auto",
    )
    reset_affinity: bool = key(
        Flag(),
        "Workers use all CPUs of the cgroup's cpuset, although the daemon was started on fewer, or "
        "a library pins its process to some.",
        False,
    )
    sample_timeout_s: float = key(
        Seconds(zero=False),
        "A sample that takes longer is bad, and its worker is killed. What it imports meanwhile "
        "does not count, up to 120 s (or this, if that is longer).",
        30.0,
    )
    worker_memory: int | None = key(
        Size(),
        "A worker whose own (anonymous) memory grows beyond this is replaced. Default: no limit.",
        None,
    )
    start_method: str = key(
        Choice(("forkserver", "spawn")),
        "Whether workers are forked from a fork server, or each is started as a new process.",
        "forkserver",
    )
    init: str | None = key(
        entry("a function"), "Called with worker_id in each worker before any data.", None
    )
    ray: RayConfig | None = key(
        RaySection(), "More workers, on other hosts of a Ray cluster: see below.", None
    )


DAEMON = Table(keys_of(DaemonConfig), elsewhere=_elsewhere)
WORKERS = Table(keys_of(WorkersConfig), elsewhere=_elsewhere)
STREAM = Table(keys_of(StreamConfig), stream_rules.check, stream_rules.CONDITIONS, _elsewhere)


@dataclass(frozen=True)
class Streams:
    """The streams by name, at least one."""

    def read(self, value: Any, say: Say) -> Any:
        """By name, each with every default in place."""
        if not isinstance(value, dict):
            say("", f"{show(value)} is not a table: write [streams.train]")
            return {}
        if not value:
            say(
                "",
                'is empty: add [streams.train] with lmdb = "path" or dataset = "pkg.module:Class"',
            )
        for name, table in value.items():
            if name in STREAM.keys and not isinstance(table, dict):
                say(
                    join("", name),
                    f"{show(table)}: belongs to one stream: write it below a header such as "
                    "[streams.train]",
                )
            elif not re.fullmatch(STREAM_NAME, name):
                say(
                    join("", name),
                    "is not a stream's name: letters, digits, '_', '-' and '.', at most 64",
                )
        return {
            name: STREAM.read(
                table,
                lambda where, text, name=name: say(
                    f"{join('', name)}{'.' if where else ''}{where}", text
                ),
            )
            for name, table in value.items()
            if isinstance(table, dict) or name not in STREAM.keys
        }

    def schema(self) -> dict[str, Any]:
        """At least one, by names that match STREAM_NAME."""
        return {
            "type": "object",
            "minProperties": 1,
            "propertyNames": {"pattern": f"^{STREAM_NAME}$"},
            "additionalProperties": STREAM.schema(),
        }


CONFIG = Table(
    {
        "daemon": Key(DAEMON, "The process that serves."),
        "workers": Key(WORKERS, "The processes that make samples."),
        "streams": Key(Streams(), "What is served: [streams.NAME] tables.", required=True),
    },
    elsewhere=_elsewhere,
)


def document() -> dict[str, Any]:
    """The JSON schema of a config."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "loaderd config",
        **CONFIG.schema(),
    }
