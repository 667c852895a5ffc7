"""Tables that processes share: named by what they hold, never trusted otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from loaderd.data.errors import SourceError
from loaderd.data.selection.tables import open_table, write_table

NUMBERS = np.array([3, 1, 1 << 60])


def test_table_is_read_as_it_was_written_and_written_once(cache: Path) -> None:
    path = write_table(NUMBERS)
    written = os.stat(path).st_ino
    assert write_table(NUMBERS) == path
    assert os.stat(path).st_ino == written
    assert open_table(path).tolist() == NUMBERS.tolist()
    assert not open_table(path).flags.writeable
    assert [entry.name for entry in (cache / "loaderd/orders").iterdir()] == [
        os.path.basename(path)
    ]


def test_damaged_table_is_refused_and_made_anew(cache: Path) -> None:
    path = write_table(NUMBERS + 1)
    Path(path).write_bytes(bytes(24))
    with pytest.raises(SourceError, match="is damaged"):
        open_table(path)
    assert write_table(NUMBERS + 1) == path
    assert open_table(path).tolist() == (NUMBERS + 1).tolist()


def test_table_that_is_gone_is_named(cache: Path) -> None:
    path = write_table(NUMBERS + 2)
    os.unlink(path)
    with pytest.raises(SourceError, match="cannot be read"):
        open_table(path)


def test_table_that_is_cut_off_while_it_is_mapped_is_an_error_and_no_signal(cache: Path) -> None:
    path = write_table(NUMBERS + 7)
    open_table(path)
    os.truncate(path, 8)
    with pytest.raises(SourceError, match="its length has changed while it was in use"):
        open_table(path)


def test_folder_of_sockets_is_taken_where_no_cache_can_be_written(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("a file, no folder")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    path = write_table(NUMBERS + 3)
    assert os.path.dirname(path) == str(tmp_path / "run/loaderd/orders")
    assert open_table(path).tolist() == (NUMBERS + 3).tolist()


def test_folders_that_cannot_be_made_are_named_with_the_way_out(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("a file, no folder")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(cache))
    with pytest.raises(SourceError, match="set XDG_CACHE_HOME to a folder that can be written"):
        write_table(NUMBERS)


def test_writing_a_table_removes_those_that_nobody_used_for_long(cache: Path) -> None:
    old, used = (Path(write_table(NUMBERS + number)) for number in (4, 5))
    for path in (old, used):
        os.utime(path, (1e9, 1e9))
    write_table(NUMBERS + 5)
    new = write_table(NUMBERS + 6)
    assert sorted(map(str, old.parent.iterdir())) == sorted([str(used), new])
