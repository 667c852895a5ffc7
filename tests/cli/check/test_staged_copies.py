"""`check --all` finds a staged copy that a disk has damaged, and no daemon trusts it any longer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loaderd.cli.check import staged_copies
from loaderd.cli.exit_codes import FAULTS, FINE
from loaderd.config import load
from loaderd.config.load import Config
from loaderd.data.staging.copying import copy_of
from loaderd.data.staging.folder import StageFolder
from loaderd_testing.database_builders import filled


@pytest.fixture
def settings(tmp_path: Path) -> Config:
    filled(tmp_path / "a.lmdb")
    (tmp_path / "local").mkdir()
    (tmp_path / "c.toml").write_text(
        '[daemon]\nstage = "local"\n[streams.a]\nlmdb = "a.lmdb"\n'
        '[streams.b]\nlmdb = "a.lmdb"\n[streams.m]\nof = {a = 1, b = 1}\n'
    )
    return load.load(str(tmp_path / "c.toml"), os.environ, os.getuid())


def copy(settings: Config) -> Path:
    assert settings.daemon.staging is not None
    folder, path = StageFolder(settings.daemon.staging), settings.streams[0].lmdb
    assert path is not None
    return Path(copy_of(path, folder, lambda *_: None, print))


def test_nothing_is_said_where_there_are_no_copies(
    settings: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert staged_copies.check(settings, settings.streams) == FINE
    os.rename(tmp_path / "local", tmp_path / "elsewhere")
    assert staged_copies.check(settings, settings.streams) == FINE
    assert capsys.readouterr().out == ""


def test_each_copy_is_compared_once(settings: Config, capsys: pytest.CaptureFixture[str]) -> None:
    made = copy(settings)
    assert staged_copies.check(settings, settings.streams) == FINE
    (line,) = capsys.readouterr().out.splitlines()
    assert (
        line == f"fine: {made}, the staged copy of {settings.streams[0].lmdb}, is as it was written"
    )


def test_a_copy_that_a_disk_has_damaged_is_named_and_made_good_by_the_next_start(
    settings: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    made = copy(settings)
    right = made.read_bytes()
    made.write_bytes(right[:9000] + b"damage" + right[9006:])
    state = made.with_suffix(".checked")
    now = made.stat()
    state.write_text(f"{now.st_ino} {now.st_size} {now.st_mtime_ns} {now.st_ctime_ns}\n")
    copy(settings)
    assert made.read_bytes() != right, "the system says that nothing has changed"
    assert staged_copies.check(settings, settings.streams) == FAULTS
    assert capsys.readouterr().out.startswith(f"DAMAGED: {made}, the staged copy of ")
    copy(settings)
    assert made.read_bytes() == right
