"""Every word of a config, once: the parser reads by this table, and `loaderd schema` prints it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction as Exact
from typing import Any

from loaderd.config import batching, database_keys, hints, image_keys, stream_rules
from loaderd.config import transforms as ops_table
from loaderd.config.types import (
    NAME,
    Args,
    Choice,
    Either,
    Flag,
    Fraction,
    Key,
    Many,
    Path,
    Say,
    Seconds,
    Size,
    Table,
    Text,
    Whole,
    entry,
    join,
    key,
    keys_of,
    near,
    script,
    show,
)
from loaderd_wire.limits import MAX_ROWS

STREAM_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"


def _port(text: str) -> str:
    return "" if 0 < int(text.rpartition(":")[2]) < 65536 else "a port is from 1 to 65535"


SPLIT_END = r" *(?:(?:[0-9]{1,3}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}) *%|[0-9]{1,15})? *"


def _split(text: str) -> str:
    """What is wrong with a split whatever the number of samples is."""
    low, high = (part.strip() for part in text.split(":"))
    percents = [
        Exact(end.rstrip("% ")) for end in (low or "0%", high or "100%") if end.endswith("%")
    ]
    if any(percent > 100 for percent in percents):
        return "ends beyond 100%"
    counts = [int(end) for end in (low, high) if end.isdigit()]
    empty = any(len(ends) == 2 and ends[0] >= ends[1] for ends in (percents, counts))
    return "is empty: it ends where it begins, or before" if empty else ""


def _elsewhere(word: str) -> str:
    """Where a word belongs that the table at hand does not know."""
    for name, table in (("[daemon]", DAEMON), ("[workers]", WORKERS), (hints.STREAM, STREAM)):
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
        Text(r"[^:/\s]+:[0-9]{1,5}|\[[0-9A-Fa-f:.]+\]:[0-9]{1,5}", '"host:port"', _port),
        "Address of the pages for Prometheus and health checks. Default: off.",
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
    quarantine: str = key(
        Path(),
        "File that bad samples are recorded in. Default: the socket's path with .bad.jsonl, which "
        "an embedded daemon removes when it leaves.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersConfig:
    """The table [workers]. Sizes are in bytes."""

    num_workers: int | str = key(
        Either((Choice(("auto",)), Whole(1, 1024)), '"auto" or a whole number from 1 to 1024'),
        "Worker processes.",
        "auto",
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


DAEMON = Table(keys_of(DaemonConfig), elsewhere=_elsewhere)
WORKERS = Table(keys_of(WorkersConfig), elsewhere=_elsewhere)


@dataclass(frozen=True)
class Transform:
    """One transform: a table with a built-in `op` and its parameters, or with `call` and `args`.

    Read as (op, call, args).
    """

    def read(self, value: Any, say: Say) -> Any:
        nothing = (None, None, dict[str, Any]())
        if not isinstance(value, dict):
            say(
                "",
                f"{show(value)} is not a table: write {{op = ...}}, or [[streams.X.transforms]] "
                "and op = ... below it",
            )
            return nothing
        if ("op" in value) == ("call" in value):
            say("", "needs either op (a built-in) or call (a function of yours)")
            return nothing
        if "call" in value:
            read = CALL.read(value, say)
            return None, read["call"], read["args"]
        op = value["op"]
        if not isinstance(op, str) or op not in ops_table.OPS:
            known = list(ops_table.OPS)
            hint = near(op, known) if isinstance(op, str) else ""
            last = op.rpartition(".")[2] if isinstance(op, str) else ""
            if last in hints.OPS:
                hint = f"; that is {hints.OPS[last]} here"
            elif last in hints.ABSENT:
                hint = f": {hints.INSTEAD}"
            say("op", f"{show(op)} is not a built-in{hint or '; there are ' + ', '.join(known)}")
            return nothing
        args = {name: item for name, item in value.items() if name != "op"}
        for problem in ops_table.problems(op, args):
            say(join("", problem.name), self._line(op, args, problem))
        return op, None, args

    def _line(self, op: str, args: Mapping[str, Any], problem: ops_table.Problem) -> str:
        if problem.what == "missing":
            return f"is missing: {op} takes {problem.expected}"
        if problem.what == "unknown":
            known = list(ops_table.OPS[op].params)
            return (
                f"{show(args[problem.name])}: {op} has no such "
                f"parameter{near(problem.name, known) or '; it has ' + ', '.join(known)}"
            )
        return f"{show(args[problem.name])} is not {problem.expected}"

    def schema(self) -> dict[str, Any]:
        return {"oneOf": [*[ops_table.schema(name) for name in ops_table.OPS], CALL.schema()]}


CALL = Table(
    {
        "call": Key(entry("a function"), "def f(sample: dict, rng, **args) -> dict", required=True),
        "args": Key(Args(), "Keyword arguments of the function.", {}),
    },
    elsewhere=lambda word: f"arguments of the function go into args = {{{word} = ...}}",
)


STREAM = Table(
    {
        "lmdb": Key(Path(), "The database."),
        "dataset": Key(
            entry("a class or function"),
            "A map-style dataset instead of a database: __len__ and __getitem__; or a function "
            "that makes one.",
        ),
        "dataset_args": Key(Args(), "Keyword arguments of the dataset's class.", {}),
        **database_keys.LAYOUT,
        **database_keys.KEYS,
        **image_keys.KEYS,
        "split": Key(
            Text(
                f"{SPLIT_END}:{SPLIT_END}",
                'a part such as "0%:95%" or "0:50000"',
                _split,
            ),
            "The part of the samples that this stream uses.",
            "0%:100%",
        ),
        "split_by": Key(
            Choice(("random", "stored")),
            "What is split: a fixed random order of all samples, or the stored order.",
            "random",
        ),
        "batch_size": Key(
            Whole(1, MAX_ROWS), "Rows per batch and rank; a trainer may ask for another.", 1
        ),
        "shuffle": Key(
            Either(
                (
                    Flag(),
                    Table({"block": Key(Whole(1, 1 << 40), "Samples per block.", required=True)}),
                ),
                "true, false or {block = N}",
            ),
            "A new order each epoch: of all samples, or of blocks and inside them.",
            False,
        ),
        "seed": Key(Whole(), "Seed of the order and of all randomness.", 0),
        "drop_last": Key(Flag(), "Leaves out the last batch if it is not whole.", False),
        "tail": Key(
            Choice(("repeat", "short", "drop")),
            "What happens to samples behind the last whole batch of all ranks. The ranks share "
            "them. If they are fewer than the ranks, repeat gives the other ranks samples from "
            "the start of the epoch again, and short gives them none: see empty. drop is "
            "drop_last = true.",
            "repeat",
        ),
        "on_error": Key(
            Choice(("raise", "skip", "replace")), "What happens when a sample is bad.", "raise"
        ),
        "empty": Key(
            Choice(("skip", "deliver")),
            'What happens to a batch that on_error = "skip" or tail = "short" has left without '
            "rows: it is skipped, or delivered.",
            "skip",
        ),
        "max_errors": Key(
            Either((Whole(1), Fraction()), "a count of 1 or more, nor a fraction between 0 and 1"),
            "Number of bad samples, or their fraction of the samples, that ends the run. Default: "
            "no limit.",
        ),
        "nonfinite": Key(
            Choice(("allow", "error")), "Whether NaN and infinity make a sample bad.", "allow"
        ),
        "collate": Key(
            Text(
                rf"stack|{NAME}(?:\.{NAME})*:{NAME}(?:\.{NAME})*",
                '"stack" or the name of a function: "pkg.module:name"',
                script,
            ),
            "How samples become a batch: a function is called as function(samples) or "
            "function(samples, rng).",
            "stack",
        ),
        **batching.KEYS,
        "transforms": Key(Many(Transform()), "What is done to each sample, in order.", ()),
    },
    stream_rules.check,
    {
        "oneOf": [{"required": ["lmdb"]}, {"required": ["dataset"]}],
        "dependentRequired": {
            "dataset_args": ["dataset"],
            "layout": ["lmdb"],
            "layout_args": ["lmdb", "layout"],
            "ragged_as": ["ragged"],
        },
        "dependentSchemas": {
            **database_keys.SCHEMAS,
            "pad": {"properties": {"collate": {"const": "stack"}}},
            "ragged": {"properties": {"collate": {"const": "stack"}}},
            "empty": {
                "anyOf": [
                    {"required": ["on_error"], "properties": {"on_error": {"const": "skip"}}},
                    {"required": ["tail"], "properties": {"tail": {"const": "short"}}},
                ]
            },
            "tail": {
                "oneOf": [
                    {"properties": {"tail": {"const": "drop"}, "drop_last": {"const": True}}},
                    {
                        "properties": {
                            "tail": {"enum": ["repeat", "short"]},
                            "drop_last": {"const": False},
                        }
                    },
                ]
            },
        },
    },
    _elsewhere,
)


@dataclass(frozen=True)
class Streams:
    """The streams by name, at least one."""

    def read(self, value: Any, say: Say) -> Any:
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
