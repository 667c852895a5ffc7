"""What a scan keeps on disk: found again after any end, never more than was kept, and copies found
in it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loaderd.cli.check import scan_state
from loaderd.cli.check.scan_state import ScanState
from loaderd.cli.exit_codes import CommandError
from loaderd_wire.errors import BadSample

BAD = BadSample(7, "b/007.jpg", 7, "decode", "ImageError", "it is cut short\udc80", "")


def saved(folder: Path, *, anew: bool = False, stream: str = "train") -> ScanState:
    return ScanState(str(folder), "/c.toml", stream, anew=anew)


def test_what_was_kept_is_found_and_what_came_after_is_not(tmp_path: Path) -> None:
    with saved(tmp_path) as first:
        assert first.state == {}
        first.add(np.array([1, 2, 3], np.uint64))
        first.set_aside("train", BAD)
        first.save(done=3)
        first.add(np.array([3, 3], np.uint64))
        first.set_aside("train", BAD)
    with saved(tmp_path) as second:
        assert second.state["done"] == 3
        assert [bad.key for bad in second.bad()] == ["b/007.jpg"]
        assert second.duplicates(10, 4) == (0, [])
        second.add(np.array([2], np.uint64))
        assert second.duplicates(10, 4) == (1, [[1, 3]])
        second.finish()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_kept_of_a_scan_that_saved_nothing(tmp_path: Path) -> None:
    with saved(tmp_path) as first:
        first.add(np.array([1], np.uint64))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("spoil", ["state.json", "hashes", "bad.jsonl"])
def test_files_that_somebody_has_spoilt_count_for_nothing(tmp_path: Path, spoil: str) -> None:
    with saved(tmp_path) as first:
        first.add(np.array([1], np.uint64))
        first.set_aside("train", BAD)
        first.save(done=1)
        path = Path(first.path)
    (path / spoil).write_text("{")
    with saved(tmp_path) as second:
        assert second.state == {}
        assert list(second.bad()) == []


def test_a_folder_that_another_scan_removes_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, locked = [saved(tmp_path)], scan_state._locked

    def after_the_other(fd: int) -> bool:
        if others:
            others.pop().__exit__(None, None, None)
        return locked(fd)

    monkeypatch.setattr(scan_state, "_locked", after_the_other)
    with saved(tmp_path) as scan:
        scan.add(np.array([1], np.uint64))
        scan.save(done=1)
    with saved(tmp_path) as scan:
        assert scan.state["done"] == 1


def test_a_new_beginning_and_other_streams_find_nothing(tmp_path: Path) -> None:
    with saved(tmp_path) as first:
        first.save(done=1)
    with saved(tmp_path, stream="val") as other:
        assert other.state == {}
    with saved(tmp_path, anew=True) as again:
        assert again.state == {}


def test_a_second_scan_at_the_same_time_keeps_its_hands_off(tmp_path: Path) -> None:
    with saved(tmp_path) as first:
        first.save(done=1)
        with saved(tmp_path) as second:
            assert not second.keeps
            assert second.state == {}
            second.save(done=9)
            elsewhere = Path(second.path)
        assert not elsewhere.exists()
    with saved(tmp_path) as third:
        assert third.state["done"] == 1


def test_copies_are_counted_and_some_are_shown(tmp_path: Path) -> None:
    hashes = np.random.default_rng(0).integers(1, 1 << 63, 5000, np.uint64)
    hashes[[100, 4000]] = hashes[50]
    hashes[4500:4510] = hashes[7]
    hashes[4900:] = 0  # bad samples are no copies
    with saved(tmp_path) as made:
        made.add(hashes)
        copies, groups = made.duplicates(10, 4)
        assert copies == 12
        assert groups == [[7, 4500, 4501, 4502], [50, 100, 4000]]
        assert len(made.duplicates(1, 4)[1]) == 1


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match=r"file.*set XDG_CACHE_HOME"):
        saved(tmp_path / "file")
