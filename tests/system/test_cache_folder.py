"""The user's cache folder."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from loaderd.system.cache_folder import KEPT_S, cache_folder, mark_used, remove_unused


def test_without_a_home_no_folder_is_called_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    # as for a uid that the machine does not know
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert cache_folder({}, "check") == f"/tmp/loaderd-{os.getuid()}/check"
    assert cache_folder({"XDG_RUNTIME_DIR": "/run/user/7"}, "a") == "/run/user/7/loaderd/a"
    assert cache_folder({"XDG_CACHE_HOME": "/cache"}, "keys") == "/cache/loaderd/keys"


def test_what_nobody_has_used_for_long_is_removed_and_the_rest_stays(tmp_path: Path) -> None:
    now_s = time.time()
    for name in ("old", "used", "new", "folder/old", "busy/old", "busy/new"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.touch()
        age_s = 0.0 if "new" in name else KEPT_S + 1
        os.utime(file, (now_s - age_s, now_s - age_s))
    for folder in ("folder", "busy"):
        os.utime(tmp_path / folder, (now_s - KEPT_S - 1, now_s - KEPT_S - 1))
    mark_used(str(tmp_path / "used"))
    remove_unused(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["busy", "new", "used"]


def test_a_cache_that_is_not_there_has_nothing_to_remove(tmp_path: Path) -> None:
    remove_unused(str(tmp_path / "none"))
    mark_used(str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
