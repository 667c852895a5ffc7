"""Which databases a stream of several has, and whether their files are what they were."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

from loaderd.config.stream import StreamConfig
from loaderd.data.errors import SourceError
from loaderd.data.lmdb.file_facts import FileFacts, data_file, open_file, read_facts

BESIDE = ("-lock", os.sep + "lock.mdb", ".loaderd-keys", ".part")  # files that are no databases


def part_plans(plan: StreamConfig) -> list[StreamConfig]:
    """A stream for each database, in order: with its path, and with what the config says of it.

    Raises:
        SourceError: A pattern finds nothing.
    """
    plans: list[StreamConfig] = []
    for part in plan.parts:
        said = {**part.said}
        if "fields" in said:
            said["fields"] = tuple(said["fields"])
        plans += [replace(plan, lmdb=path, parts=(), **said) for path in paths_of(part.lmdb)]
    return plans


def paths_of_stream(plan: StreamConfig) -> list[str]:
    """The path of each database of a stream; none for a dataset.

    Raises:
        SourceError: A pattern finds nothing.
    """
    one = [plan.lmdb] if plan.lmdb is not None else []
    return one or [part.lmdb for part in part_plans(plan) if part.lmdb is not None]


def paths_of(pattern: str) -> list[str]:
    """The paths that a pattern finds, sorted; the path itself where it is none.

    Raises:
        SourceError: It finds nothing.
    """
    if not glob.has_magic(pattern) or os.path.exists(pattern):
        return [pattern]
    found = sorted(path for path in glob.glob(pattern) if not path.endswith(BESIDE))
    if not found:
        raise SourceError(f"{pattern}: there is no file or folder of this pattern")
    return found


def twice(paths: Sequence[str]) -> str:
    """A path that is there twice; "" if none is."""
    seen: set[str] = set()
    for path in paths:
        if path in seen:
            return path
        seen.add(path)
    return ""


def facts_hash(facts: FileFacts) -> str:
    """A short hash over a file's state, its times left out."""
    return hashlib.sha256(repr(facts.content).encode()).hexdigest()[:12]


def times_hash(facts: Iterable[FileFacts]) -> str:
    """A hash over what the system says of the files, without a look into them."""
    return _hash((f.device, f.inode, f.size, f.mtime_ns, f.ctime_ns) for f in facts)


def touched(plan: StreamConfig, state: str) -> bool:
    """Whether a file is another than the state says, or has other times. None is opened."""
    try:
        stats = [os.stat(data_file(part.stored_at or "")) for part in part_plans(plan)]
    except (OSError, SourceError):
        return True  # whoever opens it says what is wrong
    now = _hash((s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in stats)
    return now != json.loads(state)["times"]


def changed_parts(plan: StreamConfig, state: str) -> str:
    """What of the files is not as the state says, with the path; "" if nothing.

    No database is opened.
    """
    try:
        plans, known = part_plans(plan), json.loads(state)["facts"]
        if len(plans) != len(known):
            return (
                f"{plan.data_name}: there were {len(known)} databases, now there are {len(plans)}"
            )
        for part, was in zip(plans, known, strict=True):
            fd, file = open_file(part.stored_at or "")
            try:
                now = read_facts(fd, file)
            finally:
                os.close(fd)
            if facts_hash(now) != was:
                return f"{file}: was replaced or written to"
    except SourceError as error:
        return str(error)
    return ""


def _hash(rows: Iterable[tuple[int, ...]]) -> str:
    return hashlib.sha256(repr([*rows]).encode()).hexdigest()[:32]
