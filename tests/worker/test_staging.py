"""Streams are read from copies of their databases, and nothing else about them is different."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loaderd.config.parts import PartConfig
from loaderd.config.staging import StageConfig
from loaderd.config.stream import StreamConfig
from loaderd.core.jobs import Stage
from loaderd.data.errors import SourceError
from loaderd.data.sample import Sample
from loaderd.data.sources.source import Source
from loaderd.engine.messages import OpenError, StreamInfo
from loaderd.server.source_changes import data_changed
from loaderd.server.stream_catalog import OpenedStream
from loaderd.worker.staging import explained, staged
from loaderd.worker.streams import OpenStreams
from loaderd_testing.deadlines import until
from loaderd_testing.engine_harness import Workshop
from loaderd_testing.sample_builders import write_own

Build = Callable[..., Workshop]


class Board:
    """What a worker wrote on the status board."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.stages: set[int] = set()

    def name(self, row: int, key: str) -> None:
        self.texts.append(key)

    def stamp(self, job: int, row: int, stage: int, candidate: int = 0) -> None:
        self.stages.add(stage)

    def importing(self, on: bool) -> None: ...

    def idle(self) -> None: ...


@pytest.fixture
def stage(tmp_path: Path) -> StageConfig:
    (tmp_path / "local").mkdir()
    return StageConfig(str(tmp_path / "local"), 0, 0.0, "us")


def database(path: Path, first: int) -> str:
    return write_own(path, [Sample({"y": np.array(first + i, np.int64)}) for i in range(20)])


def test_a_stream_without_a_stage_is_read_where_it_is(tmp_path: Path) -> None:
    plan = StreamConfig("t", lmdb=database(tmp_path / "a.lmdb", 0))
    assert staged(plan, Board(), print) is plan
    assert plan.stored_at == plan.lmdb


def test_how_much_of_all_copies_is_there_is_told(tmp_path: Path, stage: StageConfig) -> None:
    for name in ("a", "b"):
        database(tmp_path / f"{name}.lmdb", 0)
    board = Board()
    parts = (PartConfig(str(tmp_path / "*.lmdb")),)
    plan = staged(StreamConfig("t", parts=parts, stage=stage), board, print)
    total = sum(Path(path).stat().st_size for path in plan.copies.values()) / 1000
    assert board.texts[0] == f"staging 0 of {total:.3g} kB"
    assert f"staging {total / 2:.3g} of {total:.3g} kB" in board.texts
    assert board.stages == {Stage.OPEN}
    assert board.texts[-2:] == ["", ""], "what comes next is no copying"


def test_several_databases_keep_their_names_and_their_order(
    tmp_path: Path, stage: StageConfig
) -> None:
    for number, name in enumerate("ba"):
        database(tmp_path / f"{name}.lmdb", 20 * number)
    before = StreamConfig("t", parts=(PartConfig(str(tmp_path / "*.lmdb")),), stage=stage)
    plan = StreamConfig.from_json(staged(before, Board(), print).to_json())
    with Source(before) as original:
        names, identity = original.parts, original.identity
    for name in "ab":
        (tmp_path / f"{name}.lmdb").unlink()
    with Source(plan) as copied:
        assert (copied.parts, copied.identity) == (names, identity)
        assert copied.read(0)["y"] == 20


def test_the_sources_of_a_mixture_are_copied_each_once(tmp_path: Path, stage: StageConfig) -> None:
    one = StreamConfig("a", lmdb=database(tmp_path / "a.lmdb", 0), stage=stage)
    mixed = StreamConfig(
        "m", of={"a": 1, "b": 1}, sources=(one, replace(one, name="b")), stage=stage
    )
    first, second = staged(mixed, Board(), print).sources
    assert first.copies == second.copies
    assert first.stored_at != first.lmdb


def test_a_dataset_is_no_file_to_copy(stage: StageConfig) -> None:
    plan = StreamConfig("t", dataset="made:Up", stage=stage)
    assert staged(plan, Board(), print) is plan


def test_a_database_that_is_not_there_is_named(tmp_path: Path, stage: StageConfig) -> None:
    with pytest.raises(SourceError, match=r"none\.lmdb: there is no such file"):
        staged(StreamConfig("t", lmdb=str(tmp_path / "none.lmdb"), stage=stage), Board(), print)


def test_workers_read_from_the_copy_and_a_stream_without_room_is_not_opened(
    build: Build, tmp_path: Path, stage: StageConfig
) -> None:
    path = Path(database(tmp_path / "a.lmdb", 5))
    shop = build(
        StreamConfig("train", lmdb=str(path), stage=stage),
        StreamConfig("other", lmdb=database(tmp_path / "b.lmdb", 0), stage=replace(stage, limit=1)),
    )
    refused = shop.open("other")
    assert isinstance(refused, OpenError)
    assert "stage_limit is 1 B" in refused.text
    shop.start(1)  # before the stream is open: what it was started with does not know the copy
    facts = shop.facts("train")
    assert not data_changed(OpenedStream(StreamConfig.from_json(facts.plan), facts))
    path.unlink()
    pond = shop.pond(facts, 20)
    done = shop.run(1, shop.job("train", 20))
    assert (done.changed, done.bad) == ("", ())
    assert pond.field(0, "y", 20).tolist() == list(range(5, 25))


def test_a_copy_that_is_damaged_or_gone_is_told_with_its_original(
    build: Build, tmp_path: Path, stage: StageConfig
) -> None:
    path = database(tmp_path / "a.lmdb", 5)
    shop = build(StreamConfig("train", lmdb=path, stage=stage))
    facts = shop.facts("train")
    copy = Path(StreamConfig.from_json(facts.plan).copies[path])
    shop.start(1)
    shop.pond(facts, 20)
    copy.rename(copy.with_name("away"))
    done = shop.run(1, shop.job("train", 20))
    assert done.changed.startswith(f"{copy}: ")
    told = f"(this is the staged copy of {path}: if the copy is damaged, start the daemon again, "
    assert told in done.changed


def test_a_copy_that_was_damaged_is_noted_with_the_stream(
    build: Build, tmp_path: Path, stage: StageConfig
) -> None:
    path = database(tmp_path / "a.lmdb", 5)
    shop = build(StreamConfig("train", lmdb=path, stage=stage))
    before = shop.facts("train")
    copy = StreamConfig.from_json(before.plan).copies[path]
    with open(copy, "r+b") as file:
        file.write(b"damage")
    after = shop.open("train")
    assert isinstance(after, StreamInfo)
    (note,) = after.warnings
    assert note.startswith(f"{copy}, the staged copy of {path}, was damaged")
    assert after.identity == before.identity


def test_only_a_text_that_names_a_copy_is_explained() -> None:
    one = StreamConfig("a", lmdb="/data/a.lmdb", copies={"/data/a.lmdb": "/local/a-1.mdb"})
    mixed = StreamConfig("m", of={"a": 1}, sources=(one,))
    assert explained(mixed, "/data/a.lmdb: is cut short") == "/data/a.lmdb: is cut short"
    assert explained(mixed, "/local/a-1.mdb: is cut short").endswith(
        "(this is the staged copy of /data/a.lmdb: if the copy is damaged, start the daemon again, "
        "which makes it good)"
    )


def opened(tmp_path: Path, stage: StageConfig) -> tuple[str, OpenStreams]:
    """(a database, streams with one that reads its staged copy)."""
    path = database(tmp_path / "a.lmdb", 5)
    streams = OpenStreams([], 0, 1)
    streams.plan(staged(StreamConfig("t", lmdb=path, stage=stage), Board(), print))
    return path, streams


def test_a_copy_that_is_written_to_ends_the_stream_whatever_is_in_it(
    tmp_path: Path, stage: StageConfig
) -> None:
    path, streams = opened(tmp_path, stage)
    stream = streams.get("t")
    with closing(stream.source):
        assert stream.changed() == ""
        copy = Path(stream.plan.copies[path])
        with copy.open("r+b") as file:
            file.seek(copy.stat().st_size - 1)  # of a value that nobody looks at
            file.write(b"x")
        os.utime(copy, (1, 1))  # the clock of a file system may not have moved on since
        assert stream.changed().startswith(
            f"{copy}: was written to: its modification time has changed"
        )


def test_a_copy_that_is_touched_is_noted_with_its_original(
    tmp_path: Path, stage: StageConfig
) -> None:
    path, streams = opened(tmp_path, stage)
    stream = streams.get("t")
    with closing(stream.source):
        copy = Path(stream.plan.copies[path])
        before = copy.stat().st_ctime_ns
        until("another time", lambda: copy.chmod(0o400) or copy.stat().st_ctime_ns != before)
        assert stream.changed() == ""
        (note,) = streams.notes()
        assert f"(this is the staged copy of {path}: " in note
