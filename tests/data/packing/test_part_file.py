"""One process packs into a target at a time, and the target appears whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loaderd.data.errors import SourceError
from loaderd.data.packing.part_file import claimed, finish


def test_a_claimed_target_is_refused_until_the_claim_ends(tmp_path: Path) -> None:
    target = str(tmp_path / "db")
    with claimed(target) as part:
        assert part == target + ".part"
        with (
            pytest.raises(SourceError, match=f"pid {os.getpid()} is packing into it"),
            claimed(target),
        ):
            pass
    with claimed(target) as again:
        assert again == part


def test_what_is_finished_lies_at_the_target_and_is_not_claimed_again(tmp_path: Path) -> None:
    target = tmp_path / "db"
    with claimed(str(target)) as part:
        Path(part).write_bytes(b"whole")
        assert finish(part, str(target)) == 5
    assert target.read_bytes() == b"whole"
    assert not Path(part).exists()
    with pytest.raises(SourceError, match="already exists"), claimed(str(target)):
        pass


def test_a_target_that_appeared_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "db"
    with claimed(str(target)) as part:
        target.write_text("precious")
        with pytest.raises(SourceError, match="already exists"):
            finish(part, str(target))
    assert target.read_text() == "precious"
