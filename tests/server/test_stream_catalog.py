"""Streams are opened once when they are wanted, and what was found is known by name, in the order
of the config.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loaderd.config.stream import StreamConfig
from loaderd.core.jobs import Job, JobKind
from loaderd.core.streams import StreamRules
from loaderd.data.selection.selection import SampleSelection
from loaderd.data.selection.tables import open_table, write_table
from loaderd.engine.messages import OpenError
from loaderd.server.stream_catalog import UNKNOWN, StreamCatalog
from loaderd_testing.daemon_process import FakePool


class Known:
    """A catalog of two streams, and what it asked for.

    answers: of the engine, by stream, until the test gives them.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.opened: list[str] = []
        self.answered: list[str] = []
        self.log: list[tuple[str, str]] = []
        self.waits: list[list[str]] = []
        configs = [
            StreamConfig(name, dataset="made:Up", batch_size=8, shuffle=1, seed=7)
            for name in ("train", "val")
        ]
        engine: Any = self  # all that a catalog asks of one
        startup: Any = SimpleNamespace(opens=lambda streams: self.waits.append(sorted(streams)))
        self.catalog = StreamCatalog(
            configs,
            engine,
            startup,
            answered=self.answered.append,
            log=lambda level, event, text, **_: self.log.append((level, text)),
        )

    def open(self, stream: str, done: Any) -> None:
        self.opened.append(stream)
        self.answers[stream] = done


@pytest.fixture
def known() -> Known:
    return Known()


def found(stream: str, **other: Any) -> Any:
    """What the engine says of a stream of 100 samples."""
    answer: list[Any] = []
    pool: Any = object.__new__(FakePool)
    pool.loop = SimpleNamespace(soon=lambda call: call())
    pool.tried, pool.late = set(), []
    pool.open(stream, answer.append)
    return answer[0]


def test_a_stream_that_is_being_opened_is_not_opened_twice(known: Known) -> None:
    known.catalog.want("train")
    known.catalog.want("train")
    assert known.opened == ["train"]
    known.answers["train"](found("train"))
    known.catalog.want("train")
    assert known.opened == ["train", "train"]  # anew, since its data has changed


def test_what_was_found_is_known_before_anybody_is_told(known: Known) -> None:
    known.catalog.want("val")
    known.catalog.want("train")
    assert known.waits == [["val"], ["train", "val"]]
    known.answers["val"](found("val"))
    assert (known.answered, known.catalog.opening, known.waits[-1]) == (
        ["val"],
        {"train"},
        ["train"],
    )
    known.answers["train"](found("train"))
    assert known.catalog.counts() == "train (100), val (100)"
    assert known.catalog.rules("val") == StreamRules("val", "raise", False, 100)
    assert ("warning", "stream 'val': mind the gap") in known.log


def test_a_fault_is_forgotten_when_the_stream_is_tried_again(known: Known) -> None:
    known.catalog.want("val")
    known.answers["val"](OpenError("val", "data", "not there", "Traceback"))
    assert (known.catalog.faults, known.catalog.opened) == ({"val": "not there\nTraceback"}, {})
    known.catalog.want("val")
    assert known.catalog.faults == {}


def test_a_stream_that_is_rejected_is_not_open(known: Known) -> None:
    known.catalog.want("val")
    known.answers["val"](found("val"))
    known.catalog.reject("val", "its class names differ")
    assert (known.catalog.opened, known.catalog.faults) == ({}, {"val": "its class names differ"})


def listed(stream: str, path: str) -> Any:
    """What the engine says of a stream of the samples that a table lists."""
    return replace(found(stream), selection=SampleSelection(listed=path), samples=3)


def test_a_stream_whose_table_is_gone_when_it_opens_is_told_and_not_served(
    known: Known, tmp_path: Path
) -> None:
    known.catalog.want("val")
    known.answers["val"](listed("val", str(tmp_path / "gone.int64")))
    assert known.catalog.opened == {}
    assert f"{tmp_path / 'gone.int64'}: cannot be read" in known.catalog.faults["val"]
    assert known.answered == ["val"]


def test_the_sample_of_a_row_is_known_when_its_table_has_been_removed(
    known: Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = write_table(np.array([70, 30, 50]))
    known.catalog.want("val")
    known.answers["val"](listed("val", path))
    os.unlink(path)
    for number in range(100):  # more tables than a daemon usually has
        open_table(write_table(np.array([number])))
    job = Job(1, JobKind.FILL, "val", 0, 0, 7, 0, 0, 3, 0, 3)
    assert known.catalog.index_of(job, 2, 0) in (30, 50, 70)


def test_a_table_that_is_cut_off_while_it_is_mapped_kills_no_daemon(
    known: Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = write_table(np.array([71, 31, 51]))
    known.catalog.want("val")
    known.answers["val"](listed("val", path))
    os.truncate(path, 0)
    job = Job(1, JobKind.FILL, "val", 0, 0, 7, 0, 0, 3, 0, 3)
    assert known.catalog.index_of(job, 2, 0) == UNKNOWN
    assert "its length has changed" in known.log[-1][1]
