"""What has changed since the start is told: the config file, code and data."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from loaderd.data.selection.selection import SampleSelection, file_stamp
from loaderd.server.admission import OpenedStream
from loaderd.server.source_changes import SHOWN, SourceChanges, data_changed
from server.test_admission import FACTS, PLAN


def test_a_config_that_was_written_to_is_outdated(tmp_path: Path) -> None:
    config = tmp_path / "a.toml"
    config.write_text("one")
    changes = SourceChanges(str(config), list)
    assert changes.why_outdated() == ""
    config.write_text("two")
    assert changes.why_outdated() == "the config file has changed"


def test_code_that_was_edited_is_named_and_long_lists_are_cut(tmp_path: Path) -> None:
    edited: list[str] = []
    changes = SourceChanges("", lambda: edited)
    assert (changes.why_outdated(), changes.old_code(shared=False)) == ("", "")
    edited.append("aug.py")
    assert changes.why_outdated() == "aug.py was edited after its import"
    edited += [f"{i}.py" for i in range(SHOWN)]
    assert "3.py and 1 more were edited after their import" in changes.why_outdated()


def test_a_client_is_told_why_it_gets_the_old_code() -> None:
    changes = SourceChanges("a.toml", lambda: ["aug.py"])
    alone, shared = changes.old_code(shared=False), changes.old_code(shared=True)
    assert "this daemon keeps the old code (`loaderd drain a.toml` ends it)" in alone
    assert "other sessions use this daemon, so it keeps the old code" in shared


def stream_of(path: Path) -> OpenedStream:
    """A stream that was opened when the file was as it is now."""
    now = os.stat(path)
    facts = {
        "device": now.st_dev,
        "inode": now.st_ino,
        "size": now.st_size,
        "mtime_ns": now.st_mtime_ns,
        "ctime_ns": now.st_ctime_ns,
    }
    return OpenedStream(
        replace(PLAN, lmdb=str(path)), replace(FACTS, state=json.dumps({"facts": facts}))
    )


def test_a_database_that_was_written_to_or_is_gone_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    path.write_bytes(b"old")
    stream = stream_of(path)
    assert not data_changed(stream)
    path.write_bytes(b"new and longer")
    assert data_changed(stream)
    path.unlink()
    assert data_changed(stream)


def test_the_file_in_the_folder_of_a_database_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    path.write_bytes(b"old")
    stream = stream_of(path)
    folder = OpenedStream(replace(stream.plan, lmdb=str(tmp_path)), stream.facts)
    assert not data_changed(folder)
    path.write_bytes(b"new and longer")
    assert data_changed(folder)


def test_a_stream_without_a_database_has_not_changed() -> None:
    assert not data_changed(OpenedStream(replace(PLAN, lmdb=None, dataset="a:B"), FACTS))
    assert not data_changed(OpenedStream(PLAN, FACTS))


def test_file_of_keys_that_was_written_to_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    path.write_text("a")
    selection = SampleSelection(files=((str(path), file_stamp(str(path))),))
    stream = OpenedStream(PLAN, replace(FACTS, selection=selection))
    mixture = OpenedStream(replace(PLAN, sources=(PLAN,)), replace(FACTS, sources=(stream.facts,)))
    assert not data_changed(stream)
    assert not data_changed(mixture)
    path.write_text("ab")
    assert data_changed(stream)
    assert data_changed(mixture)
