from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from loaderd_client import Loader
from loaderd_testing.deadlines import DEADLINE_S, LEAVING_S, until
from loaderd_testing.fake_daemon import FakeDaemon
from loaderd_testing.leaks import KEPT_FDS


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No thread, fd or mapping of ours outlives a test."""
    before = _ours()
    yield
    gc.collect()
    until("everything to be given back", lambda: _ours() <= before or gc.collect() < 0, LEAVING_S)


def _ours() -> set[str]:
    found = {f"thread {t.name}" for t in threading.enumerate()}
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if int(fd) in KEPT_FDS:
            continue
        if "memfd" in target or ("socket" in target) or "eventfd" in target:
            found.add(f"{fd} {target}")
    return found


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Callable[..., FakeDaemon]]:
    with ExitStack() as stack:
        yield lambda **rules: stack.enter_context(FakeDaemon(tmp_path, **rules))


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[..., Loader[Any]]]:
    """Loaders on the fake's socket, closed at the end."""
    made: list[Loader[Any]] = []

    def make(**kwargs: Any) -> Loader[Any]:
        options: dict[str, Any] = {
            "stream": "train",
            "output": "numpy",
            "reconnect_s": DEADLINE_S,
            "timeout_s": DEADLINE_S,
            **kwargs,
        }
        made.append(Loader(str(tmp_path / "d.sock"), **options))
        return made[-1]

    yield make
    for loader in made:
        loader.close()
