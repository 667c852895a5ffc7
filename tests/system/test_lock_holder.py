"""Who has the lock of a file is told by its number, where the kernel shows it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from loaderd.system import lock_holder
from loaderd.system.lock_holder import HIDDEN, holder


def test_a_holder_that_the_system_does_not_show_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fd = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert holder(fd) == f"pid {os.getpid()}"
    monkeypatch.setattr(lock_holder, "LOCKS", str(tmp_path / "none"))
    assert holder(fd) == HIDDEN
    os.close(fd)
