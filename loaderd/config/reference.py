"""The config reference as Markdown, made from the schema.

python -m loaderd.config.reference > loaderd/config/README.md
"""

from __future__ import annotations

import json
from typing import Any

from loaderd.config import schema
from loaderd.config.batching import PadRules
from loaderd.config.mixture_keys import Weights
from loaderd.config.op_params import Param
from loaderd.config.parts import Databases, PartTables
from loaderd.config.ray import RAY, RaySection, Resources
from loaderd.config.table import Key, Table
from loaderd.config.transform_tables import CALL, Transform
from loaderd.config.transforms import OPS
from loaderd.config.types import (
    Args,
    Choice,
    Days,
    Either,
    Flag,
    Fraction,
    Many,
    Path,
    Seconds,
    Size,
    Text,
    ValueType,
    Whole,
)

BEGIN = """# Config reference

Every key that a config file knows. This page is made from the schema that reads the file:

    python -m loaderd.config.reference > loaderd/config/README.md

`loaderd schema` prints the same as a JSON schema, for your editor. An unknown key is an error that
names the nearest one.
A config is TOML. A relative path is relative to the config file; `~` and `$NAME` are expanded.
The sizes are bytes: a whole number, or text such as `"64MiB"` (1024s) or `"64MB"` (1000s).
"""

# One value of each key, as TOML has it.
EXAMPLES = {
    "socket": '"/run/loaderd/train.sock"',
    "memory": '"8GiB"',
    "metrics": '"127.0.0.1:9400"',
    "thumbnails": "false",
    "allow_uids": "[1000]",
    "drain_s": "30.0",
    "exit_when_idle_s": "600.0",
    "stage": '"/local/nvme"',
    "stage_limit": '"500GB"',
    "stage_days": "7.0",
    "quarantine": '"/var/log/bad.jsonl"',
    "num_workers": "8",
    "reset_affinity": "true",
    "sample_timeout_s": "10.0",
    "worker_memory": '"2GiB"',
    "start_method": '"spawn"',
    "init": '"setup:seed_library"',
    "ray": '{address = "auto", num_workers = 32}',
    "ray.address": '"10.0.0.1:6379"',
    "ray.num_workers": "32",
    "ray.resources": "{CPU = 1, loader = 1}",
    "ray.stage": "true",
    "lmdb": '"train.lmdb"',
    "parts": '[{lmdb = "a.lmdb"}, {lmdb = "lsun", layout = "lsun"}]',
    "dataset": '"mypkg.data:MyDataset"',
    "of": "{a = 0.7, b = 0.3}",
    "stop": '"all"',
    "dataset_args": '{root = "/data"}',
    "layout": '"layouts:Pairs"',
    "layout_args": '{prefix = "a"}',
    "key_format": '"image-{i:09d}"',
    "count": "50000",
    "dtype": '"float32"',
    "shape": "[3, 224, 224]",
    "fields": '["image", "label"]',
    "index_file": '"keys.txt"',
    "allow_pickle": "true",
    "decode": "false",
    "mode": '"gray"',
    "exif": "true",
    "max_pixels": "500_000_000",
    "views": "2",
    "split": '"0%:95%"',
    "split_by": '"stored"',
    "group": '"^([^_]+)_"',
    "keys": '"train.txt"',
    "weights": '"weights.npy"',
    "repeat": "3",
    "classes": '"train.lmdb"',
    "batch_size": "256",
    "shuffle": "{block = 4096}",
    "seed": "7",
    "drop_last": "true",
    "tail": '"short"',
    "epoch_steps": "10_000",
    "on_error": '"skip"',
    "empty": '"deliver"',
    "max_errors": "100",
    "nonfinite": '"error"',
    "collate": '"mypkg.data:collate"',
    "pad": "{input_ids = 0}",
    "ragged": '["boxes"]',
    "ragged_as": '"flat"',
    "bucket_by": '"input_ids"',
    "max_tokens": "16_384",
    "share": "true",
    "share_window": "16",
    "transforms": '[{op = "hflip"}]',
    "call": '"mypkg.aug:Train"',
    "args": "{size = 224}",
    "takes": '"pil"',
    "field": '"image"',
    "boxes": '"boxes"',
}
UNITS = {Seconds: "seconds", Size: "bytes", Fraction: "share"}


def type_of(kind: ValueType) -> str:
    """What a key takes, in words."""
    if isinstance(kind, Flag):
        return "true or false"
    if isinstance(kind, Whole):
        return (
            f"whole number, {kind.low:,} or more"
            if kind.high >= 1 << 40
            else f"whole number, {kind.low:,} to {kind.high:,}"
        )
    if isinstance(kind, Seconds):
        return f"number of seconds, {'0 or more' if kind.zero else 'above 0'}"
    if isinstance(kind, Days):
        return "number of days, 0 or more"
    if isinstance(kind, Choice):
        return " or ".join(f'`"{word}"`' for word in kind.words)
    if isinstance(kind, Many):
        return f"array: {type_of(kind.kind)}"
    if isinstance(kind, Transform):
        return "tables with `op` or `call`, see below"
    if isinstance(kind, Weights):
        return "table of streams, each with a weight"
    if isinstance(kind, PadRules):
        return "table of fields, each with a number or `{value, multiple, mask}`"
    names = {
        Databases: "path, or array of paths",
        PartTables: "tables with `lmdb`, `layout`, `layout_args` and the keys of a layout",
        Size: "size in bytes",
        Path: "path",
        Args: "table",
        RaySection: "table `[workers.ray]`",
        Resources: "table of resources, each with an amount",
        Fraction: "number between 0 and 1",
    }
    if isinstance(kind, Text | Either):
        return kind.what
    return names[type(kind)]


def default_of(key: Key) -> str:
    """The default as the page shows it: "required", "not set", or TOML in backquotes."""
    if key.required:
        return "required"
    if key.default is None:
        return "not set"
    return f"`{toml(key.default)}`"


def toml(value: Any) -> str:
    """A value as TOML writes it, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def cell(text: str) -> str:
    """The text with its bars escaped, each of which would end a cell."""
    return text.replace("|", "\\|")


def table_of(table: Table, within: str = "") -> list[str]:
    """Lines of a Markdown table with a row for each key, and an empty line behind it.

    Args:
        table: The table.
        within: Stands before a key whose example is another than elsewhere.
    """
    lines = ["| key | takes | default | example | meaning |", "|---|---|---|---|---|"]
    for name, key in table.keys.items():
        cells = (
            f"`{name}`",
            type_of(key.kind),
            default_of(key),
            f"`{EXAMPLES[within + name]}`",
            key.text,
        )
        lines.append("| " + " | ".join(map(cell, cells)) + " |")
    return [*lines, ""]


def parameter(name: str, param: Param) -> str:
    """What a parameter of an op means, which words it may be, and its default."""
    choices = f", one of {', '.join(param.choices)}" if param.choices else ""
    default = (
        "" if param.required or param.default is None else f", default `{toml(param.default)}`"
    )
    return f"`{name}`{' (required)' if param.required else ''}: {param.text}{choices}{default}"


def document() -> str:
    """The whole page, in Markdown."""
    lines = [BEGIN, "## [daemon]", "", "The process that serves.", "", *table_of(schema.DAEMON)]
    lines += ["## [workers]", "", "The processes that make samples.", "", *table_of(schema.WORKERS)]
    lines += [
        "## [workers.ray]",
        "",
        "Workers on other hosts. It needs `pip install 'loaderd[ray]'`.",
        "",
        *table_of(RAY, "ray."),
        "## [streams.NAME]",
        "",
        "One table for each stream. A stream needs `lmdb` or `dataset`.",
        "",
        *table_of(schema.STREAM),
    ]
    lines += [
        "## [[streams.NAME.transforms]]",
        "",
        "What is done to each sample, in order. Each table has an `op` or a `call`.",
        "",
    ]
    lines += ["| op | what it does | parameters |", "|---|---|---|"]
    for name, op in OPS.items():
        cells = (f"`{name}`", op.text, "; ".join(parameter(*each) for each in op.params.items()))
        lines.append("| " + " | ".join(map(cell, cells)) + " |")
    lines += [
        "",
        '`call = "pkg.module:function"` is a function of yours: `def function(sample: dict, rng, '
        "**args) -> dict`. Or it is an object or a class, as a transform of another library.",
        "",
        *table_of(CALL),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(document(), end="")
