"""What is served at the address of the metrics, and when it is made ready."""

from __future__ import annotations

import sys
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from loaderd.config.schema import DaemonConfig
from loaderd.server.page import serving
from loaderd.server.page.serving import PageServer
from loaderd.system.lockfile import CannotServe
from loaderd_testing.fake_time import FakeLoop

BAD: Any = SimpleNamespace(kept=SimpleNamespace(count=0), pictures=[])


def server_of(loop: FakeLoop, address: str, log: Any = None) -> PageServer:
    parts: Any = SimpleNamespace(
        config=SimpleNamespace(daemon=DaemonConfig(socket="s", quarantine="q", metrics=address)),
        loop=loop,
        log=log,
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


def test_an_address_that_is_not_free_after_a_takeover_is_tried_again_until_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, tries, said = FakeLoop(), list[float](), list[str]()
    closed: list[bool] = []

    def listen(*_: Any, **__: Any) -> Any:
        tries.append(loop.now_s())
        if len(tries) < 9:
            raise OSError("Address already in use")
        return SimpleNamespace(close=lambda: closed.append(True))

    monkeypatch.setattr(serving, "HttpServer", listen)
    server = server_of(loop, "127.0.0.1:1", lambda level, event, text: said.append(text))
    server.listen_when_free()
    loop.advance(300.0)
    waits = [after - before for before, after in pairwise(tries)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    first, last = said
    assert "Address already in use; set another [daemon] metrics, or free this one" in first
    assert "served at 127.0.0.1:1 now" in last
    server.close()
    assert closed == [True]
    assert loop.waiting == 0


def test_a_daemon_that_leaves_meanwhile_tries_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def listen(*_: Any, **__: Any) -> Any:
        raise OSError("Address already in use")

    loop = FakeLoop()
    monkeypatch.setattr(serving, "HttpServer", listen)
    server = server_of(loop, "127.0.0.1:1", lambda *_: None)
    server.listen_when_free()
    assert loop.waiting == 1
    server.close()
    assert loop.waiting == 0


@pytest.mark.parametrize(
    ("address", "thumbnails", "shown"),
    [
        (None, None, False),
        (None, True, False),
        ("127.0.0.1:1", None, True),
        ("[::1]:1", None, True),
        ("localhost:1", False, False),
        ("0.0.0.0:1", None, False),
        ("0.0.0.0:1", True, True),
        ("nonsense", None, False),
    ],
)
def test_samples_are_shown_on_a_page_that_only_this_machine_sees_or_as_the_config_says(
    address: str | None, thumbnails: bool | None, shown: bool
) -> None:
    daemon = DaemonConfig(socket="s", quarantine="q", metrics=address, thumbnails=thumbnails)
    assert serving.shows_samples(daemon) is shown
