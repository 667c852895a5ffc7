from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loaderd_testing.cli_harness import Place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A folder of its own, and default sockets of its own."""
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(run))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = Place(tmp_path)
    yield made
    made.close()
