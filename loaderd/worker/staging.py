"""Databases are copied to a local disk before a stream is opened, where the config says so."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace

from loaderd.config.staging import StageConfig
from loaderd.config.stream import StreamConfig
from loaderd.core.jobs import ROW_BITS, Stage
from loaderd.data.lmdb.file_facts import open_file, read_facts
from loaderd.data.sources.part_paths import part_plans, paths_of
from loaderd.data.staging.copying import READ, Note, copy_of
from loaderd.data.staging.folder import StageFolder, amounts
from loaderd.engine.scoreboard import StatusWriter


def staged(plan: StreamConfig, line: StatusWriter, note: Note) -> StreamConfig:
    """The stream as it is read from copies; itself where there are to be none.

    Args:
        plan: The stream.
        line: Where it is told how far the copies are.
        note: Told of a copy that was damaged.

    Raises:
        SourceError: A database cannot be read, or its copy cannot be made.
    """
    if plan.stage is None:
        return plan
    if plan.sources:
        return replace(plan, sources=tuple(staged(each, line, note) for each in plan.sources))
    paths = [plan.lmdb] if plan.lmdb is not None else [part.lmdb for part in part_plans(plan)]
    if not paths:
        return plan
    copies = _copies([path for path in paths if path is not None], plan.stage, line, note)
    parts = tuple(replace(part, lmdb=path) for part in plan.parts for path in paths_of(part.lmdb))
    return replace(plan, parts=parts, copies=copies)


def explained(plan: StreamConfig, text: str) -> str:
    """A text about a stream; of a staged copy in it, it is told what that is and what to do."""
    for each in (plan, *plan.sources):
        for original, copy in each.copies.items():
            if copy in text:
                return (
                    f"{text} (this is the staged copy of {original}: if the copy is damaged, start "
                    "the daemon again, which makes it good)"
                )
    return text


def _copies(paths: list[str], stage: StageConfig, line: StatusWriter, note: Note) -> dict[str, str]:
    """Of each path the path of its copy."""
    folder = StageFolder(stage)
    sizes = [_size(path) for path in paths]
    total, copies = sum(sizes), dict[str, str]()
    for path, before in zip(paths, itertools.accumulate(sizes, initial=0), strict=False):
        told = _Told(line, before, total)
        copies[path] = copy_of(path, folder, told, note)
    for row in (0, 1):  # each has a place of its own for a text
        line.name(row, "")
    return copies


class _Told:
    """Writes down how far the copies are; what does not go on changes nothing there."""

    def __init__(self, line: StatusWriter, before: int, total: int) -> None:
        self._line = line
        self._before = before
        self._total = total

    def __call__(self, what: str, done: int, of: int) -> None:
        done += self._before
        row = done // READ % (1 << ROW_BITS)
        self._line.name(row, f"{what} {' of '.join(amounts(done, self._total))}")
        self._line.stamp(0, row, Stage.OPEN)


def _size(path: str) -> int:
    fd, file = open_file(path)
    try:
        facts = read_facts(fd, file)
    finally:
        os.close(fd)
    return facts.page * facts.pages
