"""What a daemon must have before it listens."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from loaderd.config import load
from loaderd.server.listening import claim
from loaderd.system.lockfile import CannotServe


def test_ray_is_missed_later_than_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[workers.ray]\nnum_workers = 2\n[streams.train]\nlmdb = 'a.lmdb'\n")
    config = load.load(str(path), {"XDG_RUNTIME_DIR": str(tmp_path)}, 1000)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CannotServe, match=r"\[workers\.ray\] .* pip install 'loaderd\[ray\]'"):
        claim(config, 2)
