from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from loaderd_testing.cli_harness import Place
from loaderd_wire import paths


@pytest.fixture
def run_base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """XDG_RUNTIME_DIR, with a name so short that all default sockets lie below it.

    Below `tmp_path` they might not fit, and then daemons in /tmp/loaderd-UID are this user's, too.
    """
    base = tempfile.mkdtemp(prefix="", dir=os.environ["XDG_RUNTIME_DIR"])
    monkeypatch.setenv("XDG_RUNTIME_DIR", base)
    assert paths.run_folders(os.environ, os.getuid()) == (f"{base}/loaderd",)
    yield Path(base)
    shutil.rmtree(base)


@pytest.fixture
def place(tmp_path: Path, run_base: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A folder of its own, and default sockets of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = Place(tmp_path)
    yield made
    made.close()
