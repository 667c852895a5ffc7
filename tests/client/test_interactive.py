"""In a notebook earlier Loaders of a config make way for a new one, and go on when they are used."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from loaderd_client import Loader
from loaderd_client.control_socket import ControlSocket
from loaderd_testing.deadlines import DEADLINE_S, until
from loaderd_testing.fake_daemon import FakeDaemon, checked, epoch_indices, seen

Fake = Callable[..., FakeDaemon]
Load = Callable[..., Loader[Any]]


@pytest.fixture
def by_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Loader[Any]]]:
    """Loaders on the fake's config, made in a notebook."""
    monkeypatch.setattr(sys, "ps1", "In : ", raising=False)
    config = tmp_path / "c.toml"
    config.write_text('[daemon]\nsocket = "d.sock"\n')
    with ExitStack() as stack:
        yield lambda: stack.enter_context(
            Loader(config, "train", output="numpy", reconnect_s=DEADLINE_S, timeout_s=DEADLINE_S)
        )


def test_an_earlier_loader_gives_up_its_session_and_goes_on_where_it_was(
    fake: Fake, by_config: Callable[[], Loader[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    daemon = fake()
    earlier = by_config()
    batches = iter(earlier)
    rows = checked(next(batches))
    later = by_config()
    assert seen(later) == epoch_indices(0, daemon.rules)
    until("the end of the first session", lambda: len(daemon.sessions) == 1)
    rows += seen(batches)
    assert rows == epoch_indices(0, daemon.rules)
    # to come back is not to arrive: the later one keeps its session
    until("both sessions", lambda: len(daemon.sessions) == 2)
    assert len(daemon.hellos) == 3
    assert not caplog.records


@pytest.mark.parametrize("how", ["no notebook", "by its socket"])
def test_elsewhere_an_earlier_loader_keeps_its_session(
    fake: Fake,
    load: Load,
    by_config: Callable[[], Loader[Any]],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    daemon = fake()
    if how == "no notebook":
        monkeypatch.delattr(sys, "ps1")
    loaders = [load() if how == "by its socket" else by_config() for _ in range(2)]
    assert [len(loader) for loader in loaders] == [13, 13]
    assert len(daemon.sessions) == len(daemon.hellos) == 2


def test_a_loader_that_waits_for_a_batch_in_a_thread_is_left_alone(
    fake: Fake, by_config: Callable[[], Loader[Any]]
) -> None:
    daemon = fake(makes=False)
    earlier = by_config()
    rows: list[int] = []
    thread = threading.Thread(target=lambda: rows.extend(seen(earlier)))
    thread.start()
    until("its call", lambda: daemon.sessions and daemon.rules.said)
    assert len(by_config()) == 13
    daemon.rules.makes = True
    thread.join(DEADLINE_S)
    assert rows == epoch_indices(0, daemon.rules)
    assert len(daemon.hellos) == 2


def test_a_handshake_that_was_interrupted_makes_way_too(
    fake: Fake, by_config: Callable[[], Loader[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = fake(starts_for_ever=True)
    earlier = by_config()
    wait = ControlSocket.wait

    def interrupt(control: ControlSocket, timeout_s: float) -> bool:
        monkeypatch.setattr(ControlSocket, "wait", wait)
        raise KeyboardInterrupt

    monkeypatch.setattr(ControlSocket, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        len(earlier)
    until("its hello", lambda: daemon._strangers)
    daemon.rules.starts_for_ever = False
    assert len(by_config()) == 13
    until("the end of its connection", lambda: len(daemon.hellos) == 2 and not daemon._strangers)
    assert len(earlier) == 13
