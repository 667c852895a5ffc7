"""What is served at the address of the metrics, and when it is made ready."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from loaderd.config.schema import DaemonConfig
from loaderd.server.page.serving import PageServer
from loaderd.system.lockfile import CannotServe
from loaderd_testing.fake_time import FakeLoop

BAD: Any = SimpleNamespace(kept=SimpleNamespace(count=0), pictures=[])


def server_of(loop: FakeLoop, address: str) -> PageServer:
    parts: Any = SimpleNamespace(
        config=SimpleNamespace(daemon=DaemonConfig(socket="s", quarantine="q", metrics=address)),
        loop=loop,
        log=None,
        registry=SimpleNamespace(sessions={}),
        dispatcher=SimpleNamespace(verdicts=list, latest_batches=dict, watch=None),
        budget=SimpleNamespace(store=SimpleNamespace(read=None)),
    )
    pages: Any = SimpleNamespace(status=lambda: None, by_path=dict)
    return PageServer(address, parts, pages, BAD)


def test_trainers_that_come_before_it_listens_are_measured() -> None:
    """A successor listens once the daemon before has gone: its trainers are there by then."""
    loop = FakeLoop()
    server = server_of(loop, "127.0.0.1:1")
    assert loop.waiting == 0
    server.session_attached()
    assert loop.waiting == 1
    server.close()


def test_a_library_that_is_missing_is_named_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "loaderd.server.metrics", None)
    monkeypatch.delattr("loaderd.server.metrics", raising=False)
    with pytest.raises(CannotServe, match=r"metrics = .* pip install 'loaderd\[daemon\]'"):
        server_of(FakeLoop(), "127.0.0.1:1")
