"""Keys that were found by a pass over a database, in a file that all processes map."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderd.data.errors import SourceError
from loaderd.data.layouts import key_index
from loaderd.data.layouts.key_index import BLOCK, FEW, SUFFIX
from loaderd.data.layouts.keys import KeyFormat, Runs
from loaderd.data.lmdb.open_stores import open_store
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.foreign_databases import source
from loaderd_testing.sample_builders import write

COUNT = FEW + BLOCK + 7


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def names(count: int = COUNT) -> list[bytes]:
    """Keys of different lengths, in byte order."""
    keys = [hashlib.sha1(b"%d" % i).hexdigest()[: 8 + i % 30] for i in range(count)]
    return sorted(key.encode() for key in keys)


def of_names(path: Path, keys: list[bytes] | None = None) -> str:
    return write(path, dict.fromkeys(names() if keys is None else keys, b"\1"))


def found(path: str) -> tuple[list[str], tuple[str, ...]]:
    """The keys of a stream on the database, and its warnings."""
    with source(path, "raw", dtype="uint8") as opened:
        return [opened.key(index) for index in range(opened.total)], opened.warnings


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if SUFFIX in path.name)


def test_keys_are_read_once_and_kept_beside_the_database(tmp_path: Path) -> None:
    path = of_names(tmp_path / "db")
    keys, warnings = found(path)
    assert keys == [key.decode() for key in names()]
    (file,) = files(tmp_path)
    assert file.parent == tmp_path
    assert warnings == (f"{path}: its {COUNT:,} keys were read, once; they are in {file}",)
    before = file.stat().st_ino
    assert found(path) == (keys, ())
    assert file.stat().st_ino == before


def test_a_small_database_has_no_index_file(tmp_path: Path) -> None:
    assert len(found(of_names(tmp_path / "db", names(100)))[0]) == 100
    assert not files(tmp_path)


def test_a_read_only_folder_has_its_index_in_the_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = of_names(tmp_path / "db")
    part_of = key_index._part_of

    def refusing(file: str) -> object:
        if file.startswith(path):
            raise PermissionError(13, "Permission denied")
        return part_of(file)

    monkeypatch.setattr(key_index, "_part_of", refusing)  # root may write into any folder
    keys, _ = found(path)
    (file,) = files(tmp_path)
    assert file.parent == tmp_path / "cache" / "loaderd" / "keys"
    assert found(path) == (keys, ())


def test_where_nothing_can_be_written_each_worker_reads_the_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(file: str) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(key_index, "_part_of", refused)
    keys, (warning,) = found(of_names(tmp_path / "db"))
    assert keys == [key.decode() for key in names()]
    assert "set XDG_CACHE_HOME to a folder that can be" in warning
    assert not files(tmp_path)


def flipped(data: bytes) -> bytes:
    return data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]


@pytest.mark.parametrize(
    "damage",
    [
        flipped,
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"",
        lambda data: b"not an index",
        lambda data: data.replace(b'"count": ', b'"count": 1'),
        lambda data: data.replace(b'"entries"', b'"entires"'),
        lambda data: data.replace(b'"count": 14103', b'"count": 14102'),
        lambda data: data.replace(b'"count": 14103', b'"count": -4103'),
        lambda data: data.replace(b'"count": 14103', b'"count": 141.3'),
        lambda data: data.replace(b'"count"', b'"cound"'),
        lambda data: b"\xff" + data[1:],
    ],
)
def test_a_damaged_index_is_made_anew(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = of_names(tmp_path / "db")
    keys, _ = found(path)
    (file,) = files(tmp_path)
    good = file.read_bytes()
    file.write_bytes(damage(good))
    again, warnings = found(path)
    assert again == keys
    assert len(warnings) == 1
    assert file.read_bytes() == good


def test_a_pipe_in_the_place_of_an_index_is_not_waited_for(tmp_path: Path) -> None:
    path = of_names(tmp_path / "db")
    keys, _ = found(path)
    (file,) = files(tmp_path)
    file.unlink()
    os.mkfifo(file)
    os.mkfifo(f"{file}left.part")
    assert found(path)[0] == keys
    assert files(tmp_path) == [file]
    assert file.is_file()


def test_the_index_of_another_database_is_not_believed(tmp_path: Path) -> None:
    one = of_names(tmp_path / "one")
    found(one)
    (file,) = files(tmp_path)
    other = names(COUNT + 5)[5:]
    os.replace(of_names(tmp_path / "two", other), one)
    data = file.read_bytes()
    assert found(one)[0] == [key.decode() for key in other]
    assert file.read_bytes() != data


def test_a_database_that_was_written_to_is_read_again(tmp_path: Path) -> None:
    path = of_names(tmp_path / "db")
    found(path)
    write(path, {b"zz": b"\1"})
    assert found(path)[0] == [*(key.decode() for key in names()), "zz"]
    assert len(files(tmp_path)) == 1


def test_the_index_file_of_a_stranger_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = of_names(tmp_path / "db")
    found(path)
    (file,) = files(tmp_path)
    before = file.stat().st_ino
    real = key_index._read
    monkeypatch.setattr(key_index, "_read", lambda path, wanted, owners: real(path, wanted, {-1}))
    found(path)
    assert file.stat().st_ino != before


def test_what_a_killed_process_left_is_removed_and_what_another_writes_is_not(
    tmp_path: Path,
) -> None:
    path = of_names(tmp_path / "db")
    found(path)
    (file,) = files(tmp_path)
    file.unlink()
    left = Path(f"{file}abc.part")
    left.write_bytes(b"half")
    with key_index._part_of(str(file)) as part:
        found(path)
        assert Path(part.name).exists()
    assert files(tmp_path) == [file]


def test_what_another_process_removes_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = of_names(tmp_path / "db")
    found(path)
    (file,) = files(tmp_path)
    file.unlink()
    make, others = key_index.NamedTemporaryFile, [key_index._part_of(str(file))]

    def then_another_looks(*args: Any, **kwargs: Any) -> Any:
        part = make(*args, **kwargs)
        if others:
            with others.pop():
                assert not os.path.exists(part.name)
        return part

    monkeypatch.setattr(key_index, "NamedTemporaryFile", then_another_looks)
    found(path)
    assert not others
    assert files(tmp_path) == [file]


READ = """
import sys
from loaderd.config.stream import StreamConfig
from loaderd.data.sources.source import Source
with Source(StreamConfig("t", lmdb=sys.argv[1], layout="raw", dtype="uint8")) as opened:
    print(*(opened.key(index) for index in range(opened.total)))
"""


def test_several_processes_may_make_the_index_at_once(tmp_path: Path) -> None:
    path = of_names(tmp_path / "db")
    command = [sys.executable, "-c", READ, path]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    printed = {reader.communicate(timeout=DEADLINE_S)[0] for reader in readers}
    assert printed == {b" ".join(names()) + b"\n"}
    assert len(files(tmp_path)) == 1


def test_a_database_that_changes_during_the_pass_leaves_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = of_names(tmp_path / "db")
    store = open_store(path)
    try:
        indexes = key_index.KeyIndexes(store)

        def keys() -> list[bytes]:
            os.utime(path, (1, 1))  # as somebody who writes to it does
            return names()

        assert len(indexes.listed(keys, "all")) == COUNT
    finally:
        store.close()
    assert not files(tmp_path)


# numbers


@pytest.mark.parametrize("form", ["{i}", "{i:08d}", "a{i:03d}_b", "x{i:25d}", "u32be", "u64le"])
def test_numbers_of_many_keys_are_those_of_each(form: str) -> None:
    pattern, draw = KeyFormat(form), random.Random(7)
    numbers = [draw.randrange(10 ** draw.randrange(1, 9)) for _ in range(500)]
    keys = [pattern.key(number) for number in numbers]
    keys += [b"", b"0", b"00", b"007", b"a1_b", b"a0001_b", b"a1000_b", b"x" * 26, b"9" * 19]
    keys += [b"-1", b"+1", b" 1", b"1 ", "١٢".encode(), b"1a", b"\xff" * 4, b"\xff" * 8]
    expected = [number for key in keys if (number := pattern.number(key)) is not None]
    expected = [number for number in expected if number < 1 << 63]
    assert sorted(pattern.numbers(keys).tolist()) == sorted(expected)


def test_runs_give_the_numbers_in_order() -> None:
    numbers = np.array([9, 3, 4, 5, 0, 11, 10, 30], np.int64)
    runs = Runs.of(numbers)
    assert [runs[index] for index in range(runs.count)] == sorted(numbers.tolist())
    assert len(runs.firsts) == 4
    assert Runs.of(np.zeros(0, np.int64)).count == 0


def test_a_database_with_gaps_keeps_its_numbers(tmp_path: Path) -> None:
    there = [number for number in range(COUNT) if number not in (0, 5, 6, 700)]
    path = write(tmp_path / "db", {b"%d" % number: b"\1" for number in there})
    for turn in range(2):
        with source(path, "raw", dtype="uint8", key_format="{i}") as opened:
            assert [int(opened.key(index)) for index in range(opened.total)] == there
            assert len(opened.warnings) == 2 - turn
            assert opened.warnings[0].endswith("are missing: 5, 700, ...")
    (file,) = files(tmp_path)
    assert file.stat().st_size < 2000


def test_keys_without_gaps_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "db", {b"%07d" % number: b"\1" for number in range(COUNT)})
    monkeypatch.setattr("loaderd.data.lmdb.store.Store.keys", None)
    with source(path, "raw", dtype="uint8", key_format="{i:07d}") as opened:
        assert opened.total == COUNT
    assert not files(tmp_path)


def test_a_key_of_another_kind_hides_no_gap(tmp_path: Path) -> None:
    items = {b"%07d" % number: b"\1" for number in range(COUNT) if number != 4321}
    path = write(tmp_path / "db", {**items, b"version": b"\2"})
    with source(path, "raw", dtype="uint8", key_format="{i:07d}") as opened:
        assert opened.total == COUNT - 1
        assert "4321" in opened.warnings[0]


def test_a_damaged_page_names_the_database(tmp_path: Path) -> None:
    path = of_names(tmp_path / "db")
    store = open_store(path)
    try:

        def keys() -> list[bytes]:
            raise SourceError(f"{path}: cannot be read through: page")

        with pytest.raises(SourceError, match="cannot be read through"):
            key_index.KeyIndexes(store).listed(keys, "all")
    finally:
        store.close()
    assert not files(tmp_path)
