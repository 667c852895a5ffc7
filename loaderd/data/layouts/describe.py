"""What a database of another project is, in words and as plain data, for people who have it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from loaderd.config.stream import StreamConfig
from loaderd.data.errors import SourceError
from loaderd.data.layouts.base import Database, LayoutOptions, NeedsPickle
from loaderd.data.layouts.table import recognised
from loaderd.data.lmdb.store import Store
from loaderd.data.sample import Sample
from loaderd.data.sources.source import Source

ENTRY = re.compile(r"(.+?)\.[0-9]+(\.|$)")


def describe(store: Store) -> tuple[dict[str, Any], Sample | None] | None:
    """What is known of the database, and its first sample, None if that is bad.

    None where no layout knows it.
    """
    found = recognised(Database(store, LayoutOptions()))
    if found is None:
        return None
    facts: dict[str, Any] = {
        "layout": found.name,
        "why": found.seen(Database(store, LayoutOptions())),
    }
    plan = StreamConfig("inspect", lmdb=store.path, layout=found.name, decode=False)
    try:
        opened = Source(plan)
    except NeedsPickle as error:
        facts["pickle"] = f"needs {error.wanted}: only with allow_pickle = true"
        return facts | {
            "problem": str(error),
            "config": _config(replace(plan, allow_pickle=True)),
        }, None
    except SourceError as error:
        return facts | {"problem": str(error)}, None
    with opened as source:
        codec = source.codec
        facts |= {"samples": source.total, "codec": codec, "classes": list(source.classes)}
        facts["pickle"] = (
            "plain values, read without running anything" if "pickle" in codec else "none"
        )
        facts["notes"] = [note.removeprefix(f"{store.path}: ") for note in source.warnings]
        try:
            sample = source.read(0)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it is to be told
            facts["notes"].append(f"its first sample is bad: {error}")
            sample = None
        facts["key"] = source.key(0)
        for name in _lists(sample or {}):
            facts["notes"].append(
                f"{name} is a list, of which each entry becomes a field: name the fields that you "
                "want with fields = [...]"
            )
        # the caller looks at the sample while the database is open in another way
        copied = None if sample is None else _copied(sample)
        return facts | {"config": _config(plan)}, copied


def _copied(sample: Sample) -> Sample:
    """The sample without views of the database."""
    kept = Sample(sample)
    kept.encoded, kept.images = sample.encoded, sample.images
    for name, value in sample.items():
        kept[name] = value.copy() if hasattr(value, "dtype") else value
        if isinstance(value, memoryview):
            kept[name] = bytes(value)
    return kept


def _lists(sample: dict[str, Any]) -> list[str]:
    """Fields that are entries of a list, by the list's name."""
    return sorted({match[1] for name in sample if (match := ENTRY.match(name))})


def _config(plan: StreamConfig) -> str:
    """A config of one stream that reads the database."""
    lines = [
        "[streams.train]",
        f'lmdb = "{plan.lmdb}"',
        f'layout = "{plan.layout}"',
        "batch_size = 32",
        "shuffle = true",
    ]
    if plan.allow_pickle:
        lines.insert(3, "allow_pickle = true  # runs whatever the file asks for")
    return "\n".join(lines)
