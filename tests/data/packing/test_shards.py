"""One source in several databases."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderd.config.parts import as_parts
from loaderd.config.stream import StreamConfig
from loaderd.data.errors import SourceError
from loaderd.data.packing import part_file, shards, writer
from loaderd.data.packing.inputs import PackOptions, pack_source
from loaderd.data.packing.kinds import opened
from loaderd.data.packing.source import SourceOptions
from loaderd.data.packing.writer import PackReport
from loaderd.data.sources.source import Source
from loaderd_testing.deadlines import DEADLINE_S

MIB = 1 << 20


def arrays(folder: Path, sizes: list[int]) -> Path:
    """Files of arrays of these sizes, in bytes; 0: one that is damaged."""
    folder.mkdir()
    for at, size in enumerate(sizes):
        path = folder / f"{at:03}.npy"
        np.save(path, np.full(size, at, np.uint8))
        if not size:
            path.write_bytes(b"x")
    return folder


def packed(source: Path, target: Path, shard: int = MIB) -> PackReport:
    said = opened("npy", str(source), SourceOptions())
    return pack_source(said, str(target), PackOptions(shard_bytes=shard))


def contents(target: Path) -> list[list[tuple[str, int]]]:
    """(name, first byte) of the samples of each shard."""
    found = []
    for path in sorted(target.parent.glob(f"{target.stem}-*")):
        assert path.suffix == target.suffix, f"{path} was left"
        with Source(StreamConfig("t", lmdb=str(path))) as source:
            rows = [
                (source.key(at), int(source.read(at)["array"][0])) for at in range(source.total)
            ]
        found.append(rows)
    return found


SIZES = [300_000] * 7 + [3 * MIB, 10, 10]
EXPECTED = [[0, 1, 2], [3, 4, 5], [6], [7], [8, 9]]


def test_shards_hold_all_samples_in_their_order_and_none_is_larger_than_was_said(
    tmp_path: Path,
) -> None:
    report = packed(arrays(tmp_path / "src", SIZES), tmp_path / "db.lmdb")
    found = contents(tmp_path / "db.lmdb")
    assert [[value for _, value in rows] for rows in found] == EXPECTED
    assert [name for rows in found for name, _ in rows] == [f"{at:03}.npy" for at in range(10)]
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("db-*.lmdb"))]
    assert [size <= MIB for size in sizes] == [True, True, True, False, True]
    assert (report.path, report.samples, report.files) == (str(tmp_path / "db-*.lmdb"), 10, 5)
    assert report.bytes == sum(sizes)


def test_a_stream_reads_shards_as_one_database_and_they_are_packed_into_one(
    tmp_path: Path,
) -> None:
    packed(arrays(tmp_path / "src", SIZES), tmp_path / "db.lmdb")
    parts = as_parts(f"{tmp_path}/db-*.lmdb")
    with Source(StreamConfig("t", parts=parts, ragged=("array",))) as source:
        values = [int(source.read(index)["array"][0]) for index in range(source.total)]
    assert values == list(range(10))
    paths = [str(tmp_path / f"db-0000{number}.lmdb") for number in range(5)]
    said = SourceOptions(more=tuple(paths[1:]))
    report = pack_source(opened("lmdb", paths[0], said), str(tmp_path / "one"), PackOptions())
    assert (report.samples, report.bad_count) == (10, 0)


def test_bad_samples_are_named_whichever_shard_they_would_be_in(tmp_path: Path) -> None:
    report = packed(arrays(tmp_path / "src", [0, 900_000, 0, 900_000, 0, 0]), tmp_path / "db")
    assert [name for name, _ in report.bad] == ["000.npy", "002.npy", "004.npy", "005.npy"]
    assert (report.samples, report.files, report.bad_count) == (2, 2, 4)
    assert len(contents(tmp_path / "db")) == 2


def test_a_last_shard_of_bad_samples_alone_is_none(tmp_path: Path) -> None:
    sizes = [900_000, 900_000, 0]
    source = arrays(tmp_path / "src", sizes)
    np.save(source / "002.npy", np.array([{}], object), allow_pickle=True)
    report = packed(source, tmp_path / "db")
    assert (report.files, report.bad_count, len(contents(tmp_path / "db"))) == (2, 1, 2)


def test_without_a_good_sample_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="not one of 2 samples can be read"):
        packed(arrays(tmp_path / "src", [0, 0]), tmp_path / "db")
    assert [path.name for path in tmp_path.iterdir()] == ["src"]


def test_shards_that_are_there_are_not_overwritten(tmp_path: Path) -> None:
    source = arrays(tmp_path / "src", [10, 10])
    for name in ("db-00000", "db-00007"):
        (tmp_path / name).touch()
        with pytest.raises(SourceError, match=f"{name}: already exists"):
            packed(source, tmp_path / "db")
        (tmp_path / name).unlink()
    (tmp_path / "db-2017").touch()
    assert packed(source, tmp_path / "db").samples == 2


KILL = """
import os, sys
from loaderd.data.packing import part_file, shards, writer, part_file
left = int(sys.argv[1])
def counted(function):
    def call(*args, **words):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
        return function(*args, **words)
    return call
writer.BATCH_SAMPLES = 2
writer.PackRun._flush = counted(writer.PackRun._flush)
shards.finish = counted(shards.finish)
shards._without_state = counted(shards._without_state)
from loaderd.__main__ import main
main(["pack", "npy", sys.argv[2], sys.argv[3], "--shard", "1MiB"])

"""


def test_a_pack_that_is_killed_anywhere_goes_on_to_the_same_shards(tmp_path: Path) -> None:
    source = arrays(tmp_path / "src", SIZES)
    packed(source, tmp_path / "whole")
    for left in (3, 8, 11, 16):
        target = tmp_path / f"cut{left}"
        command = [sys.executable, "-c", KILL, str(left), str(source), str(target)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == -9, done.stderr + done.stdout
        assert not (tmp_path / f"cut{left}-00000").exists()
        assert packed(source, target).samples == 10
        assert contents(target) == contents(tmp_path / "whole")


def test_a_shard_that_has_its_name_is_written_to_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = arrays(tmp_path / "src", SIZES)
    named: dict[str, bytes] = {}

    def finish(part: str, target: str) -> None:
        part_file.finish(part, target)
        named[target] = Path(target).read_bytes()

    monkeypatch.setattr(shards, "finish", finish)
    packed(source, tmp_path / "db")
    assert len(named) == 5
    assert all(Path(path).read_bytes() == data for path, data in named.items())


def test_shards_of_another_source_are_begun_again_and_what_is_too_much_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = arrays(tmp_path / "src", SIZES)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shards.ShardedPack, "_mark_complete", interrupted)
        with pytest.raises(KeyboardInterrupt):
            packed(source, tmp_path / "db")
    assert len(list(tmp_path.glob("db-*.part"))) == 5
    for path in sorted(source.iterdir())[2:]:
        path.unlink()
    report = packed(source, tmp_path / "db")
    assert (report.restarted, report.samples, report.files) == (True, 2, 1)
    assert len(contents(tmp_path / "db")) == 1


def test_a_full_disk_in_the_middle_is_one_line_and_the_next_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = arrays(tmp_path / "src", SIZES)
    flush: Callable[..., None] = writer.PackRun._flush
    calls: list[int] = []

    def full(run: writer.PackRun) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise writer.SourceError("no space left on the disk")
        flush(run)

    with monkeypatch.context() as patch:
        patch.setattr(writer.PackRun, "_flush", full)
        with pytest.raises(SourceError, match="no space left"):
            packed(source, tmp_path / "db")
    report = packed(source, tmp_path / "db")
    assert report.resumed_at > 0
    packed(source, tmp_path / "whole")
    assert contents(tmp_path / "db") == contents(tmp_path / "whole")
    assert not os.path.exists(tmp_path / "db-00000.part")
