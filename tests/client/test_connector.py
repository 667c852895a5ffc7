"""The way of a Loader to its second session and all further ones."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loaderd_client import Loader
from loaderd_client.control_socket import ControlSocket
from loaderd_testing.deadlines import DEADLINE_S, until
from loaderd_testing.fake_daemon import FakeDaemon, checked, epoch_indices, seen

Fake = Callable[..., FakeDaemon]
Load = Callable[..., Loader[Any]]


def test_what_a_daemon_warns_of_is_told_once_however_often_it_is_connected_to(
    fake: Fake, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    daemon, loader = fake(warnings=("a palette",)), load(prefetch=1)
    batches = iter(loader)
    rows = checked(next(batches))
    daemon.kill()
    daemon.rules.warnings = ("a palette", "a mask")
    rows += seen(batches)
    assert rows == epoch_indices(0, daemon.rules)
    told = [
        record.message
        for record in caplog.records
        if "a palette" in record.message or "a mask" in record.message
    ]
    assert [text.rpartition(": ")[2] for text in told] == ["a palette", "a mask"]


def test_a_warning_names_its_stream_once(
    fake: Fake, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    fake(warnings=("stream 'train': it is odd",))
    len(load())
    (told,) = [each.message for each in caplog.records if "odd" in each.message]
    assert told == "loaderd: stream 'train': it is odd"


def test_how_epochs_are_cut_is_the_first_sessions_whatever_the_next_daemon_would_do(
    fake: Fake, load: Load
) -> None:
    daemon, loader = fake(drop_last=True), load(prefetch=1)
    batches = iter(loader)
    rows = checked(next(batches))
    daemon.kill()
    daemon.rules.drop_last = False
    rows += seen(batches)
    assert rows == epoch_indices(0, daemon.rules)[:48]
    assert [hello.drop_last for hello in daemon.hellos] == [None, True]


def test_a_config_that_has_changed_since_its_daemon_started_is_told_of_at_the_first_session(
    fake: Fake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    daemon, config = fake(), tmp_path / "c.toml"
    config.write_text('[daemon]\nsocket = "d.sock"\n')
    later_s = os.stat(daemon.path).st_mtime + 100
    os.utime(config, (later_s, later_s))
    with Loader(config, "train", output="numpy", prefetch=1, reconnect_s=DEADLINE_S) as loader:
        batches = iter(loader)
        rows = checked(next(batches))
        daemon.kill()
        rows += seen(batches)
    assert rows == epoch_indices(0, daemon.rules)
    told = [record for record in caplog.records if "has changed since its daemon" in record.message]
    assert len(told) == 1


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first wait for an answer is."""
    wait = ControlSocket.wait

    def interrupt(control: ControlSocket, timeout_s: float) -> bool:
        monkeypatch.setattr(ControlSocket, "wait", wait)
        raise KeyboardInterrupt

    monkeypatch.setattr(ControlSocket, "wait", interrupt)


def interrupted_in_its_handshake(fake: Fake, load: Load) -> tuple[FakeDaemon, Loader[Any]]:
    daemon, loader = fake(starts_for_ever=True), load()
    with pytest.raises(KeyboardInterrupt):
        len(loader)
    until("its wait for an answer", lambda: daemon.hellos and daemon._strangers)
    return daemon, loader


@pytest.mark.usefixtures("interrupted")
def test_a_loader_that_is_closed_after_its_handshake_was_interrupted_leaves_no_connection(
    fake: Fake, load: Load
) -> None:
    daemon, loader = interrupted_in_its_handshake(fake, load)
    loader.close()
    until("the end of the connection", lambda: not daemon._strangers)


@pytest.mark.usefixtures("interrupted")
def test_a_child_forked_in_mid_handshake_begins_another_one_with_its_own_rank(
    fake: Fake, load: Load
) -> None:
    daemon, loader = interrupted_in_its_handshake(fake, load)
    child = os.fork()
    if child == 0:
        try:
            os.environ.update(RANK="1", WORLD_SIZE="2")
            len(loader)
        finally:
            os._exit(1)
    try:
        until("the child's hello", lambda: len(daemon.hellos) == 2)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert [(hello.rank, hello.world_size) for hello in daemon.hellos] == [(0, 1), (1, 2)]
