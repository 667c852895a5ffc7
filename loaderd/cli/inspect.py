"""`loaderd inspect`: what lies in a database."""

from __future__ import annotations

import argparse
import re
from itertools import islice
from typing import TYPE_CHECKING, Any

from loaderd.cli.exit_codes import FINE, NO_START, CommandError, need
from loaderd.cli.output import show, show_json
from loaderd.cli.status import field, size

if TYPE_CHECKING:
    from loaderd.data.lmdb.store import Store

LOOKED = 1000  # entries whose keys and sizes are looked at
SHOWN_CLASSES = 10


def run(args: argparse.Namespace) -> int:
    """Exit code of `loaderd inspect`; CommandError names the database that can't be opened."""
    need("lmdb", "simplejpeg", "cv2", "PIL")
    from loaderd.data.errors import SourceError
    from loaderd.data.lmdb.open_stores import open_store
    from loaderd.data.sources.part_paths import paths_of

    found: list[dict[str, Any]] = []
    try:
        paths = [path for pattern in args.db for path in paths_of(pattern)]
        for path in paths:
            store = open_store(path)
            try:
                found.append(_facts(store))
            finally:
                store.close()
    except SourceError as error:
        raise CommandError(str(error), NO_START) from error
    if args.json:
        show_json(found if len(found) > 1 else found[0])
    else:
        show("\n".join(_several(found) if len(found) > 1 else _lines(found[0])))
    return FINE


def _several(found: list[dict[str, Any]]) -> list[str]:
    """A line for each of several databases, and what they come to."""
    rows = [
        (f"{facts.get('samples', 0):,}", facts["layout"], size(facts["bytes"]), facts["path"])
        for facts in found
    ]
    total = sum(facts.get("samples", 0) for facts in found)
    rows.append((f"{total:,}", "", size(sum(facts["bytes"] for facts in found)), "together"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        f"  {count:>{widths[0]}} samples  {layout:<{widths[1]}}  {large:>{widths[2]}}  {path}"
        for count, layout, large, path in rows
    ]


def _facts(store: Store) -> dict[str, Any]:
    """What is known of the database, as plain data. Raises SourceError."""
    from loaderd.data.layouts.describe import describe
    from loaderd.data.lmdb import record_format
    from loaderd.data.lmdb.sniff import guess, unknown

    seen = list(islice(store.items(), LOOKED))
    sizes = sorted(len(value) for _, value in seen)
    facts: dict[str, Any] = {
        "path": store.path,
        "bytes": store.facts.size,
        "entries": store.entries,
        "keys": _patterns([key for key, _ in seen]),
        "value_bytes": {
            "smallest": sizes[0],
            "median": sizes[len(sizes) // 2],
            "largest": sizes[-1],
            "of": len(sizes),
        }
        if sizes
        else None,
        "network": store.network,
    }
    record = store.get(record_format.META_KEY)
    if record is not None and record_format.is_meta(record):
        return facts | _own(store)
    known = describe(store)
    if known is not None:
        found, sample = known
        fields = {"fields": _fields(sample)} if sample is not None else {"fields": {}}
        return facts | found | {"first": {"key": found.pop("key", ""), **fields}}
    part = (
        " (an unfinished `loaderd pack`: run the same command again)"
        if store.get(record_format.PART_KEY) is not None
        else ""
    )
    first = {key.decode("utf-8", "backslashreplace"): guess(value) for key, value in seen[:3]}
    return facts | {
        "layout": f"unknown{part}",
        "first": first,
        "advice": unknown(store).partition("\n")[2],
    }


def _own(store: Store) -> dict[str, Any]:
    from loaderd.config.stream import StreamConfig
    from loaderd.data.sources.source import Source

    with Source(StreamConfig("inspect", lmdb=store.path, decode=False)) as source:
        return {
            "layout": source.layout,
            "samples": source.total,
            "identity": source.identity,
            "classes": list(source.classes),
            "first": {"key": source.key(0), "fields": _fields(source.read(0))},
        }


def _fields(sample: Any) -> dict[str, str]:
    """What the fields of a sample as stored are, in words.

    Stored images are decoded to tell their size.
    """
    from loaderd.data.images.decode import codec_of, decode, label_mode

    words: dict[str, str] = {}
    for name, value in sample.items():
        if name in sample.encoded:
            labels = label_mode(value)
            height, width, channels = decode(value, "index" if labels else "rgb").shape
            words[name] = (
                f"{name} {codec_of(value)} image, {height} x {width} x {channels}, "
                f"{size(len(value))}"
            )
            if labels:
                words[name] += (
                    f"; of mode {labels}: delivered as colours by default, as numbers with {{op = "
                    f'"decode", field = "{name}", mode = "index"}}'
                )
        elif isinstance(value, (str, bytes, memoryview)):
            words[name] = (
                f"{name} {'text' if isinstance(value, str) else 'bytes'}, {len(value)} long"
            )
        else:
            words[name] = field(name, value.dtype.str, value.shape, "array")
    return words


def _patterns(keys: list[bytes]) -> list[str]:
    """The kinds of keys that there are, most frequent first.

    Digits are shown as #, other bytes that aren't text by their number.
    """
    counts: dict[str, int] = {}
    for key in keys:
        counts[_pattern(key)] = counts.get(_pattern(key), 0) + 1
    return [
        f"{pattern} ({count} of {len(keys)})"
        for pattern, count in sorted(counts.items(), key=lambda item: -item[1])[:5]
    ]


def _pattern(key: bytes) -> str:
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = "\0"
    return re.sub("[0-9]", "#", text) if text.isprintable() else f"{len(key)} raw bytes"


def _lines(facts: dict[str, Any]) -> list[str]:
    lines = [
        f"{facts['path']}",
        f"  layout   {facts['layout']}",
        f"  size     {size(facts['bytes'])}, {facts['entries']:,} entries",
    ]
    if "why" in facts:
        lines.insert(2, f"           since {facts['why']}")
    if "samples" in facts:
        lines.append(f"  samples  {facts['samples']:,}")
    if facts.get("codec"):
        lines.append(f"  codec    {facts['codec']}")
    if "pickle" in facts:
        lines.append(f"  pickle   {facts['pickle']}")
    lines += [f"  note     {note}" for note in facts.get("notes", ())]
    if facts.get("classes"):
        shown = ", ".join(facts["classes"][:SHOWN_CLASSES]) + (
            ", ..." if len(facts["classes"]) > SHOWN_CLASSES else ""
        )
        lines.append(f"  classes  {len(facts['classes'])}: {shown}")
    lines += [
        f"  {'keys' if not n else '':<7}  {pattern}" for n, pattern in enumerate(facts["keys"])
    ]
    values = facts["value_bytes"]
    if values:
        lines.append(
            f"  values   {size(values['smallest'])} to {size(values['largest'])}, median "
            f"{size(values['median'])} (of the first {values['of']:,})"
        )
    if "samples" in facts:
        lines.append(f"  first    {facts['first']['key']!r}")
        lines += [f"           {text}" for text in facts["first"]["fields"].values()]
    elif "problem" in facts:
        lines += ["", facts["problem"]]
    else:
        lines += [
            f"  first    {key!r}: {looks or 'unknown bytes'}"
            for key, looks in facts["first"].items()
        ]
        lines += ["", facts["advice"]]
    if "config" in facts:
        lines += ["", *facts["config"].splitlines()]
    if facts["network"]:
        lines.append("  the database is on a network filesystem")
    return lines
